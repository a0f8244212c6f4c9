"""An allocation that this work folder submitted, and what became of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from hpo_pilot.batch.batch_job import BatchState

#: In an allocation's folder.
OUTPUT_FILE = "output.log"


@dataclass(frozen=True)
class Allocation:
    """One of ours; times are in seconds since the epoch.

    Attributes:
        name: of the batch job; unique.
        site: the profile's name.
        system: the batch system's name.
        nodes: how many.
        minutes: the walltime.
        server: the PanDA server that its pilot asks.
        panda_queue: the PanDA queue that its pilot serves.
        queue: the batch queue; None: the batch system's own.
        folder: where script and output are.
        kept: whether `pilots keep` submitted it.
        submitted: when.
        job_id: the batch system's; None: it is being submitted.
        state: what it does; None: it is being submitted.
        reason: why, in the batch system's words.
        started: when it was first seen running; None: never yet.
        changed: when `state` was first seen.
        missing: since when the batch system does not show it, which may be a mistake for a moment; None: it does.
    """

    name: str
    site: str
    system: str
    nodes: int
    minutes: int
    server: str
    panda_queue: str
    queue: str | None
    folder: str
    kept: bool
    submitted: float
    job_id: str | None = None
    state: BatchState | None = None
    reason: str = ""
    started: float | None = None
    changed: float = 0.0
    missing: float | None = None

    @property
    def output(self) -> Path:
        """What its script and pilot said."""
        return Path(self.folder) / OUTPUT_FILE

    @property
    def is_over(self) -> bool:
        """Whether it has its nodes no more and never will."""
        return self.state is not None and self.state.is_over

    def now(self, state: BatchState, reason: str, at: float) -> Allocation:
        """The same as the batch system shows it now."""
        started = at if self.started is None and state is BatchState.RUNNING else self.started
        changed = at if state is not self.state else self.changed
        return replace(self, state=state, reason=reason, started=started, changed=changed)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def read(cls, document: dict[str, Any]) -> Allocation:
        """From JSON; keys that a later version may have added are left out.

        Raises:
            TypeError: a key is missing.
            ValueError: there is no such state.
        """
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in document.items() if key in known}
        state = values.get("state")
        return cls(**{**values, "state": BatchState(state) if state is not None else None})
