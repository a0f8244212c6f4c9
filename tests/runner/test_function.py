"""Payloads that are Python functions, as hpo_pilot_function.py calls them without a kept interpreter."""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import pytest

from tests.runner.conftest import Bench, encoded

CALL = f"{sys.executable} hpo_pilot_function.py train:objective"


def run(bench: Bench, body: str, **options):
    return bench.run(
        CALL, files={"train.py": body}, **{"objectives": ["loss"], "function": "train:objective"} | options
    )


def run_series(bench: Bench, body: str, members: list[list[int]], **files: str) -> list[dict[str, Any]]:
    """Verdicts of one job with these (trial, fold, seed), whose points are {"x": trial}."""
    task = encoded([members], {str(trial): {"x": trial} for trial, _, _ in members})
    written = {f"payload/{name}.py": text for name, text in {"train": body, **files}.items()}
    options = {"function": "train:objective", "objectives": ["loss"], "python": sys.executable}
    return bench.run(CALL, task=task, number=1, series=True, files=written, **options).verdict["members"]


@pytest.mark.parametrize(
    ("result", "objectives", "values"),
    [
        ("point['x'] * 2", ["loss"], [0.5]),
        ("(1, 2.5)", ["loss", "time"], [1.0, 2.5]),
        ("{'loss': 3, 'metrics': {'auc': 0.9}}", ["loss"], [3.0]),
        ("__import__('numpy').float32(0.25)", ["loss"], [0.25]),
    ],
)
def test_what_a_function_returns(bench: Bench, result, objectives, values):
    verdict = run(bench, f"def objective(point): return {result}", objectives=objectives).verdict
    assert verdict["values"] == values, verdict["message"]
    assert verdict["metrics"] == ({"auc": 0.9} if "auc" in result else {})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def objective(point): pass", "the function returned nothing, and must return the figure of merit"),
        ("def objective(point): return 1, 2", "the function returned 2 figures of merit instead of 1"),
        ("def objective(point): return float('nan')", "'loss' in output.json is no finite number but NaN"),
        ("def objective(point): return 'good'", "'loss' in output.json is no finite number but \"good\""),
        ("def objective(point): return object()", "is no number"),
        ("def objective(point): raise ValueError('no data')", "exit code 1: ValueError: no data"),
        ("def objective(point): raise SystemExit('no data')", "exit code 1: no data"),
        ("def other(point): return 1", "has no attribute 'objective'"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("objective = 3", "train:objective is no function"),
    ],
)
def test_functions_without_a_figure_of_merit(bench: Bench, body, message):
    verdict = run(bench, body).verdict
    assert verdict["value"] is None
    assert message in verdict["message"]


def test_a_second_argument_is_the_trial(bench: Bench):
    body = """
def objective(point, trial):
    for step in (1, 2):
        trial.report(point["x"] / step, step)
    return {"loss": 1, "metrics": {"number": trial.number, "fold": trial.fold, "seed": trial.seed, "of": trial.folds}}
"""
    verdict = run(bench, body).verdict
    assert verdict["metrics"] == {"number": 8, "fold": 1, "seed": 12, "of": 3}
    assert verdict["progress"] == [[1, 0.25], [2, 0.125]]


def test_a_pickled_function(bench: Bench, tmp_path):
    process, folder = bench.start(f"sleep 0.5; {sys.executable} hpo_pilot_function.py double.pkl", objectives=["loss"])
    (folder / "double.pkl").write_bytes(pickle.dumps(len))  # of the point's two parameters
    assert bench.finish(process, folder).verdict["values"] == [2.0]


def test_points_of_one_job_import_the_function_once(bench: Bench, tmp_path):
    """And each has a memory and random numbers of its own."""
    body = f"""
import os, random
with open({str(tmp_path / "imports")!r}, "a") as file:
    file.write("x")
calls, before = [], random.random()


def objective(point):
    calls.append(1)
    return {{"loss": point["x"], "metrics": {{"calls": len(calls), "pid": os.getpid(), "dice": random.random()}}}}
"""
    members = run_series(bench, body, [[1, 0, 1], [2, 0, 2], [3, 0, 3]])
    assert [member["value"] for member in members] == [1.0, 2.0, 3.0], json.dumps(members, indent=1)
    assert [member["metrics"]["calls"] for member in members] == [1, 1, 1]
    for name in ("pid", "dice"):
        assert len({member["metrics"][name] for member in members}) == 3
    assert (tmp_path / "imports").read_text() == "x"


def test_points_of_one_job_whose_function_cannot_be_imported(bench: Bench):
    members = run_series(bench, "import no_such_module", [[1, 0, 1], [2, 0, 2]])
    assert all("No module named 'no_such_module'" in member["message"] for member in members)
    assert len(members) == 2


GENERATORS = """
import random
import numpy as np

made, given, old = random.Random(), random.Random(42), np.random.RandomState(1)


class Data:
    rng = np.random.default_rng(3)


def objective(point):
    found = {"made": made.random(), "given": given.random(), "old": float(old.normal()), "class": Data.rng.random()}
    found.update(plain=random.random(), numpy=float(np.random.random()))
    return {"loss": 1, "metrics": found}
"""


def test_generators_made_at_import_differ_between_trials(bench: Bench):
    """Both in processes forked after the import and in fresh ones. A seed of the module's gives the same in a trial."""
    members = run_series(bench, GENERATORS, [[1, 0, 12], [2, 0, 13], [3, 1, 12]])
    one, two, again = (member["metrics"] for member in members)
    assert all(one[name] != two[name] for name in one)
    seeded = ("given", "old", "class")
    assert {name: one[name] for name in seeded} == {name: again[name] for name in seeded}
    fresh = run(bench, GENERATORS).verdict["metrics"]  # its seed is 12
    assert {name: fresh[name] for name in seeded} == {name: one[name] for name in seeded}
    assert all(fresh[name] != one[name] for name in ("made", "plain", "numpy"))


IMPORTS = """
import os, sys, time


def objective(point):
    known = {name: int(name in sys.modules) for name in ("colorsys", "own", "wave")}
    import colorsys, own
    if point["x"] == 4:
        os.environ["WAVE"] = "short"
        import wave
    time.sleep(0.5)
    return {"loss": 1, "metrics": known}
"""


def test_libraries_that_a_function_imports_are_loaded_for_the_next_points(bench: Bench):
    """But not modules of the payload, and not after the function has set a variable for them."""
    members = run_series(bench, IMPORTS, [[number, 0, number] for number in range(1, 8)], own="")
    found = [member["metrics"] for member in members]
    assert (found[0]["colorsys"], found[-1]["colorsys"]) == (0, 1), json.dumps(members, indent=1)
    assert not any(each["own"] or each["wave"] for each in found)
