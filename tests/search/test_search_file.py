"""Right search files, and the searches that they give."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_pilot.errors import SearchFileError
from hpo_pilot.hpc.capacity import NodeShape
from hpo_pilot.search import Ordinal, Real, Resources
from hpo_pilot.steering.search_file import examine, load_search, local_mistakes, parse_search, payload_folder

from .conftest import GOOD

#: The search file of the product's description.
PRODUCT = """\
search: digits-mlp
objective: {metric: loss, goal: minimize}     # a list of two or more: Pareto search
space:
  learning_rate: {type: real, low: 1e-4, high: 1e-1, scale: log}
  layers:        {type: integer, low: 1, high: 4}
  width:         {type: integer, low: 16, high: 512, scale: log}
  dropout:       {type: real, low: 0, high: 0.5, step: 0.05}
  solver:        {type: categorical, choices: [adam, sgd]}
  batch:         {type: ordinal, choices: [32, 64, 128, 256]}
  momentum:      {type: real, low: 0.5, high: 0.99, when: {solver: sgd}}
constraints: ["layers * width <= 1024"]
start: [{learning_rate: 1e-3, layers: 2, width: 64, dropout: 0, solver: adam, batch: 64}]   # points to try first
optimizer: bayesian                           # or {name: evolutionary, population: 24, …}; random, grid, cma
budget: {trials: 64, parallel: 8, queued: 0, hours: 12, gpu_hours: 200, failures: 10}
confirm: {top: 3, repeats: 5}
folds: {k: 5, require: 5}
seed: 7
early_stopping: {method: none}
payload: {files: ../payloads/digits, command: python train.py, container: null, inputs: [], outputs: [model.npz]}
resources: {nodes: 1, gpus_per_node: 0, cores: 1, memory_mb: 2000, minutes: 10, trials_per_job: 1}
site: {profile: local, queue: LOCAL}
"""
SMALL = "search: a\nspace: %s\npayload: {command: x}"


def test_the_product_example(tmp_path: Path) -> None:
    payload = tmp_path / "payloads" / "digits"
    payload.mkdir(parents=True)
    (tmp_path / "searches").mkdir()
    path = tmp_path / "searches" / "search.yaml"
    path.write_text(PRODUCT)
    search = load_search(path)
    assert search.name == "digits-mlp"
    assert search.space.dimensions["learning_rate"] == Real(low=0.0001, high=0.1, scale="log")
    assert search.space.dimensions["batch"] == Ordinal(choices=(32, 64, 128, 256))
    assert search.start[0]["learning_rate"] == 0.001
    assert search.payload.files == "../payloads/digits"
    assert payload_folder(search, path) == payload.resolve()
    assert parse_search(PRODUCT, "search.yaml") == search


def test_a_small_file_has_defaults() -> None:
    search = parse_search(SMALL % "{x: {type: integer, low: 0, high: 9}}", "a.yaml")
    assert search.budget.trials == 64
    assert payload_folder(search, "a.yaml") is None


def test_anchors_and_merges() -> None:
    text = "{x: &unit {type: real, low: 0, high: %s}, y: *unit, z: {<<: *unit, high: 2}, w: {<<: [{low: -1}, *unit]}}"
    space = parse_search(SMALL % text % 1, "a").space
    assert space.dimensions["x"] == space.dimensions["y"] == Real(low=0, high=1)
    assert space.dimensions["z"] == Real(low=0, high=2)
    assert space.dimensions["w"] == Real(low=-1, high=1)
    with pytest.raises(SearchFileError, match=r"^a\.yaml:2:36: space\.x\.low: low \(0\) must be below high \(-1\)"):
        parse_search(SMALL % text % -1, "a.yaml")


def test_paths_of_a_text_are_not_checked() -> None:
    assert parse_search(GOOD.replace("files: digits", "files: /nowhere"), "a").payload.files == "/nowhere"


def test_the_optimizer_checks_its_settings() -> None:
    with pytest.raises(SearchFileError) as caught:
        parse_search(GOOD.replace("optimizer: random", "optimizer: {name: evolutionary, populaton: 3}"), "s.yaml")
    (problem,) = caught.value.problems
    assert (problem.line, problem.column, problem.path) == (11, 33, "optimizer.populaton")
    assert "did you mean population" in problem.suggestion


def test_an_optimizer_of_one_objective(folder: Path) -> None:
    text = GOOD.replace("random", "cma").replace("{metric: loss, goal: minimize}", "[{metric: a}, {metric: b}]")
    (folder / "search.yaml").write_text(text)
    (problem,) = examine(folder / "search.yaml").problems
    assert "cma takes one objective, not 2" in problem.message and "bayesian" in problem.suggestion


def test_jobs_of_this_machine() -> None:
    machine = NodeShape(8, 8, 2)
    assert local_mistakes(Resources(memory_mb=8, cores=8, gpus_per_node=2), machine) == []
    wrong = local_mistakes(Resources(nodes=2, gpus_per_node=3, cores=9, memory_mb=9), machine)
    assert [mistake.path for mistake in wrong] == [("nodes",), ("cores",), ("memory_mb",), ("gpus_per_node",)]
