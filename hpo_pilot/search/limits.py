"""Upper limits of the counts in a search file.

A larger count is a typing error, or takes too much from other users of the service. The limits leave room for the
widest searches that make sense: a million trials, or one trial on every GPU of the largest machines. The fields of the
models use them, so `schemas/search.json` has them too.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

# A whole search.
MOST_TRIALS = 1_000_000
MOST_PARALLEL = 100_000
MOST_FOLDS = 1_000
#: Jobs submitted and not yet over, at one time: each takes memory of the service.
MOST_JOBS_OUT = 150_000
MOST_REPEATS = 1_000
MOST_HOURS = 1_000_000
#: GPU-hours and core-hours: more than a year of the largest machines.
MOST_MACHINE_HOURS = 10**12

# One task.
MOST_JOBS_PER_TASK = 1_000
#: Folds in all jobs of one task.
MOST_RUNS_PER_TASK = 10_000
MOST_ATTEMPTS = 100
MOST_PRIORITY = 1_000_000

# One job.
MOST_TRIALS_PER_JOB = 200
MOST_NODES = 200_000
#: Cores, GPUs or ranks on one node.
MOST_PER_NODE = 10_000
MOST_MEMORY_MB = 100_000_000
MOST_MINUTES = 366 * 24 * 60

# Lists in a search file.
MOST_PARAMETERS = 1_000
MOST_CHOICES = 10_000
MOST_CONSTRAINTS = 1_000
MOST_POINTS = 100_000
MOST_INPUTS = 10_000
MOST_NAMES = 1_000
MOST_SEGMENTS = 1_000
MOST_OBJECTIVES = 10

# Optimizers and early stopping.
MOST_POPULATION = 100_000
MOST_REPORT_SECONDS = 1_000_000

_Model = TypeVar("_Model", bound=BaseModel)


def read_stored(model: type[_Model], data: Mapping[str, Any]) -> _Model:
    """Reads a stored `model`, which an earlier version without limits may have written: larger counts are kept.

    Raises:
        ValidationError: it has another mistake.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        document = copy.deepcopy(dict(data))
        mistakes = error.errors(include_url=False)
        beyond = {_place(data, one["loc"]): one for one in mistakes if one["type"] == "less_than_equal"}
        for place, mistake in beyond.items():
            _within(document, place[:-1])[place[-1]] = mistake["ctx"]["le"]
        found = model.model_validate(document)
        for place, mistake in beyond.items():
            found = _with(found, place, mistake["input"])
        return found


def _place(document: Any, location: Sequence[int | str]) -> tuple[str, ...]:
    """Returns the keys in pydantic's location, without the names of members of unions."""
    place: list[str] = []
    for part in location:
        if isinstance(document, Mapping) and part in document:
            place.append(str(part))
            document = document[part]
    return tuple(place)


def _within(document: Any, way: Sequence[str]) -> Any:
    for part in way:
        document = document[part]
    return document


def _with(model: _Model, place: Sequence[str], value: Any) -> _Model:
    """Returns `model` with an unchecked value at `place`."""
    inner = value if len(place) == 1 else _with(getattr(model, place[0]), place[1:], value)
    return model.model_copy(update={place[0]: inner})
