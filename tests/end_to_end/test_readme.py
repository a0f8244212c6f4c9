"""What the README tells a new user to do works as it stands there."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """Every indented command of the README."""
    lines = re.findall(r"^    (\S.*)$", README.read_text(), re.MULTILINE)
    return [line.split("#")[0].strip() for line in lines]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A new user's folder with the README's training and search file."""
    (training,) = [block for block in blocks("python") if "train_and_validate" in block]
    (search,) = [block for block in blocks("yaml") if "my-search" in block]
    (tmp_path / "my_training").mkdir()
    (tmp_path / "my_training" / "train.py").write_text(training)
    (tmp_path / "search.yaml").write_text(search.replace("trials: 64", "trials: 6"))
    return tmp_path


def run(folder: Path, *command: str) -> str:
    """Runs one of the README's command lines as a user whose environment is active would."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, (command, result.stdout, result.stderr)
    return result.stdout


def test_your_own_search(folder):
    written = commands()
    for command in ("hpo-pilot validate search.yaml", "hpo-pilot run search.yaml"):
        assert command in written
        assert "my-search" in run(folder, *command.split())
    for command in written:
        if "digits-mlp" in command and command.startswith("hpo-pilot ") and "fetch" not in command:
            words = command.replace("digits-mlp", "my-search").split()
            run(folder, *words)
    assert (folder / "hpo-pilot" / "reports" / "my-search.html").stat().st_size > 100_000


def test_a_function_of_a_script(folder):
    """Each run is a search of its own, unless it is given the name of one that was interrupted."""
    (code,) = [block for block in blocks("python") if "hpo_pilot.run(objective" in block]
    script = folder / "script.py"
    script.write_text(code.replace('"trials": 50', '"trials": 4, "parallel": 2'))
    for _ in range(2):
        value, point = run(folder, sys.executable, script.name).strip().split(" ", 1)
        assert float(value) == (ast.literal_eval(point)["x"] - 2) ** 2
    listed = json.loads(run(folder, "hpo-pilot", "list", "--json"))
    assert {(search["name"], search["state"]) for search in listed} == {("objective", "done"), ("objective-2", "done")}
    script.write_text(script.read_text().replace("budget=", 'name="objective-2", budget='))
    run(folder, sys.executable, script.name)
    assert len(json.loads(run(folder, "hpo-pilot", "list", "--json"))) == 2


def test_the_python_api(folder):
    (code,) = [block for block in blocks("python") if "create_optimizer" in block]
    check = "\nassert len(points) == 8\nassert result.best.value < 1\nassert len(result.trials) == 6\n"
    run(folder, sys.executable, "-c", code + check + "assert result.report.exists()\n")


def test_every_file_that_it_names_is_there():
    text = README.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (README.parent / target).exists(), target
    architecture = (README.parent / "hpo_pilot" / "manual" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(hpo_pilot/\w+/)` \|[^|]*\| (`.+`) \|$", architecture, re.MULTILINE)
    assert len(rows) > 15
    for folder, files in rows:
        for begin in re.findall(r"`(\w+\.py)`", files):
            assert (README.parent / folder / begin).exists(), folder + begin


def test_make_help_lists_the_targets_that_it_names():
    listed = subprocess.run(["make", "help"], cwd=README.parent, capture_output=True, text=True, check=True).stdout
    for target in re.findall(r"^    make (\S+)", README.read_text(), re.MULTILINE):
        assert target == "help" or f"make {target} " in listed, target
