"""A job as its batch system shows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BatchState(StrEnum):
    """What a batch job does, in the words of none of the batch systems."""

    WAITING = "waiting"  #: could start as soon as there are nodes
    HELD = "held"  #: cannot start yet: held, after its time, or beyond a limit of jobs that may be eligible
    RUNNING = "running"  #: has its nodes
    ENDED = "ended"  #: its script ended with status 0, or how it ended is not known any more
    TIMED_OUT = "timed out"  #: the walltime was over
    CANCELLED = "cancelled"  #: on request
    FAILED = "failed"  #: its script ended otherwise, or a node did

    @property
    def is_over(self) -> bool:
        """True where it has its nodes no more and never will."""
        return self in _OVER

    @property
    def is_pending(self) -> bool:
        """True where it waits for its nodes."""
        return self in (BatchState.WAITING, BatchState.HELD)


_OVER = frozenset({BatchState.ENDED, BatchState.TIMED_OUT, BatchState.CANCELLED, BatchState.FAILED})


@dataclass(frozen=True)
class BatchJob:
    """One job of this user, whoever submitted it.

    Attributes:
        id: the batch system's.
        name: as it was submitted.
        state: what it does.
        queue: the queues, partitions or QOS that it counts in; some batch systems have two sorts at once.
        reason: why, in the batch system's words; empty: it says nothing.
    """

    id: str
    name: str
    state: BatchState
    queue: tuple[str, ...] = ()
    reason: str = ""
