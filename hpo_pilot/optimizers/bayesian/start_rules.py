"""When the model has its say, apart from the model itself, so that pages can state it without loading its libraries."""

from __future__ import annotations

#: Good values without which there is no fit.
LEAST_VALUES = 3


def default_start_points(dimensions: int, trials: int | None) -> int:
    """How many start points a space and a budget ask for."""
    points = min(40, max(8, 2 * dimensions))
    return points if trials is None else max(1, min(points, trials // 3))
