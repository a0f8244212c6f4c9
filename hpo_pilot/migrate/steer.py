"""Proposes the next points for a steering container of phpo or iDDS.

Nothing is kept between calls: the points depend only on the seed and the file, so a call can be repeated.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from hpo_pilot.errors import ExhaustedError, InputError, TryAgainError
from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.migrate.spaces import ForeignSpace, read_space
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.base import Optimizer, find_mistake
from hpo_pilot.search import Point, SearchSpace
from hpo_pilot.search.mistakes import FieldPath
from hpo_pilot.search.values import show


@dataclass(frozen=True)
class SteeringCall:
    """One call of a steering container.

    Attributes:
        count: largest number of new points of all models together.
        limit: largest number of points in all, including the points of the file; None: no limit.
        optimizer: name of the optimizer.
        settings: settings of the optimizer.
        sign: +1 where a smaller loss is better, -1 where a larger one is.
        per_model: `count` is the number for each model.
    """

    count: int
    limit: int | None = None
    optimizer: str = "auto"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    sign: int = 1
    per_model: bool = False


def next_points(call: SteeringCall, file: PointsFile) -> list[Any]:
    """Returns the next points in the form of the steering container's output file.

    There are fewer points than `count` where the limit or the space is exhausted, and none at the end.

    Raises:
        InputError: the optimizer or a setting is unknown.
    """
    asked = [_Asked(call, model, limit) for model, limit in zip(file.models, _limits(call, file), strict=True)]
    wanted = call.count * (len(asked) if call.per_model else 1)
    while wanted > 0:
        # Each point goes to the model with the fewest points. Each model is asked once for all its points: optimizers
        # choose a batch better than one point at a time.
        shares: Counter[_Asked] = Counter()
        for _ in range(wanted):
            able = [model for model in asked if shares[model] < model.room]
            if not able:
                break
            shares[min(able, key=lambda model: model.model.count + len(model.new) + shares[model])] += 1
        if not shares:
            break
        wanted -= sum(model.ask(share) for model, share in shares.items())
    return [
        [model.model.identity, point] if file.is_segmented else point
        for model in asked
        for point in map(model.model.space.shape.payload_point, model.new)
    ]


def _limits(call: SteeringCall, file: PointsFile) -> list[int | None]:
    """Returns the limit of each model: equal shares, because phpo multiplies the limit by the number of models."""
    if call.limit is None:
        return [None] * len(file.models)
    share, rest = divmod(call.limit, len(file.models))
    return [share + (index < rest) for index in range(len(file.models))]


class _Asked:
    """One model with its optimizer and its new points."""

    def __init__(self, call: SteeringCall, model: Model, limit: int | None) -> None:
        self.model = model
        self.new: list[Point] = []
        self._limit = limit
        self._most = call.count if call.per_model else 10**9
        self._exhausted = False
        self._optimizer = self._told(call)

    def _told(self, call: SteeringCall) -> Optimizer:
        space = SearchSpace.from_dict(self.model.space.dimensions, self.model.constraints)
        optimizer = create_optimizer(call.optimizer, space, seed=call.seed, settings=call.settings, trials=self._limit)
        results = [(point, call.sign * loss) for point, loss in self.model.results]
        # iDDS may pass points of another space: they are ignored.
        optimizer.tell((point, value) for point, value in results if not find_mistake(space, 1, point, value))
        return optimizer

    @property
    def room(self) -> int:
        """Number of points that can still be proposed in this call."""
        if self._exhausted:
            return 0
        left = 10**9 if self._limit is None else self._limit - self.model.count
        return min(left, self._most) - len(self.new)

    def ask(self, count: int) -> int:
        """Proposes up to `count` new points, one or more, and returns their number."""
        try:
            points = self._optimizer.ask(count, [*self.model.pending, *self.new])
        except ExhaustedError:
            points = []
        self._exhausted = len(points) < count
        self.new += points
        return len(points)


# iDDS gives a steering container a file with the points so far, their losses and the search space:
# `{"points": [[{hp}, loss or null], …], "opt_space": …}`. In segmented tasks a point is `[model_id, {hp}]`, and the
# space is `[{"model_id": …, "search_space": …}, …]`. A loss of 0.0 is a result; null marks a point without a result.

#: Keys of the space in projects, requests and search files.
_SPACE_KEYS = ("search_space", "opt_space", "space")


@dataclass
class Model:
    """The space and the points of one model; a task without segments has one model.

    Attributes:
        identity: the model_id; None in a task without segments.
        results: (point, loss) in the file's order, as points of the search; a loss that is not finite marks a failed
            point.
        pending: points without a loss.
        count: number of the model's points in the file.
    """

    identity: Any
    space: ForeignSpace
    constraints: tuple[str, ...] = ()
    results: list[tuple[Point, float]] = field(default_factory=list)
    pending: list[Point] = field(default_factory=list)
    count: int = 0


@dataclass(frozen=True)
class PointsFile:
    """Content of the file that a steering container gets.

    Attributes:
        models: in the order of the space; one model without identity in a task without segments.
        warnings: points that do not fit the space.
    """

    models: list[Model]
    is_segmented: bool
    warnings: list[str]


def read_points(path: FilePath | None, space_path: FilePath | None) -> PointsFile:
    """Reads the file with the points.

    Args:
        path: the file; None: there are no points yet.
        space_path: a file with the search space, which replaces the space in `path`; None: none.

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
                source.wrong(
                    (*path, index, "model_id"), f"{show(model.identity)} is also the model_id of another model"
                )
            seen.add(json.dumps(model.identity))
    source.check()
    source.warnings.clear()  # the import of the task has shown them; here they would be repeated at every call
    return models


def _space_in(document: Any) -> tuple[FieldPath, Any, dict[str, Any]]:
    """Returns path and value of the space in a document, and the document itself if it is a search file."""
    for key in _SPACE_KEYS if isinstance(document, dict) else ():
        inside = document.get(key)
        if isinstance(inside, list) or (isinstance(inside, dict) and not {"method", "type"} & inside.keys()):
            return (key,), inside, document if key == "space" else {}
    return (), document, {}


def _with_search_file(model: Model, search_file: dict[str, Any]) -> Model:
    """Adds the constraints and the point's shape of a search file to the model."""
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
        file.warn(path, f"is ignored, because its shape is not that of the space: {error}")
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
