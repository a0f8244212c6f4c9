"""A job whose inputs are on their way."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from hpo_pilot.pilot.failure import JobFailure
from hpo_pilot.pilot.job import Job
from hpo_pilot.pilot.progress import Progress


class Starting:
    """What the heartbeats tell of a job before its command runs.

    It may wait for nodes, and its inputs may take longer than a server waits.
    """

    phase = "starting"
    report_seconds = 0.0

    def __init__(self, job: Job, folder: Path, draining: threading.Event) -> None:
        """Begins. `draining`: is set when the pilot wants to end."""
        self.job = job
        self.progress = Progress(folder)
        self.started = time.time()
        self.failure: JobFailure | None = None
        self.draining = draining

    def stop(self, failure: JobFailure) -> None:
        """The server wants no more of it."""
        self.failure = failure

    def is_over(self) -> bool:
        """Whether its inputs are wanted no more."""
        return self.failure is not None or self.draining.is_set()
