"""What an allocation's pilot asks its batch system, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.launchers.batch_commands import call

#: Runs a command of the batch system and gives what it prints.
Ask = Callable[[Sequence[str]], str]

_SECONDS = 60.0  # that a command may take


@dataclass(frozen=True)
class Given:
    """One node as the batch system names it; 0: it does not say how many CPUs, that is hardware threads, it gave."""

    name: str
    cpus: int = 0


class Batch(ABC):
    """One batch system, asked from inside a job of it."""

    #: The variable by which a job of it is known.
    variable: str

    def __init__(self, environment: Mapping[str, str], ask: Ask) -> None:
        self.environment, self.ask = environment, ask

    @property
    def job(self) -> str:
        """The identifier of the job."""
        return self.environment[self.variable]

    @abstractmethod
    def nodes(self) -> list[Given]:
        """The nodes for payloads, in the batch system's order.

        Raises:
            InputError: they are not known.
        """

    @abstractmethod
    def seconds_left(self, now: float) -> float:
        """Until the end of the job.

        Args:
            now: unix time.

        Raises:
            InputError: it is not known.
        """

    def lost(self) -> list[str]:
        """The nodes that the batch system has taken away since.

        Raises:
            InputError: it does not say.
        """
        return []

    #: Whether it may keep cores of the other nodes, where job steps ran when it took a node away: see `reclaim`.
    keeps_cores = False

    def reclaim(self, nodes: Sequence[str]) -> list[str]:
        """Those of some nodes that are wholly free again, after `lost`.

        Args:
            nodes: that may have cores which the batch system keeps.

        Raises:
            InputError: it does not say.
        """
        return list(nodes)

    def gpus_per_node(self) -> int:
        """As far as the environment says it; 0: it does not."""
        return 0

    def memory_mb(self) -> int:
        """Of each node, in MB, as far as the environment says it; 0: it does not."""
        return 0


def ask(words: Sequence[str]) -> str:
    """Runs a command.

    Raises:
        InputError: it does not work.
    """
    try:
        return call(words, seconds=_SECONDS).strip()
    except TryAgainError as error:
        raise InputError(str(error)) from error


def seconds_of(text: str) -> float:
    """[days-]hours:minutes[:seconds], or hours:minutes as LSF writes it, in seconds.

    Raises:
        ValueError: it is no such thing.
    """
    days, _, clock = text.rpartition("-")
    parts = [float(part) for part in clock.split(":")]
    if not 2 <= len(parts) <= 3:
        raise ValueError(f"{text!r} is no time such as 1:30:00")
    hours, minutes, seconds = (*parts, 0.0)[:3]
    return 86400 * float(days or 0) + 3600 * hours + 60 * minutes + seconds
