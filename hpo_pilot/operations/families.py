"""Families: the searches of one file with segments, as one search; the sums of their documents, and common changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from hpo_pilot.errors import InputError
from hpo_pilot.report.documents import OVER_SEARCHES, EtaDocument, ProgressDocument, SearchDocument, StatusDocument
from hpo_pilot.report.trial_documents import CostDocument

#: The state of a family is the first of these that one of its searches has.
_STATES = ("running", "submitted", "stopping", "paused", "failed", "stopped", "done")

_Result = TypeVar("_Result")
_Record = TypeVar("_Record")


def family_document(name: str, members: Sequence[SearchDocument]) -> SearchDocument:
    """Returns the document of a family: the sums over its searches, which are in `segments`; its number is 0."""
    first = members[0]
    state = combined_state([member["state"] for member in members])
    ends = [member["ended"] for member in members if member["ended"]]
    document: SearchDocument = {
        **first,
        "id": 0,
        "name": name,
        "state": state,
        "message": "; ".join(f"{member['name']}: {member['message']}" for member in members if member["message"]),
        "family": None,
        "trials": _summed([member["trials"] for member in members]),
        "budget": {**first["budget"], **_summed_budget([member["budget"] for member in members])},
        "best": None,
        "over": sum(member["over"] for member in members),
        "planned": sum(member["planned"] for member in members),
        "confirmations": sum(member["confirmations"] for member in members),
        "steered": _all_steered([member.get("steered") for member in members]),
        "started": min((member["started"] for member in members if member["started"]), default=None),
        "ended": max(ends, default=None) if state in OVER_SEARCHES else None,
        "segments": list(members),
    }
    document.pop("front", None)  # it belongs to the first search
    document.pop("remarks", None)
    return document


def _family_cost(members: Sequence[CostDocument]) -> CostDocument:
    """Returns the total cost of the searches of a family; energy and emissions are null unless known for all."""
    energy = _sum_if_known([member["energy_kwh"] for member in members])
    sources = {source for member in members if (source := member["energy_source"]) is not None}
    return {
        "job_seconds": sum(member["job_seconds"] for member in members),
        "gpu_hours": sum(member["gpu_hours"] for member in members),
        "core_hours": sum(member["core_hours"] for member in members),
        "energy_kwh": energy,
        "energy_source": None if energy is None else min(sources, default=None) if len(sources) < 2 else "mixed",
        "co2_kg": _sum_if_known([member["co2_kg"] for member in members]),
    }


def _sum_if_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _summed_budget(budgets: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the sums of the amounts that all searches share; null if one of them has no limit."""
    names = ("trials", "gpu_hours", "core_hours", "fidelity")
    return {name: _sum_if_known([one.get(name) for one in budgets]) for name in names if name in budgets[0]}


def family_progress(name: str, members: Sequence[ProgressDocument]) -> ProgressDocument:
    """Returns the progress of a family; it has no best point, because its searches train different models."""
    return {
        "id": 0,
        "name": name,
        "state": combined_state([member["state"] for member in members]),
        "message": "",
        "metric": members[0]["metric"],
        "trials": _summed([member["trials"] for member in members]),
        "over": sum(member["over"] for member in members),
        "total": sum(member["total"] for member in members),
        "best": None,
        "remarks": [f"{member['name']}: {remark}" for member in members for remark in member.get("remarks", ())],
        "steered": _all_steered([member.get("steered") for member in members]),
        "failures": [
            {**failure, "error": f"{failure['error']} ({member['name']})"}
            for member in members
            for failure in member.get("failures", ())
        ],
    }


def family_status(name: str, members: Sequence[StatusDocument]) -> StatusDocument:
    """Returns all that is known of a family; what belongs to one search alone is null."""
    return {
        **family_document(name, members),
        "remarks": [f"{one['name']}: {remark}" for one in members for remark in one.get("remarks", ())],
        "job_seconds": sum(member["job_seconds"] for member in members),
        "gpu_hours": sum(member["gpu_hours"] for member in members),
        "wishes": [wish for member in members for wish in member.get("wishes", ())],
        "eta": _latest_eta(members),
        "cost": _family_cost([member["cost"] for member in members]),
        "source": members[0]["source"],
        "definition": members[0]["definition"],
        "gain": None,
        "last_failure": None,
        "course": None,
        "optimizer_state": None,
        "monitor": None,
        "hours_used": None,
    }


def _latest_eta(members: Sequence[StatusDocument]) -> EtaDocument | None:
    """Returns the latest estimated end of a family's running searches; None if one of them has no estimate."""
    running = [member.get("eta") for member in members if member["state"] == "running"]
    known = [eta for eta in running if eta is not None]
    return max(known, key=lambda eta: eta["seconds"], default=None) if len(known) == len(running) else None


def _all_steered(members: Sequence[bool | None]) -> bool | None:
    """Tells whether all searches of a family that are not over are steered; None: all are over."""
    return None if all(member is None for member in members) else False not in members


def combined_state(states: Sequence[str]) -> str:
    """Returns the state of a family from the states of its searches."""
    return next(state for state in _STATES if state in states)


def for_each(records: Sequence[_Record], change: Callable[[_Record], _Result]) -> list[_Result]:
    """Changes every search of a family whose state allows it.

    Raises:
        InputError: the state of no search allows it.
    """
    results: list[_Result] = []
    refusal: InputError | None = None
    for record in records:
        try:
            results.append(change(record))
        except InputError as error:
            refusal = error
    if not results and refusal is not None:
        raise refusal
    return results


def _summed(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    states = sorted({state for count in counts for state in count})
    return {state: sum(count.get(state, 0) for count in counts) for state in states}


def segments_of(document: SearchDocument) -> list[SearchDocument]:
    """Returns the searches of a family; a search that is not a family is returned alone."""
    return cast("list[SearchDocument]", document.get("segments") or [document])
