"""Pickles of functions for jobs, and identities that stay as long as a function does the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpo_pilot.operations.pickling import identity_of

SCRIPT = """
import dataclasses, enum, functools, math, random, threading
import helper

NAMES = {"alpha", "beta", "gamma", "delta", ("a", frozenset({"x", "y", "z"}))}
rng = random.Random()


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Model:
    width: int = 3
    tags: set = dataclasses.field(default_factory=lambda: {"u", "v", "w"})

    @property
    def size(self):
        return self.width * 2

    @staticmethod
    def of(point):
        return Model(point["x"])

    def fit(self, point):
        return self.size + point["x"]

    def __call__(self, point):
        return self.fit(point) * rng.random()


@functools.lru_cache(maxsize=7)
def table(n):
    return 1 if n < 2 else n * table(n - 1)


def objective(point):
    class Local(Model):
        pass

    found = Local(1).fit(point) if point["x"] in {"k", "l", "m"} else helper.scale(table(4), Color.RED)
    return found + len(NAMES) + math.sqrt(4)


def closure(k):
    seen = [k]
    return lambda point: point["x"] + len(seen) + recursive(3)


def recursive(n):
    return 0 if n == 0 else recursive(n - 1)


FUNCTIONS = {
    "function": objective,
    "lambda": closure(2),
    "method": Model(4).fit,
    "static": Model.of,
    "object": Model(5),
    "partial": functools.partial(helper.scale, color=Color.RED),
    "cached": table,
    "library": functools.partial(math.pow, 2),
}
"""
HELPER = "import threading\ndef scale(value, color):\n    return value * color.value if color else 0\n"
PRINT = """
import json, sys
from hpo_pilot.operations.pickling import pickled

found = {}
for name, function in FUNCTIONS.items():
    content, found[name] = pickled(function, None)
    with open(f"{name}.pkl", "wb") as file:
        file.write(content)
print(json.dumps(found))
"""
CALL = """
import pickle, sys

def call(name, point):
    with open(f"{name}.pkl", "rb") as file:
        return pickle.load(file)(point)

assert call("function", {"x": 3}) == 24 + 5 + 2
assert call("lambda", {"x": 3}) == 4
assert call("method", {"x": 3}) == 11
assert call("static", {"x": 3}).size == 6
assert 0 <= call("object", {"x": 3}) <= 13
assert call("partial", 3) == 3
assert call("cached", 4) == 24
assert call("library", 3) == 8
assert "hpo_pilot" not in sys.modules
"""


def identities(folder: Path, before: str = "", seed: int = 0) -> dict[str, str]:
    folder.mkdir()
    (folder / "script.py").write_text(before + SCRIPT + PRINT)
    (folder / "helper.py").write_text(before + HELPER)
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    words = [sys.executable, "script.py"]
    ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_script_that_does_the_same(tmp_path: Path) -> None:
    """Its lines have moved, the order of sets is another, classes are made anew, and a generator has another state."""
    first = identities(tmp_path / "1")
    assert identities(tmp_path / "2", "# a comment\n\n", seed=7) == first
    assert len(set(first.values())) == len(first)


def test_jobs_need_neither_the_script_nor_the_modules_beside_it(tmp_path: Path) -> None:
    identities(tmp_path / "1")
    (tmp_path / "1" / "helper.py").unlink()
    ended = subprocess.run(
        [sys.executable, "-P", "-c", CALL], cwd=tmp_path / "1", capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return point['x']", "return point['y']"),
        ("return point['x'] + 1", "return point['x'] + 1.0"),
        ("return point['x'] * SCALE", "return point['x'] * SCALE\nSCALE = 3"),
        ("return helper(point)", "return helper(point)\ndef helper(point): return 1"),
        ("return point['x'] in {1, 2}", "return point['x'] in {1, 3}"),
        ("return Model.k", "return Model.k\nclass Model: k = 2"),
        ("return point", "return point\nobjective.__defaults__ = (1,)"),
        ("return [each for each in point]", "return [each + 1 for each in point]"),
        ("return np.sum(DATA)", "return np.sum(DATA)\nDATA = np.arange(4)"),
    ],
)
def test_a_change_is_seen(before: str, after: str) -> None:
    start = (
        "import numpy as np\nSCALE = 2\nDATA = np.arange(3)\nclass Model: k = 1\n"
        "def helper(point): return 0\ndef objective(point):\n    "
    )
    found = []
    for text in (before, after, f"'''A docstring.'''\n    {before}"):
        script = {"__name__": "__main__"}
        exec(start + text, script)  # noqa: S102 - as a script
        found.append(identity_of(script["objective"]))
    assert found[0] == found[2] != found[1]


def test_what_cannot_be_compared_by_recursion() -> None:
    """A list that contains itself, and numbers by the million."""
    data: list[object] = [float(number) for number in range(1_000_000)]
    loop: list[object] = [data]
    loop.append(loop)
    assert identity_of(lambda point: loop) == identity_of(lambda point: loop)
