"""Payloads run with Python 3.9, which facilities' modules have: what vermin (`make check`) cannot tell of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.payloads.conftest import PAYLOADS

FILES = sorted(PAYLOADS.glob("*/*.py"))


def unions_in_checks(tree: ast.AST) -> list[int]:
    """Lines of isinstance(x, A | B), which Python 3.9 refuses where it gets there: no annotation, so not put off."""
    return [
        call.lineno
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("isinstance", "issubclass")
        and any(isinstance(part, ast.BinOp) for argument in call.args[1:] for part in ast.walk(argument))
    ]


def test_a_union_in_a_check_is_found() -> None:
    assert unions_in_checks(ast.parse("isinstance(1, (int, str))\nisinstance(1, (str, int | float))")) == [2]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_unions_are_in_annotations_alone_and_those_are_put_off(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    assert unions_in_checks(tree) == []
    put_off = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    assert put_off or not any(isinstance(node, ast.AnnAssign | ast.FunctionDef) for node in ast.walk(tree))


@pytest.mark.parametrize(
    "name", ["bdt/train", "calo_gan/train", "digits/train", "digits/train_horovod", "resnet50/train"]
)
def test_a_missing_package_is_said_with_its_remedy(tmp_path: Path, name: str) -> None:
    """By hand, with a Python that has the standard library alone."""
    argv = [sys.executable, "-I", "-S", str(PAYLOADS / f"{name}.py")]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("No module named ") and "pip install " in done.stderr and done.stderr.count("\n") == 1
