"""The outlook of a search, as JSON documents: when it will be over, what failed last, how the best value went."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NotRequired

# pydantic makes the OpenAPI schemas of these; Python 3.11's own TypedDict tells it too little.
from typing_extensions import TypedDict

from hpo_pilot.client.time_text import time_text

if TYPE_CHECKING:
    from hpo_pilot.search.eta import Estimate
    from hpo_pilot.store import Wish
    from hpo_pilot.store.outlook import Failure


class EtaDocument(TypedDict):
    """When a running search will probably be over: seconds from now, the time, and by what that is judged."""

    seconds: float
    end: str
    basis: str


class FailureDocument(TypedDict):
    """A failed trial, and why it failed."""

    trial: int
    error: str
    ended: str | None


class WishDocument(TypedDict):
    """A point that a user asked for and that is not out yet; `retries` is the failed trial that had it, if one had."""

    point: dict[str, Any]
    retries: int | None
    who: str
    created: str | None


class OutlookDocument(TypedDict):
    """What people look at while a search runs.

    `eta` is null while nobody can tell, and where the search does not run or nothing steers it. `last_failure` is the
    failed trial that ended last. `course` is the best value after each of at
    most 60 results, evenly apart; null with several objectives. `optimizer_state` says in words what the optimizer is
    at, and `monitor` is the address of the search's tasks at the monitor of its PanDA server, where it has one.
    `hours_used` is how many of the budget's hours are over; null before its start.
    """

    eta: NotRequired[EtaDocument | None]
    last_failure: NotRequired[FailureDocument | None]
    course: NotRequired[list[float] | None]
    wishes: NotRequired[list[WishDocument]]
    optimizer_state: NotRequired[str | None]
    monitor: NotRequired[str | None]
    hours_used: NotRequired[float | None]


def eta_document(estimate: Estimate, now: float) -> EtaDocument:
    """An estimate that was made at `now`, in seconds since the epoch."""
    return {
        "seconds": round(estimate.seconds, 1),
        "end": datetime.fromtimestamp(now + estimate.seconds, UTC).isoformat(timespec="seconds"),
        "basis": estimate.basis,
    }


def failure_document(failure: Failure) -> FailureDocument:
    """A failed trial."""
    ended = None if failure.ended is None else datetime.fromtimestamp(failure.ended, UTC)
    return {"trial": failure.trial, "error": failure.error, "ended": time_text(ended)}


def wish_document(wish: Wish) -> WishDocument:
    """One point that waits."""
    return {"point": wish.point, "retries": wish.retries, "who": wish.who, "created": time_text(wish.created)}
