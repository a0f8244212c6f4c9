"""Scripts that call `hpo_pilot.run` with a function, run as their users run them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
import hpo_pilot
from helper import scale

NAMES = {"alpha", "beta", "gamma", "delta"}


def objective(point):
    time.sleep(PAUSE)
    return scale(point["x"]) + len(NAMES)


PAUSE = 0.2
SPACE = {"x": {"type": "real", "low": 0, "high": 1}}
if __name__ == "__main__":
    options = {"optimizer": "random", "budget": {"trials": 24, "parallel": 2}, "slots": 2}
    result = hpo_pilot.run(objective, SPACE, workdir="work", **options)
    print(result.record.name, len(result.trials), result.best.value >= 4)
"""


class Script:
    """A user's script in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.text = folder, SCRIPT
        (folder / "helper.py").write_text("def scale(x): return 2 * x\n")

    def start(self, seed: int = 0) -> subprocess.Popen[str]:
        (self.folder / "script.py").write_text(self.text)
        return subprocess.Popen(
            [sys.executable, "script.py"],
            cwd=self.folder,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, seed: int = 0) -> tuple[str, str]:
        """Runs it to the end; returns the last lines of what it printed and of its errors."""
        output, errors = self.start(seed).communicate(timeout=600)
        return output.strip(), errors

    def interrupt(self) -> str:
        """Interrupts it when the first result is there."""
        process = self.start()
        assert process.stderr is not None
        next(line for line in process.stderr if "best value" in line)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
        return errors.splitlines()[-1]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_an_interrupted_script_goes_on(script: Script) -> None:
    assert "script.py" not in (ended := script.interrupt()), ended
    assert "functions/objective.yaml --workdir work`, continues search 'objective'" in ended
    script.text = script.text.replace('"trials": 24', '"trials": 4')
    _, errors = script.run()
    assert "budget.trials shrank" in errors
    script.text = "# a comment\n" + SCRIPT.replace("PAUSE = 0.2", "PAUSE = 0.2\n\n")
    output, errors = script.run(seed=7)
    assert output == "objective 24 True", errors
    assert "search 'objective' continues" in errors
    assert "objective: done, 24 of 24 trials" in errors


def test_a_function_that_changed_begins_a_new_search(script: Script) -> None:
    script.interrupt()
    script.text = SCRIPT.replace("len(NAMES)", "len(NAMES) + 1").replace('"trials": 24', '"trials": 4')
    output, errors = script.run()
    assert output == "objective-2 4 True", errors
    assert "search 'objective-2' is a new one: the function changed since search 'objective' began" in errors
    script.text = script.text.replace("SPACE, ", 'SPACE, name="objective", quiet=True, ')
    output, errors = script.run()
    assert "InputError: the function changed since search 'objective' began" in errors
    assert errors.startswith("Traceback")
    script.text = SCRIPT
    assert script.run()[0] == "objective 24 True"


def test_after_mistakes_the_function_that_is_passed_runs(script: Script) -> None:
    """The files of one that was refused do not stand beside the search file of another."""
    wrong = SCRIPT.replace('"low": 0', '"low": 2').replace('"trials": 24', '"trials": 2')
    for script.text in (wrong, wrong.replace("len(NAMES)", "len(NAMES) - 9")):
        assert "space.x" in script.run()[1]
    script.text = SCRIPT.replace('"trials": 24', '"trials": 2')
    assert script.run()[0] == "objective 2 True"


@pytest.mark.parametrize(
    ("body", "reason"),
    [("raise ValueError('no data')", "ValueError: no data"), ("print(point)", "the function returned nothing")],
)
def test_a_function_that_always_fails(script: Script, body: str, reason: str) -> None:
    script.text = SCRIPT.replace("time.sleep(PAUSE)", body).replace("    return", "    0 and")
    script.text = script.text.replace('"trials": 24', '"trials": 3')
    output, errors = script.run()
    assert not output
    assert errors.splitlines()[-1].startswith(
        "hpo_pilot.errors.GiveUpError: no trial of search 'objective' has a result"
    )
    assert reason in errors.splitlines()[-1]
    assert re.search(r"objective: trial \d failed", errors)


def test_library_functions_and_methods(script: Script) -> None:
    script.text = """
import functools, operator
import hpo_pilot
import helper

class Model:
    def fit(self, point):
        return helper.scale(point["x"])

@functools.lru_cache
def table(n):
    return list(range(n))

@functools.lru_cache
def cached(point):
    return point["x"] + len(table(3))

if __name__ == "__main__":
    options = {"space": {"x": {"type": "real", "low": 0, "high": 1}}, "optimizer": "random"}
    options |= {"budget": {"trials": 2}, "quiet": True}
    half = functools.partial(lambda point, k: point["x"] / k, k=2)
    for function in (operator.itemgetter("x"), half, Model().fit, cached):
        found = hpo_pilot.run(function, **options)
        print(found.record.name, len(found.trials))
"""
    output, errors = script.run()
    assert output.splitlines() == ["itemgetter 2", "f 2", "fit 2", "cached 2"], errors
