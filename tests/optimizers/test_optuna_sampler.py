"""optuna's samplers behind our contract; what holds for every optimizer is in tests/contracts."""

from __future__ import annotations

import importlib.util
import statistics

import pytest
from pydantic import ValidationError

from hpo_pilot.errors import InputError
from hpo_pilot.optimizers import create_optimizer, optimizer_class
from hpo_pilot.search import SearchSpace, point_key
from hpo_pilot.steering.search_file import examine
from tests.optimizers.runs import REAL, run

pytest.importorskip("optuna")

SAMPLERS = ["tpe", "cmaes", "nsgaii", "nsgaiii", "qmc", "random"]
if importlib.util.find_spec("torch") is not None:
    SAMPLERS.append("gp")

SPACE = {
    "x": {"type": "real", "low": 0.0, "high": 1.0},
    "lr": {"type": "real", "low": 1e-4, "high": 1.0, "scale": "log"},
    "n": {"type": "integer", "low": 1, "high": 9, "scale": "log"},
    "step": {"type": "real", "low": 0.1, "high": 0.7, "step": 0.1},
    "odd": {"type": "categorical", "choices": [1, True, "1", None]},
    "size": {"type": "ordinal", "choices": [32, 64, 128]},
    "deep": {"type": "integer", "low": 1, "high": 7, "step": 3, "when": {"odd": True}},
}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_keeps_the_contract(sampler):
    space = SearchSpace.from_dict(SPACE, ["x + step <= 1.2"])
    optimizer, twin = (create_optimizer("optuna", space, seed=5, settings={"sampler": sampler}) for _ in range(2))
    points = [point for point, _ in run(optimizer, lambda point: point["x"], batches=4, batch=5)]
    optimizer.tell([(optimizer.ask(1, [])[0], None)])
    pending = optimizer.ask(3, [])
    asked = optimizer.ask(4, pending)
    assert optimizer.ask(4, pending) == asked
    keys = [point_key(point) for point in (*points, *pending, *asked)]
    assert len(set(keys)) == len(keys)
    assert all(space.canonical(point) == point for point in asked)
    twin.tell([(o.point, o.value) for o in optimizer.history])
    assert twin.ask(4, pending) == asked


@pytest.mark.parametrize("sampler", [sampler for sampler in SAMPLERS if sampler != "cmaes"])
def test_several_objectives(sampler):
    space = SearchSpace.from_dict({"x": SPACE["x"], "odd": SPACE["odd"]})
    optimizer = create_optimizer("optuna", space, settings={"sampler": sampler}, objectives=2)
    run(optimizer, lambda point: (point["x"], 1 - point["x"]), batches=5, batch=5)
    assert len(optimizer.ask(3, [])) == 3


def test_one_objective_alone_for_a_sampler_that_takes_one():
    with pytest.raises(InputError, match="cmaes sampler takes one objective, not 2"):
        create_optimizer("optuna", SearchSpace.from_dict(SPACE), settings={"sampler": "cmaes"}, objectives=2)


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "nsgaii"])
def test_it_learns_though_it_is_made_anew_for_every_ask(sampler):
    space = SearchSpace.from_dict(dict.fromkeys("abc", REAL))
    settings = {"sampler": sampler} | ({"population_size": 10} if sampler == "nsgaii" else {})
    optimizer = create_optimizer("optuna", space, seed=2, settings=settings)
    values = [
        value for _, value in run(optimizer, lambda point: sum((x - 0.8) ** 2 for x in point.values()), 12, batch=10)
    ]
    assert statistics.median(values[-30:]) < 0.5 * statistics.median(values[:30])


def test_a_sampler_of_another_package_is_named_by_its_class():
    space = SearchSpace.from_dict(dict.fromkeys("abc", REAL))
    told = [({"a": x / 9, "b": 0.5, "c": x / 9}, x) for x in range(10)]
    asked = []
    for sampler in ("optuna.samplers:TPESampler", "optuna.samplers:NSGAIISampler"):
        optimizer = create_optimizer("optuna", space, seed=2, settings={"sampler": sampler})
        optimizer.tell(told)
        asked.append(optimizer.ask(3, []))
        assert asked[-1] == optimizer.ask(3, [])
    assert asked[0] != asked[1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sampler": "tpee"}, "sampler: must be .*'tpee' — did you mean tpe?"),
        ({"sampler": "no_such:Class"}, "sampler: cannot be imported"),
        ({"sampler": "pathlib:Path"}, "sampler: pathlib:Path is no subclass"),
        ({"sampler": "optuna.samplers:TPESampler", "gama": 3}, "optuna refuses these settings .*unexpected keyword"),
        ({"n_startup_trials": "x"}, "n_startup_trials: must be a whole number, not 'x'"),
        ({"n_startup_trials": -3}, "n_startup_trials: must be 0 or more, not -3"),
        ({"n_startup_trials": True}, "must be a whole number, not true"),
        ({"gamma": 3}, "is not a setting of optuna's tpe sampler"),
        ({"sampler": "cmaes", "popsize": 2.5}, "popsize: must be a whole number or null"),
        ({"sampler": "cmaes", "popsize": 1}, "optuna refuses these settings of cmaes"),
        ({"multivariat": True}, "did you mean multivariate"),
        ({"seed": 3}, "is not a setting of optuna's tpe sampler"),
        ({"sampler": "nsgaii", "population_size": 1}, "optuna refuses these settings of nsgaii"),
    ],
)
def test_wrong_settings_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        create_optimizer("optuna", SearchSpace.from_dict(SPACE), settings=settings)


@pytest.mark.parametrize(
    ("missing", "sampler", "said"),
    [
        ("optuna", "tpe", r"needs optuna, which is not installed — pip install 'hpo-pilot\[optuna\]'"),
        ("cmaes", "cmaes", r"needs cmaes, .* pip install 'hpo-pilot\[optuna\]'"),
        ("torch", "gp", "needs torch, .* pip install torch"),
    ],
)
def test_what_is_not_installed_is_named_with_the_remedy(monkeypatch, missing, sampler, said):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == missing else find(name, *more))
    with pytest.raises(ValidationError, match=said):
        optimizer_class("optuna").check_settings({"sampler": sampler})


def test_a_file_is_checked_as_the_search_checks_it(tmp_path):
    path = tmp_path / "search.yaml"
    text = "search: a\nspace: {x: {type: real, low: 0, high: 1}}\npayload: {command: x}\n"
    path.write_text(text + "objective: [{metric: loss}, {metric: speed}]\noptimizer: {name: optuna, sampler: cmaes}\n")
    [problem] = examine(path).problems
    assert (problem.line, problem.message) == (4, "optuna's cmaes sampler takes one objective, not 2")
    path.write_text(text + "optimizer: {name: optuna, sampler: tpe, n_startup_trials: x}\n")
    [problem] = examine(path).problems
    assert (problem.line, problem.path) == (4, "optimizer.n_startup_trials")
    path.write_text(text + "optimizer: {name: optuna, sampler: cmaes, x0: {x: 0.5}, inc_popsize: -1}\n")
    assert examine(path).problems == ()
