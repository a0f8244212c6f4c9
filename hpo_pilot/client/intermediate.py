"""What trials reported while they ran, as JSON documents; see `hpo_pilot.client.documents`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from hpo_pilot.store import Store

#: A step and the value there; null where that was no finite number.
StepValue = tuple[int, float | None]


class FoldCurveDocument(TypedDict):
    """What one fold reported, in the order of steps: pairs of a step and the value there, null for no finite number."""

    fold: int
    values: list[StepValue]


class IntermediateDocument(TypedDict):
    """What one trial reported while it ran; trials that reported nothing have no such document."""

    number: int
    folds: list[FoldCurveDocument]


def intermediate_documents(
    store: Store, search_id: int, after: int, limit: int
) -> tuple[list[IntermediateDocument], int | None]:
    """What those of the `limit` trials after number `after` reported that did, and where the next ones begin.

    Returns:
        The documents by number, and the number after which the others come; None where no later trial has reported.
    """
    from hpo_pilot.store.tallies import last_reporting  # noqa: PLC0415 - a client of a service has no store

    values = store.intermediate_values(search_id, range(after + 1, after + limit + 1))
    last = last_reporting(store.engine, search_id)
    found: list[IntermediateDocument] = [
        {
            "number": number,
            "folds": [
                {"fold": fold, "values": [(step, value if math.isfinite(value) else None) for step, value in curve]}
                for fold, curve in sorted(folds.items())
            ],
        }
        for number, folds in sorted(values.items())
    ]
    return found, after + limit if last > after + limit else None


def all_intermediate(store: Store, search_id: int, page: int = 500) -> list[IntermediateDocument]:
    """What all trials of a search reported, by number; asked `page` trials at a time, for databases limit a list."""
    found: list[IntermediateDocument] = []
    after: int | None = 0
    while after is not None:
        some, after = intermediate_documents(store, search_id, after, page)
        found += some
    return found


def mean_curve(document: IntermediateDocument) -> list[tuple[int, float]]:
    """The means over a trial's folds at the steps that all those folds reported; not-a-number where one has none."""
    at: dict[int, list[float]] = {}
    for fold in document["folds"]:
        for step, value in fold["values"]:
            at.setdefault(step, []).append(math.nan if value is None else value)
    folds = len(document["folds"])
    return [(step, sum(one / folds for one in values)) for step, values in sorted(at.items()) if len(values) == folds]
