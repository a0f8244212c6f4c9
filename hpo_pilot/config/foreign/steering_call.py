"""One call of a steering container: from the points so far to the next ones. Nothing is kept between calls.

The points follow from the seed and the file alone, so that a call may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpo_pilot.config.foreign.points_file import Model, PointsFile
from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers import Optimizer, create_optimizer
from hpo_pilot.optimizers.slip import slip_in
from hpo_pilot.search import Point, SearchSpace


@dataclass(frozen=True)
class SteeringCall:
    """What a call asks for.

    Attributes:
        count: how many new points at most, all models together.
        limit: how many points there may be in all, those of the file included; None: any number.
        optimizer: its name.
        settings: its settings.
        sign: +1 where a smaller loss is better, -1 where a larger one is.
        per_model: `count` is meant for each model.
    """

    count: int
    limit: int | None = None
    optimizer: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    sign: int = 1
    per_model: bool = False


def next_points(call: SteeringCall, file: PointsFile) -> list[Any]:
    """The next points, as the steering container's output file has them.

    There are fewer than asked for where the limit or the space has no more, and none at its end.

    Raises:
        InputError: there is no such optimizer or setting.
    """
    asked = [_Asked(call, model, limit) for model, limit in zip(file.models, _limits(call, file), strict=True)]
    wanted = call.count * (len(asked) if call.per_model else 1)
    while wanted > 0:
        open_models = [
            model for model in asked if model.room > 0 and (not call.per_model or len(model.new) < call.count)
        ]
        if not open_models:
            break
        # One by one to whoever has the fewest points, then asked for at once: a batch is better than its parts.
        shares = dict.fromkeys(range(len(open_models)), 0)
        for _ in range(wanted):
            able = [
                (model.model.count + len(model.new) + shares[index], index)
                for index, model in enumerate(open_models)
                if shares[index] < model.room_for(call)
            ]
            if not able:
                break
            shares[min(able)[1]] += 1
        for index, share in shares.items():
            wanted -= open_models[index].ask(share)
    return [
        [model.model.identity, point] if file.is_segmented else point
        for model in asked
        for point in map(model.model.space.shape.payload_point, model.new)
    ]


def _limits(call: SteeringCall, file: PointsFile) -> list[int | None]:
    """How many points each model may have: equal shares of the limit, as phpo multiplies it by their number."""
    if call.limit is None:
        return [None] * len(file.models)
    share, rest = divmod(call.limit, len(file.models))
    return [share + (index < rest) for index in range(len(file.models))]


class _Asked:
    """One model, while it is asked for points."""

    def __init__(self, call: SteeringCall, model: Model, limit: int | None) -> None:
        self.model = model
        self.new: list[Point] = []
        self._limit = limit
        self._exhausted = False
        self._optimizer = self._told(call)

    def _told(self, call: SteeringCall) -> Optimizer:
        space = SearchSpace.from_dict(self.model.space.dimensions, self.model.constraints)
        optimizer = create_optimizer(call.optimizer, space, seed=call.seed, settings=call.settings, trials=self._limit)
        results = [(point, call.sign * loss) for point, loss in self.model.results]
        # iDDS may hand over points of another space: they teach nothing, and stop nothing.
        optimizer.tell((point, value) for point, value in results if not slip_in(space, 1, point, value))
        return optimizer

    @property
    def room(self) -> int:
        """How many more points there may be."""
        if self._exhausted:
            return 0
        return 10**9 if self._limit is None else self._limit - self.model.count - len(self.new)

    def room_for(self, call: SteeringCall) -> int:
        """The same, where a call may limit it further."""
        return min(self.room, call.count - len(self.new)) if call.per_model else self.room

    def ask(self, count: int) -> int:
        """Takes up to `count` new points; returns how many."""
        if count <= 0:
            return 0
        try:
            points = self._optimizer.ask(count, [*self.model.pending, *self.new])
        except ExhaustedError:
            points = []
        self._exhausted = len(points) < count
        self.new += points
        return len(points)
