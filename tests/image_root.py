"""A real image root, made from this machine's own Python: no network, some seconds, some 70 MB."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[1] / "containers" / "build_root.py"


def build_root() -> ModuleType:
    """containers/build_root.py, which is a script."""
    spec = importlib.util.spec_from_file_location("build_root", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def make_image_root(root: Path) -> Path:
    """Makes an unpacked image with a shell and python3 in `root`, and a mark by which payloads know it."""
    script = build_root()
    script.machine_base(root)
    script.finish(root)
    (root / "etc" / "image").write_text("image root\n")
    return root
