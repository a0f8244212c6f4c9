"""What jobs run on, shared out: the interface of a machine and of an allocation."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from hpo_pilot.pilot.gpus import Gpu
from hpo_pilot.pilot.job import Job
from hpo_pilot.pilot.starting import Starting
from hpo_pilot.scheduling import Ending, Wish
from hpo_pilot.transformation.payload_document import PayloadDocument


@dataclass(frozen=True)
class Free:
    """What may be offered to the server.

    Attributes:
        slots: jobs that may start.
        cores: that they may have together.
        gpus: that they may have together; of several nodes, on one of them.
        patience: for how many seconds at most the offer should stand. Jobs that end meanwhile make room for larger
            ones than those that it covers.
        wish: of an allocation, what fits where; a server that does not understand it goes by the rest.
    """

    slots: int
    cores: int
    gpus: tuple[Gpu, ...]
    patience: float = math.inf
    wish: Wish | None = None


@dataclass(frozen=True)
class Seat:
    """What one job has, until it is given back.

    Attributes:
        nodes: by name, in the order in which ranks are counted.
        variables: of its environment, where they follow from its share.
        cores: on each node.
        gpus: which ones of each node, as a `*_VISIBLE_DEVICES` names them.
        memory_mb: on each node; 0: not said.
        allocation: all nodes of the allocation; empty: there is none.
        seconds: that the job may take; 0: not said.
    """

    nodes: tuple[str, ...]
    variables: Mapping[str, str]
    cores: int
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    memory_mb: int = 0
    allocation: tuple[str, ...] = ()
    seconds: int = 0


class Claim:
    """One job's place in a room, from its coming to its end."""


C = TypeVar("C", bound=Claim)


class Room(ABC, Generic[C]):
    """What jobs run on. Any thread may call any method.

    A job is claimed for as soon as it comes; `enter` lets its sandbox come, `take` gives it what it runs on, and
    `give_back` ends the claim, however far it came.
    """

    #: How many jobs it may have at a time.
    most: int

    @abstractmethod
    def wait_for_some(self, stop: threading.Event) -> Free:
        """What is free, as soon as a job could start, or `stop` is set and `wake` called."""

    @abstractmethod
    def claim(self, data: Mapping[str, Any]) -> C:
        """A place for a job that came, by the server's dictionary of it."""

    @abstractmethod
    def enter(self, claim: C, stop: threading.Event) -> bool:
        """Waits until the job's sandbox may be unpacked; False: `stop` was set first."""

    @abstractmethod
    def take(self, claim: C, job: Job, document: PayloadDocument, starting: Starting) -> Seat:
        """Waits for what the job needs.

        Args:
            claim: the job's.
            job: itself.
            document: of its payload.
            starting: says whether the job is still wanted.

        Raises:
            JobFailure: it will not get it here.
        """

    @abstractmethod
    def give_back(self, claim: C, ending: Ending = Ending.FAILED) -> None:
        """Ends a claim; nothing of the job runs any more."""

    def note_launch(self, claim: C, failed: Collection[str] | None, lost: Collection[str] = ()) -> None:
        """A job was launched.

        Args:
            claim: the job's.
            failed: None: its ranks were started; else the launcher failed, and blames these nodes, or none.
            lost: those of them that the batch system has taken away, by the launcher's word.
        """
        return

    def note_staging(self, claim: C, seconds: float) -> None:
        """So long a job waited for copies on its nodes: no measure of how long others of its search will run."""
        return

    @abstractmethod
    def wake(self) -> None:
        """Lets those who wait look at their `stop`."""
