"""The interface to a batch system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import ClassVar

from hpo_pilot.batch.allocation_spec import AllocationSpec
from hpo_pilot.batch.batch_job import BatchJob
from hpo_pilot.batch.job_script import script_of


class BatchSystem(ABC):
    """One batch system, as its own commands on this machine reach it.

    Every call raises InputError where those commands are missing, and TryAgainError where they fail or do not answer:
    what they were to do may then have happened or not, and is to be looked up before it is repeated.
    """

    #: Its name in site profiles.
    name: ClassVar[str]

    #: How lines of a script begin that are for the batch system.
    mark: ClassVar[str]

    def script(self, spec: AllocationSpec) -> str:
        """The job script, exactly as `submit` submits it.

        Raises:
            InputError: this batch system cannot give what is asked for.
        """
        options = [*self.options(spec), *spec.site.batch.options]
        return script_of(spec, [f"{self.mark} {option}" for option in options])

    @abstractmethod
    def options(self, spec: AllocationSpec) -> list[str]:
        """What the script says to the batch system, a line each, but for the profile's own."""

    @abstractmethod
    def submit(self, spec: AllocationSpec, *, lock: int | None = None) -> str:
        """Submits the script that lies in `spec.script_file`.

        Args:
            spec: what it is for.
            lock: a file descriptor that whatever submits holds too: as long as it might still succeed, the lock
                behind it is held, even if this process is killed.

        Returns:
            The job's id.
        """

    @abstractmethod
    def jobs(self) -> dict[str, BatchJob]:
        """The jobs of this user by their ids: those that wait and run, and of those that are over the latest ones."""

    def earlier(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """What became of jobs that `jobs` tells no more, where the batch system keeps books and lets us look."""
        return {}

    @abstractmethod
    def cancel(self, ids: Collection[str]) -> None:
        """Ends jobs, or has them never start; those that are over stay as they are."""
