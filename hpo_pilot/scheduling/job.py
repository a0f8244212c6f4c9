"""Jobs as the scheduler sees them, and what becomes of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

from hpo_pilot.jobs.task import JobNeeds


@dataclass(frozen=True)
class Job:
    """A job that waits or runs.

    Attributes:
        key: what the caller knows it by; unique among those that wait or run.
        search: whose run times are like its own.
        needs: `minutes` is when it is ended if it still runs: the scheduler relies on it.
    """

    key: Hashable
    search: str
    needs: JobNeeds

    @property
    def limit(self) -> float:
        """Seconds that it may run."""
        return 60.0 * self.needs.minutes


class Ending(StrEnum):
    """Why a job runs no more."""

    FINISHED = "finished"  #: by itself, well: its run time is measured
    FAILED = "failed"  #: by itself, or at the limit of its minutes
    LOST = "lost"  #: a node was lost under it
    CUT = "cut"  #: the allocation came to its end, and what it did is gone
    CHECKPOINTED = "checkpointed"  #: the allocation came to its end, and another goes on where it was

    @property
    def is_useful(self) -> bool:
        """Whether the time that went into the job was used, not lost."""
        return self in (Ending.FINISHED, Ending.CHECKPOINTED)


@dataclass(frozen=True)
class Share:
    """What a job has on one node.

    Attributes:
        node: its name.
        gpus: their numbers, from 0.
        cores: their numbers among those that jobs may use, from 0.
    """

    node: str
    gpus: tuple[int, ...]
    cores: tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """A job that is to be started now, and where: its nodes in the order of the allocation."""

    job: Job
    shares: tuple[Share, ...]
