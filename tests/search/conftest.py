"""A machine that is the same everywhere, and a search file to spoil."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_pilot.errors import Problem, SearchFileError
from hpo_pilot.jobs.resources import NodeShape
from hpo_pilot.steering.search_file import load_search

GOOD = """\
search: digits-mlp
objective: {metric: loss, goal: minimize}
space:
  learning_rate: {type: real, low: 1e-4, high: 1e-1, scale: log}
  layers: {type: integer, low: 1, high: 4}
  width: {type: integer, low: 16, high: 512, scale: log}
  solver: {type: categorical, choices: [adam, sgd]}
  momentum: {type: real, low: 0.5, high: 0.99, when: {solver: sgd}}
constraints: ["layers * width <= 1024"]
start: [{learning_rate: 1e-3, layers: 2, width: 64, solver: adam}]
optimizer: random
budget: {trials: 64, parallel: 8}
confirm: {top: 3, repeats: 5}
folds: {k: 5, require: 5}
seed: 7
payload:
  files: digits
  command: python train.py
resources: {cores: 1, memory_mb: 2000, minutes: 10}
site: {profile: local, queue: LOCAL}
"""


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> NodeShape:
    """Eight cores, 16 GB, no GPU."""
    machine = NodeShape(cores=8, memory_mb=16_000, gpus=0)
    monkeypatch.setattr("hpo_pilot.steering.search_file.this_machine", lambda: machine)
    return machine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the payload of `GOOD` in it."""
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "train.py").write_text("")
    return tmp_path


@pytest.fixture
def problems(folder: Path) -> Callable[..., list[Problem]]:
    """What is wrong with a file of this text; with two arguments: with `GOOD` after that replacement."""

    def find(*change: str | bytes) -> list[Problem]:
        if len(change) == 2:
            old, new = change
            assert isinstance(old, str)
            assert isinstance(new, str)
            assert GOOD.count(old) == 1, old
            content: str | bytes = GOOD.replace(old, new)
        else:
            (content,) = change
        path = folder / "search.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(SearchFileError) as caught:
            load_search(path)
        assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
        assert caught.value.exit_code == 2
        for jargon in ("Input", "pydantic", "discriminator", "Traceback", "tuple", "dict", "None"):
            assert jargon not in str(caught.value).replace(str(path), "")
        return caught.value.problems

    return find
