"""What a server allows, and for how long it keeps what is over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Set by whoever runs the server.

    Attributes:
        most_active_tasks: how many tasks of one user may be active; 0: any number.
        retention_days: how long tasks that are over, their outputs and unused sandboxes are kept; 0: for ever.
    """

    most_active_tasks: int = 0
    retention_days: float = 365.0
