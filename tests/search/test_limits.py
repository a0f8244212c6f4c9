"""Counts have limits: a larger one is refused at its place, and the check never fails otherwise."""

from __future__ import annotations

import contextlib
from copy import deepcopy
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.site_files import load_site
from hpo_pilot.steering.embedded import load_queues
from hpo_pilot.steering.search_file import examine_content

DOCUMENT: dict[str, Any] = yaml.safe_load("""
search: wide
space:
  x: {type: real, low: 0.0, high: 1.0, step: 0.1}
  n: {type: integer, low: 1, high: 8, step: 1}
  c: {type: categorical, choices: [1, 2.0]}
start: [{x: 0.5, n: 3, c: 1}]
known: [{point: {x: 0.1, n: 1, c: 2.0}, value: 1.0}]
optimizer: {name: evolutionary, population: 8}
budget: {trials: 64, parallel: 8, queued: 0, hours: 1.0, gpu_hours: 100.0, core_hours: 100.0, failures: 3, refill: 0.5}
confirm: {top: 2, repeats: 2}
folds: {k: 2, require: 1}
seed: 1
early_stopping:
  {method: asha, min_steps: 1, max_steps: 81, eta: 3, brackets: 1, warmup_trials: 2, folds: 1, report_seconds: 2.0}
payload: {command: "true"}
resources: {nodes: 1, gpus_per_node: 0, ranks_per_node: 1, cores: 1, memory_mb: 100, minutes: 1.0, trials_per_job: 1}
site: {profile: grid}
panda: {priority: 900, attempts: 3, jobs_per_task: 10}
""")
SMALL = {
    "search": "wide",
    "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
    "payload": {"command": "true"},
    "site": {"profile": "grid"},
}


def places_of_numbers(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        return [place for key, each in inner for place in places_of_numbers(each, (*path, key))]
    return [path] if isinstance(value, int | float) and not isinstance(value, bool) else []


PLACES = places_of_numbers(DOCUMENT)
#: Figures of merit, choices and the bounds of a real parameter are not counts.
COUNTS = [place for place in PLACES if place[:2] not in (("space", "x"), ("space", "c")) and place[-1] != "value"]
HUGE = st.one_of(
    st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**23, 10**400, -(2**63) - 1, 1e308, -1e308, 5e-324]),
    st.integers(),
    st.floats(),
)


def changed(place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    document = deepcopy(DOCUMENT)
    inner = document
    for part in place[:-1]:
        inner = inner[part]  # type: ignore[index]
    inner[place[-1]] = value  # type: ignore[index]
    return document


def problems_of(document: dict[str, Any]) -> list[str]:
    found = examine_content(yaml.safe_dump(document).encode(), "search.yaml")
    return [str(problem) for problem in found.problems]


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PLACES), HUGE)
def test_no_number_is_too_much_for_the_check(place: tuple[str | int, ...], value: float) -> None:
    problems_of(changed(place, value))


@pytest.mark.parametrize("place", COUNTS, ids=lambda place: ".".join(map(str, place)))
def test_a_count_beyond_its_limit_is_refused_at_its_place(place: tuple[str | int, ...]) -> None:
    assert any(str(place[-1]) in problem for problem in problems_of(changed(place, 10**23)))


@pytest.mark.parametrize(
    ("fits", "more"),
    [
        ({"budget": {"trials": 1_000_000, "parallel": 27_648}}, {"budget": {"trials": 1_000_001}}),
        ({"budget": {"parallel": 100_000}}, {"budget": {"parallel": 100_001}}),
        ({"folds": 1000}, {"folds": 1001}),
        ({"folds": 1000, "budget": {"parallel": 150}}, {"folds": 1000, "budget": {"parallel": 151}}),
        (
            {"folds": 1000, "budget": {"parallel": 99, "queued": 51}},
            {"folds": 1000, "budget": {"parallel": 150, "queued": 1}},
        ),
        ({"folds": 50, "resources": {"trials_per_job": 200}}, {"folds": 51, "resources": {"trials_per_job": 200}}),
        ({"confirm": {"top": 64, "repeats": 1000}}, {"confirm": {"top": 65, "repeats": 1000}}),
        (
            {"objective": [{"metric": f"m{i}"} for i in range(10)]},
            {"objective": [{"metric": f"m{i}"} for i in range(11)]},
        ),
        ({"constraints": ["x < 1"] * 1000}, {"constraints": ["x < 1"] * 1001}),
        ({"segments": [f"s{i}" for i in range(1000)]}, {"segments": [f"s{i}" for i in range(1001)]}),
        (DOCUMENT, {"space": {f"x{i}": {"type": "real", "low": 0.0, "high": 1.0} for i in range(1001)}}),
        ({}, {"space": {"c": {"type": "categorical", "choices": list(range(10_001))}}}),
    ],
)
def test_the_widest_search_that_makes_sense_fits(fits: dict[str, Any], more: dict[str, Any]) -> None:
    assert problems_of({**SMALL, **fits}) == []
    assert problems_of({**SMALL, **more}) != []


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HUGE, st.sampled_from(["cores", "memory_mb", "count", "hours", "gpus"]))
def test_site_and_queue_files_take_no_number_too_large(tmp_path: Any, value: float, key: str) -> None:
    path = tmp_path / "here.yaml"
    for load, document in (
        (load_site, {"name": "here", "node": {"cores": 4, key: value}}),
        (load_queues, {"queues": {"LOCAL": {key: value}}}),
    ):
        path.write_text(yaml.safe_dump(document))
        with contextlib.suppress(InputError):
            load(path)
