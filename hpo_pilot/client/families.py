"""A family: the searches of a file's segments, as one document of their sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from hpo_pilot.client.cost_documents import CostDocument
from hpo_pilot.client.documents import (
    OVER_SEARCHES,
    ProgressDocument,
    SearchDocument,
    StatusDocument,
    over_count,
    planned_count,
)
from hpo_pilot.client.outlook_documents import EtaDocument
from hpo_pilot.errors import InputError

#: A family's state is the first of these that one of its searches is in.
_STATES = ("running", "submitted", "stopping", "paused", "failed", "stopped", "done")

_Result = TypeVar("_Result")
_Record = TypeVar("_Record")


def family_document(name: str, members: Sequence[SearchDocument]) -> SearchDocument:
    """The sums of the searches of a family; they are in it, as `segments`. Its number is 0, for it has none."""
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
        "budget": {**first["budget"], "trials": sum(member["budget"]["trials"] for member in members)},
        "best": None,
        "over": sum(over_count(member) for member in members),
        "planned": sum(planned_count(member) for member in members),
        "confirmations": sum(member.get("confirmations", 0) for member in members),
        "steered": _all_steered([member.get("steered") for member in members]),
        "started": min((member["started"] for member in members if member["started"]), default=None),
        "ended": max(ends, default=None) if state in OVER_SEARCHES else None,
        "segments": list(members),
    }
    document.pop("front", None)  # that of one of them
    document.pop("remarks", None)
    return document


def family_cost(members: Sequence[CostDocument]) -> CostDocument:
    """What the searches of a family cost together; the energy where that of all is known."""
    energies = [member["energy_kwh"] for member in members]
    sources = {source for member in members if (source := member["energy_source"]) is not None}
    known = [energy for energy in energies if energy is not None]
    whole = len(known) == len(energies)
    return {
        "job_seconds": sum(member["job_seconds"] for member in members),
        "gpu_hours": sum(member["gpu_hours"] for member in members),
        "core_hours": sum(member["core_hours"] for member in members),
        "energy_kwh": sum(known) if whole else None,
        "energy_source": (min(sources, default=None) if len(sources) < 2 else "mixed") if whole else None,
    }


def family_progress(name: str, members: Sequence[ProgressDocument]) -> ProgressDocument:
    """How far the searches of a family are together; there is no best point of different models."""
    return {
        "id": 0,
        "name": name,
        "state": combined_state([member["state"] for member in members]),
        "message": "",
        "metric": members[0]["metric"],
        "trials": _summed([member["trials"] for member in members]),
        "over": sum(over_count(member) for member in members),
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


def latest_eta(members: Sequence[StatusDocument]) -> EtaDocument | None:
    """When the last of a family's running searches will be over; None while that cannot be told of one of them."""
    running = [member.get("eta") for member in members if member["state"] == "running"]
    known = [eta for eta in running if eta is not None]
    return max(known, key=lambda eta: eta["seconds"], default=None) if len(known) == len(running) else None


def _all_steered(members: Sequence[bool | None]) -> bool | None:
    """Whether all searches of a family that are not over are steered; None: all are over."""
    return None if all(member is None for member in members) else False not in members


def combined_state(states: Sequence[str]) -> str:
    """The state of a family, from those of its searches."""
    return next(state for state in _STATES if state in states)


def for_each(records: Sequence[_Record], change: Callable[[_Record], _Result]) -> list[_Result]:
    """Changes every search of a family whose state allows it.

    Raises:
        InputError: no search's state did.
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


def of_one_segment(name: str, members: Sequence[str]) -> InputError:
    """What is said where one search is wanted and a family was named."""
    return InputError(f"{name!r} is a family of {len(members)} searches: name one of {', '.join(members)}")


def _summed(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    states = sorted({state for count in counts for state in count})
    return {state: sum(count.get(state, 0) for count in counts) for state in states}


def segments_of(document: SearchDocument) -> list[SearchDocument]:
    """The searches of a family; of a search that is none, itself."""
    return cast("list[SearchDocument]", document.get("segments") or [document])
