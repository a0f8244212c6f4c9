"""The sums of a family's searches."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.operations.families import combined_state, family_document, family_status, for_each
from hpo_pilot.report.documents import SearchDocument


def member(name: str, state: str, **more: Any) -> SearchDocument:
    document = {"id": 1, "name": name, "state": state, "message": "", "owner": "me", "family": "demo", "trials": {}}
    document |= {"budget": {"trials": 5, "parallel": 2}, "best": {"number": 1}, "started": None, "ended": None}
    document |= {"over": sum(more.get("trials", {}).values()), "planned": 5, "confirmations": 0, "steered": True}
    return cast(SearchDocument, {**document, **more})


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["done", "running"], "running"),
        (["submitted", "paused"], "submitted"),
        (["paused", "done"], "paused"),
        (["done", "failed"], "failed"),
        (["done", "stopped"], "stopped"),
        (["done", "done"], "done"),
    ],
)
def test_the_state(states: list[str], expected: str) -> None:
    assert combined_state(states) == expected


def test_the_sums() -> None:
    arm = member("demo-arm", "done", trials={"finished": 3, "failed": 1}, started="2026-01-02", ended="2026-01-03")
    arm["budget"] |= {"gpu_hours": 3.0, "fidelity": None}
    leg = member("demo-leg", "running", trials={"finished": 1, "running": 2}, started="2026-01-01", message="slow")
    leg["budget"] |= {"gpu_hours": 4.0, "fidelity": 9.0}
    both = family_document("demo", [arm, leg])
    assert both["trials"] == {"failed": 1, "finished": 4, "running": 2}
    assert both["budget"] == {"trials": 10, "parallel": 2, "gpu_hours": 7.0, "fidelity": None}
    assert (both["id"], both["best"], both["ended"], both["started"]) == (0, None, None, "2026-01-01")
    assert both["message"] == "demo-leg: slow"
    assert both["segments"] == [arm, leg]
    assert family_document("demo", [arm, arm])["ended"] == "2026-01-03"


@pytest.mark.parametrize(
    ("energies", "sources", "energy", "source"),
    [
        ((2.0, 3.0), ("measured", "measured"), 5.0, "measured"),
        ((2.0, 3.0), ("measured", "profile"), 5.0, "mixed"),
        ((2.0, None), ("measured", None), None, None),  # a part is not the whole
    ],
)
def test_the_cost(energies: Any, sources: Any, energy: float | None, source: str | None) -> None:
    rest = {"job_seconds": 60.0, "gpu_hours": 0.5, "core_hours": 4.0, "source": "demo.yaml", "definition": {}}
    members = [
        member("demo-arm", "done", cost={**rest, "energy_kwh": one, "energy_source": how, "co2_kg": one}, **rest)
        for one, how in zip(energies, sources, strict=True)
    ]
    cost = family_status("demo", cast(Any, members))["cost"]
    hours = {"job_seconds": 120.0, "gpu_hours": 1.0, "core_hours": 8.0}
    assert cost == {**hours, "energy_kwh": energy, "energy_source": source, "co2_kg": energy}


def test_what_one_search_does_not_allow_the_others_may() -> None:
    def change(number: int) -> int:
        if number < 2:
            raise InputError(f"not {number}")
        return number

    assert for_each([0, 1, 2, 3], change) == [2, 3]
    with pytest.raises(InputError, match="not 1"):
        for_each([0, 1], change)
