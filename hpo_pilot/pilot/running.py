"""The jobs whose commands run."""

from __future__ import annotations

import threading

from hpo_pilot.pilot.execution import Execution
from hpo_pilot.pilot.failure import JobFailure


class Running:
    """Known by PandaID; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_job: dict[int, Execution] = {}

    def add(self, execution: Execution) -> None:
        """It is about to start."""
        with self._lock:
            self._by_job[execution.job.panda_id] = execution

    def remove(self, execution: Execution) -> None:
        """It has ended."""
        with self._lock:
            del self._by_job[execution.job.panda_id]

    def all(self) -> list[Execution]:
        """Those of now."""
        with self._lock:
            return list(self._by_job.values())

    def stop(self, panda_id: int, failure: JobFailure) -> None:
        """Ends one, if it runs."""
        with self._lock:
            execution = self._by_job.get(panda_id)
        if execution is not None:
            execution.stop(failure)
