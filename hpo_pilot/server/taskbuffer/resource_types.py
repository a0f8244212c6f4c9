"""PanDA's resource types: names for jobs by cores, and by memory per core."""

from __future__ import annotations

#: MB per core above which the names end in _HIMEM.
HIGH_MEMORY = 2000

#: What the names mean, as PanDA's table of them says it; None: no bound. Memory in MB per core.
RESOURCE_TYPES: list[dict[str, str | int | None]] = [
    {"resource_name": "SCORE", "mincore": 1, "maxcore": 1, "minrampercore": None, "maxrampercore": HIGH_MEMORY},
    {"resource_name": "MCORE", "mincore": 2, "maxcore": None, "minrampercore": None, "maxrampercore": HIGH_MEMORY},
    {"resource_name": "SCORE_HIMEM", "mincore": 1, "maxcore": 1, "minrampercore": HIGH_MEMORY, "maxrampercore": None},
    {
        "resource_name": "MCORE_HIMEM",
        "mincore": 2,
        "maxcore": None,
        "minrampercore": HIGH_MEMORY,
        "maxrampercore": None,
    },
]


def resource_type(core_count: int, ram_mb: int) -> str:
    """PanDA's name for a job of this size."""
    name = "SCORE" if core_count <= 1 else "MCORE"
    return name if ram_mb <= core_count * HIGH_MEMORY else f"{name}_HIMEM"
