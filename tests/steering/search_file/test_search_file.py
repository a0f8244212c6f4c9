"""Right search files, and what becomes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_pilot.errors import SearchFileError
from hpo_pilot.hpc.capacity import NodeShape
from hpo_pilot.search import Categorical, Ordinal, Real, Resources
from hpo_pilot.steering.search_file import (
    examine,
    load_search,
    local_mistakes,
    parse_search,
    payload_folder,
    this_machine,
)

from .conftest import GOOD

#: The search file of the product's description, less what is not supported yet.
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
payload:
  files: ../payloads/digits
  command: python train.py
  container: null
  inputs: []
  outputs: [model.npz]
  checkpoint: [ckpt]
resources: {nodes: 1, gpus_per_node: 0, cores: 1, memory_mb: 2000, minutes: 10, trials_per_job: 1}
site: {profile: local, queue: LOCAL}
"""


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
    assert search.optimizer.name == "bayesian"
    assert search.payload.files == "../payloads/digits"
    assert payload_folder(search, path) == payload.resolve()
    assert load_search(str(path)) == search
    assert parse_search(PRODUCT, "search.yaml") == search


def test_a_small_file_has_defaults() -> None:
    search = parse_search("search: a\nspace: {x: {type: integer, low: 0, high: 9}}\npayload: {command: x}", "a.yaml")
    assert search.budget.trials == 64
    assert payload_folder(search, "a.yaml") is None


def test_choices_keep_their_types() -> None:
    text = "search: a\nspace: {x: {type: categorical, choices: %s}}\npayload: {command: x}"
    search = parse_search(
        text % '[1, true, "1", 1.0, null, yes, No, 2024-01-01, 010, 0x10, 1e3, ~]'.replace(", ~", ""), "a"
    )
    dimension = search.space.dimensions["x"]
    assert isinstance(dimension, Categorical)
    assert repr(dimension.choices) == "(1, True, '1', 1.0, None, 'yes', 'No', '2024-01-01', 10, 16, 1000.0)"


def test_anchors_and_merges() -> None:
    text = """\
search: a
space:
  x: &unit {type: real, low: 0, high: 1}
  y: *unit
  z: {<<: *unit, high: 2}
  w: {<<: [{low: -1}, *unit]}
payload: {command: x}
"""
    space = parse_search(text, "a").space
    assert space.dimensions["x"] == space.dimensions["y"]
    assert space.dimensions["z"] == Real(low=0, high=2)
    assert space.dimensions["w"] == Real(low=-1, high=1)


def test_mistakes_behind_an_alias_are_where_the_text_is() -> None:
    text = """\
search: a
space:
  x: &unit {type: real, low: 3, high: 1}
payload: {command: x}
"""
    with pytest.raises(SearchFileError, match=r"^a\.yaml:3:30: space\.x\.low: low \(3\) must be below high \(1\)"):
        parse_search(text, "a.yaml")


def test_parse_search_leaves_paths_alone() -> None:
    assert parse_search(GOOD.replace("files: digits", "files: /nowhere"), "a").payload.files == "/nowhere"


def test_settings_are_checked_by_the_optimizer() -> None:
    with pytest.raises(SearchFileError) as caught:
        parse_search(GOOD.replace("optimizer: random", "optimizer: {name: evolutionary, populaton: 3}"), "s.yaml")
    (problem,) = caught.value.problems
    assert (problem.line, problem.column, problem.path) == (11, 33, "optimizer.populaton")
    assert "did you mean population" in problem.suggestion


def test_this_machine_holds_a_small_job() -> None:
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.memory_mb > 100
    assert local_mistakes(Resources(memory_mb=1), machine) == []
    assert len(local_mistakes(Resources(nodes=2, gpus_per_node=3, cores=9, memory_mb=9), NodeShape(8, 8, 2))) == 4


def test_notes_on_objectives(tmp_path):
    text = (
        "search: s\nspace: {x: {type: real, low: 0, high: 1}}\noptimizer: random\npayload: {command: echo}\nobjective: "
    )
    file = tmp_path / "search.yaml"
    file.write_text(text + "[" + ", ".join(f"{{metric: m{n}}}" for n in range(5)) + "]\n")
    (note,) = examine(file).notes
    assert "5 objectives" in note.message
    file.write_text(text + "{metric: m, reference: 2}\n")
    (note,) = examine(file).notes
    assert note.path == "objective.reference"
    file.write_text(text.replace("random", "cma") + "[{metric: a}, {metric: b}]\n")
    (problem,) = examine(file).problems
    assert "cma takes one objective, not 2" in problem.message
    assert "bayesian" in problem.suggestion
