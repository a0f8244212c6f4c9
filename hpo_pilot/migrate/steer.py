"""Proposes the next points for a steering container of phpo or iDDS; keeps nothing between calls."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from hpo_pilot.errors import ExhaustedError, InputError, TryAgainError
from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.migrate.spaces import ForeignSpace, read_space
from hpo_pilot.optimizers import Optimizer, create_optimizer
from hpo_pilot.optimizers.base import find_mistake
from hpo_pilot.search import Point, SearchSpace
from hpo_pilot.search.mistakes import FieldPath
from hpo_pilot.search.values import show

# One call of a steering container: from the points so far to the next ones. Nothing is kept between calls.
#
# The points follow from the seed and the file alone, so that a call may be repeated.


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
        optimizer.tell((point, value) for point, value in results if not find_mistake(space, 1, point, value))
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


# The file that iDDS hands to a steering container: the points so far, their losses, the search space.
#
# `{"points": [[{hp}, loss or null], …], "opt_space": …}`; in segmented tasks a point is `[model_id, {hp}]`, and the
# space
# `[{"model_id": …, "search_space": …}, …]`. A loss of 0.0 is a result, null a point that is out.

#: Keys under which a space stands in files that have more than a space: projects, requests, search files.
_SPACE_KEYS = ("search_space", "opt_space", "space")


@dataclass
class Model:
    """What is known of one model; a task that is not segmented has one.

    Attributes:
        identity: its model_id; None in a task that is not segmented.
        results: (point, loss) in the file's order, in the search's own terms; a loss that is not finite says that the
            point failed.
        pending: the points without a loss.
        count: how many points the file has of it.
    """

    identity: Any
    space: ForeignSpace
    constraints: tuple[str, ...] = ()
    results: list[tuple[Point, float]] = field(default_factory=list)
    pending: list[Point] = field(default_factory=list)
    count: int = 0


@dataclass(frozen=True)
class PointsFile:
    """What a steering container is told.

    Attributes:
        models: in the order of the space; one, with no identity, in a task that is not segmented.
        warnings: points that say nothing about the space.
    """

    models: list[Model]
    is_segmented: bool
    warnings: list[str]


def read_points(path: FilePath | None, space_path: FilePath | None) -> PointsFile:
    """Reads the file.

    Args:
        path: the file; None: there are no points yet.
        space_path: a file with the search space, for where the points' file has none or another; None: none.

    Raises:
        InputError: a file is wrong; the message has every mistake.
    """
    document = {"points": [], "opt_space": None} if path is None else _loaded(path)
    file = ForeignFile.of(document, "the points" if path is None else str(path), FilePath())
    if not isinstance(document, dict) or not isinstance(document.get("points"), list):
        raise InputError(f'{file.name}: must be {{"points": [[{{…}}, loss or null], …], "opt_space": …}}')
    models = _models(file, document.get("opt_space"), space_path)
    file.check()
    by_identity = {json.dumps(model.identity): model for model in models}
    segmented = models[0].identity is not None
    for index, item in enumerate(document["points"]):
        _take(file, ("points", index), item, by_identity, segmented)
    file.check()
    return PointsFile(models, segmented, [str(warning) for warning in file.warnings])


def _loaded(path: FilePath) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except OSError as error:
        raise TryAgainError(f"cannot read {path}: {error.strerror}") from error
    except RecursionError as error:
        raise InputError(f"{path}: is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from error


def _models(file: ForeignFile, opt_space: Any, space_path: FilePath | None) -> list[Model]:
    path: FieldPath = ("opt_space",)
    source = file
    search_file: dict[str, Any] = {}
    if space_path is not None:
        source = ForeignFile.read(space_path)
        source.check()
        path, opt_space, search_file = _space_in(source.value)
    if opt_space is None:
        raise InputError(f"{file.name}: opt_space is missing, and no --space names a file with the search space")
    if not isinstance(opt_space, list):
        models = [_with_search_file(Model(None, read_space(source, path, opt_space)), search_file)]
    else:
        models = [model for index, item in enumerate(opt_space) if (model := _model(source, (*path, index), item))]
        if not opt_space:
            source.wrong(path, "is an empty list: there is no model")
        seen: set[str] = set()
        for index, model in enumerate(models):
            if json.dumps(model.identity) in seen:
                source.wrong((*path, index, "model_id"), f"{show(model.identity)} is another model's too")
            seen.add(json.dumps(model.identity))
    source.check()
    source.warnings.clear()  # how a space is read was said when its task was made: here it comes up with every call
    return models


def _space_in(document: Any) -> tuple[FieldPath, Any, dict[str, Any]]:
    """The space in a document that may be one, or have one: where it is, the space, and the search file it is in."""
    for key in _SPACE_KEYS if isinstance(document, dict) else ():
        inside = document.get(key)
        if isinstance(inside, list) or (isinstance(inside, dict) and not {"method", "type"} & inside.keys()):
            return (key,), inside, document if key == "space" else {}
    return (), document, {}


def _with_search_file(model: Model, search_file: dict[str, Any]) -> Model:
    """The model with what a search file says of its space beside the dimensions."""
    constraints = search_file.get("constraints")
    if isinstance(constraints, list):
        model.constraints = tuple(str(constraint) for constraint in constraints)
    payload = search_file.get("payload")
    shape = payload.get("point") if isinstance(payload, dict) else None
    if isinstance(shape, dict):
        for name in ("fixed", "arrays", "values"):
            getattr(model.space, name).update(shape.get(name) or {})
    return model


def _model(file: ForeignFile, path: FieldPath, item: Any) -> Model | None:
    found = file.mapping(path, item, "must be {model_id, search_space}")
    if found is None:
        return None
    for key in ("model_id", "search_space"):
        if found.get(key) is None:
            file.wrong((*path, key), "is missing", at_key=True)
            return None
    return Model(found["model_id"], read_space(file, (*path, "search_space"), found["search_space"]))


def _take(file: ForeignFile, path: FieldPath, item: Any, models: dict[str, Model], segmented: bool) -> None:
    if not (isinstance(item, list) and len(item) == 2):
        file.wrong(path, f"must be [point, loss or null], not {show(item)}")
        return
    payload_point, loss = item
    identity = None
    if segmented:
        if not (isinstance(payload_point, list) and len(payload_point) == 2):
            file.wrong((*path, 0), f"must be [model_id, point] in a segmented task, not {show(payload_point)}")
            return
        identity, payload_point = payload_point
    if not isinstance(payload_point, dict):
        file.wrong((*path, 0), f"must be a mapping of names to values, not {show(payload_point)}")
        return
    model = models.get(json.dumps(identity))
    if model is None:
        file.wrong((*path, 0), f"{show(identity)} is not the model_id of any search space")
        return
    if loss is not None and (isinstance(loss, bool) or not isinstance(loss, int | float)):
        file.wrong((*path, 1), f"must be a number or null, not {show(loss)}")
        return
    model.count += 1
    try:
        point = model.space.shape.search_point(payload_point)
    except ValueError as error:
        file.warn(path, f"teaches nothing, for it has another shape than the space: {error}")
        return
    if loss is None:
        model.pending.append(point)
    else:
        model.results.append((point, _finite(loss)))


def _finite(loss: float) -> float:
    try:
        return float(loss)
    except OverflowError:  # a whole number beyond the floats
        return math.inf
