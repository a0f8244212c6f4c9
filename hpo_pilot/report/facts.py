"""What a report says beside the search and its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class ReportFacts:
    """How a search ran: what its trials do not tell.

    Attributes:
        started: when the search began; None if it has not.
        ended: when it ended; None while it runs.
        state: the search's state, in the word that commands show.
        message: why it is in that state, for people; empty where there is nothing to say.
        command: the command line that ran it, to copy.
        versions: software by name, for example ``{"hpo-pilot": "0.1.0", "Python": "3.11.7"}``.
        job_seconds: run time of all jobs, attempts that were lost or repeated included, in seconds.
        gpu_hours: run time of all jobs times their GPUs, in hours.
        store: where the search is kept, for people; without passwords.
        earlier: what the search has from each of the earlier ones, in words.
        remarks: what a reader should know, in words.
    """

    started: datetime | None = None
    ended: datetime | None = None
    state: str = ""
    message: str = ""
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    job_seconds: float = 0.0
    gpu_hours: float = 0.0
    store: str = ""
    earlier: Sequence[str] = ()
    remarks: Sequence[str] = ()
