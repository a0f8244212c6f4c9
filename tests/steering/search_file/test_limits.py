"""Counts have maxima: what is larger is refused at its place, and by nothing worse than a message."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpo_pilot.errors import InputError, SearchFileError
from hpo_pilot.hpc.site_files import load_site
from hpo_pilot.search import Search
from hpo_pilot.search.limits import read_stored
from hpo_pilot.steering.embedded import load_queues
from hpo_pilot.steering.search_file import examine_content, parse_search

DOCUMENT: dict[str, Any] = {
    "search": "wide",
    "space": {
        "x": {"type": "real", "low": 0.0, "high": 1.0, "step": 0.1},
        "n": {"type": "integer", "low": 1, "high": 8, "step": 1},
        "c": {"type": "categorical", "choices": [1, 2.0]},
    },
    "start": [{"x": 0.5, "n": 3, "c": 1}],
    "known": [{"point": {"x": 0.1, "n": 1, "c": 2.0}, "value": 1.0}],
    "optimizer": {"name": "evolutionary", "population": 8},
    "budget": {
        "trials": 64,
        "parallel": 8,
        "queued": 0,
        "hours": 1.0,
        "gpu_hours": 100.0,
        "core_hours": 100.0,
        "failures": 3,
        "refill": 0.5,
    },
    "confirm": {"top": 2, "repeats": 2},
    "folds": {"k": 2, "require": 1},
    "seed": 1,
    "early_stopping": {
        "method": "asha",
        "min_steps": 1,
        "max_steps": 81,
        "eta": 3,
        "brackets": 1,
        "warmup_trials": 2,
        "folds": 1,
        "report_seconds": 2.0,
    },
    "payload": {"command": "true"},
    "resources": {
        "nodes": 1,
        "gpus_per_node": 0,
        "ranks_per_node": 1,
        "cores": 1,
        "memory_mb": 100,
        "minutes": 1.0,
        "trials_per_job": 1,
    },
    "site": {"profile": "grid"},
    "panda": {"priority": 900, "attempts": 3, "jobs_per_task": 10},
}


def _numbers(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return [place for key, inner in value.items() for place in _numbers(inner, (*path, key))]
    if isinstance(value, list):
        return [place for index, inner in enumerate(value) for place in _numbers(inner, (*path, index))]
    return [path] if isinstance(value, int | float) and not isinstance(value, bool) else []


PLACES = _numbers(DOCUMENT)

HUGE = st.one_of(
    st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**23, 10**400, -(2**63) - 1, 1e308, -1e308, 5e-324]),
    st.integers(),
    st.floats(),
)


def _changed(place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    document = json.loads(json.dumps(DOCUMENT))
    inner = document
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    return document  # type: ignore[no-any-return]


def _problems(document: dict[str, Any]) -> list[str]:
    found = examine_content(yaml.safe_dump(document).encode(), "search.yaml")
    return [str(problem) for problem in found.problems]


def test_the_document_is_right_as_it_is() -> None:
    assert _problems(DOCUMENT) == []


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PLACES), HUGE)
def test_no_number_is_too_much_for_the_check(place: tuple[str | int, ...], value: float) -> None:
    _problems(_changed(place, value))


#: Figures of merit, choices and the bounds of a real parameter are no counts.
COUNTS = [place for place in PLACES if place[:2] not in (("space", "x"), ("space", "c")) and place[-1] != "value"]


@pytest.mark.parametrize("place", COUNTS, ids=lambda place: ".".join(map(str, place)))
@pytest.mark.parametrize("value", [10**23, 10**400], ids=["10^23", "10^400"])
def test_a_count_beyond_its_maximum_is_refused_where_it_stands(place: tuple[str | int, ...], value: int) -> None:
    problems = _problems(_changed(place, value))
    assert any(str(place[-1]) in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("section", "most"),
    [
        ({"budget": {"trials": 1_000_000, "parallel": 27_648}}, True),
        ({"budget": {"trials": 100_000, "parallel": 27_648}, "folds": 5}, True),
        ({"budget": {"trials": 1_000_001}}, False),
        ({"budget": {"parallel": 100_001}}, False),
        ({"folds": 1000}, True),
        ({"folds": 1001}, False),
        ({"folds": {"k": 20_000}}, False),
        ({"folds": 1000, "budget": {"trials": 1000, "parallel": 150}}, True),
        ({"folds": 1000, "budget": {"trials": 1000, "parallel": 151}}, False),
        ({"folds": 1000, "budget": {"trials": 1000, "parallel": 100, "queued": 51}}, False),
        ({"folds": 50, "resources": {"trials_per_job": 200}}, True),
        ({"folds": 51, "resources": {"trials_per_job": 200}}, False),
        ({"confirm": {"top": 1000, "repeats": 1000}, "budget": {"trials": 1000}}, True),
        ({"confirm": {"top": 1001, "repeats": 1000}, "budget": {"trials": 1001}}, False),
    ],
)
def test_the_widest_search_that_makes_sense_fits(section: dict[str, Any], most: bool) -> None:
    document = {
        "search": "wide",
        "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
        "payload": {"command": "true"},
        "site": {"profile": "grid"},
        **section,
    }
    assert (_problems(document) == []) is most


@pytest.mark.parametrize(
    "more",
    [
        {"space": {f"x{i}": {"type": "real", "low": 0.0, "high": 1.0} for i in range(1001)}},
        {"space": {"c": {"type": "categorical", "choices": list(range(10_001))}}},
        {"constraints": ["x < 1"] * 1001},
        {"segments": [f"s{i}" for i in range(1001)]},
        {"objective": [{"metric": f"m{i}"} for i in range(11)]},
    ],
    ids=["parameters", "choices", "constraints", "segments", "objectives"],
)
def test_lists_have_a_longest_length(more: dict[str, Any]) -> None:
    document = {
        "search": "wide",
        "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
        "payload": {"command": "true"},
        **more,
    }
    with pytest.raises(SearchFileError, match="at most"):
        parse_search(yaml.safe_dump(document), "search.yaml")


def test_a_search_of_before_there_were_maxima_can_still_be_read() -> None:
    document = _changed(("folds", "k"), 1)
    search = Search.model_validate({**document, "folds": {"k": 2}}).to_dict()
    search["folds"]["k"], search["budget"]["trials"] = 20_000, 10_000_000
    search["budget"]["queued"] = 200_000
    found = read_stored(Search, search)
    assert (found.folds.k, found.budget.trials, found.budget.queued) == (20_000, 10_000_000, 200_000)
    assert found.to_dict() == search
    with pytest.raises(ValueError, match="trials"):
        read_stored(Search, {**search, "budget": {**search["budget"], "trials": 0}})


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HUGE, st.sampled_from(["cores", "memory_mb", "count", "hours", "gpus"]))
def test_site_and_queue_files_take_no_number_too_large(tmp_path: Any, value: float, key: str) -> None:
    site = {
        "site": "here",
        "nodes": {"cores": 4, "memory_mb": 1000, "count": 2},
    }
    site["nodes"] = {**site["nodes"], key: value}  # type: ignore[dict-item]
    path = tmp_path / "here.yaml"
    path.write_text(yaml.safe_dump(site))
    with contextlib.suppress(InputError):
        load_site(path)
    path.write_text(yaml.safe_dump({"queues": {"LOCAL": {key: value}}}))
    with contextlib.suppress(InputError):
        load_queues(path)
