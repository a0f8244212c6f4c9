"""The ask/tell contract of all optimizers."""

from __future__ import annotations

import math
import numbers
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # it ships no types

from hpo_pilot.errors import InputError
from hpo_pilot.optimizers.proposals import Proposals, unit_vector
from hpo_pilot.search import Integer, Point, Real, SearchSpace, point_key
from hpo_pilot.search.mistakes import did_you_mean, listing, mistakes_of
from hpo_pilot.search.values import is_number, show


def finite(value: Any) -> float | None:
    """`value` as a finite number; None for whatever is none (None, NaN, ±inf, booleans, text, containers)."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond 1.8e308
        return None
    return number if math.isfinite(number) else None


def is_several(value: Any) -> bool:
    """Whether `value` has one entry for each of several objectives."""
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)


def find_mistake(space: SearchSpace, objectives: int, point: Mapping[str, Any], value: Any) -> str:
    """What is wrong with a result as it was told; empty where nothing is.

    Values beyond the bounds, unknown choices and broken constraints are no slips, and neither is a failed trial.

    Args:
        space: the space.
        objectives: how many figures a trial has.
        point: the point, in native values.
        value: its value, or one for each objective.
    """
    unknown = [name for name in point if name not in space.dimensions]
    if unknown:
        return f"{unknown[0]!r} is not a parameter of the space: {did_you_mean(str(unknown[0]), space.names)}"
    missing = [name for name in space.names if name not in point and space.is_active(name, point)]
    if missing:
        return f"the point has no {listing(missing)}"
    for name, dimension in space.dimensions.items():
        if name in point and isinstance(dimension, Real | Integer) and not is_number(point[name]):
            return f"{name} must be a number, not {show(point[name])}"
    given = len(value) if is_several(value) else 1
    if given == objectives or (not is_several(value) and finite(value) is None):
        return ""
    return f"{given} value{'s' * (given != 1)} for {objectives} objective{'s' * (objectives > 1)}"


def stream(seed: int, *parts: int | str) -> random.Random:
    """The random stream of a seed and a purpose (say, the number of known points)."""
    return random.Random("/".join(map(str, (seed, *parts))))  # noqa: S311 - a search needs no secrets


def array_stream(seed: int, *parts: int | str) -> np.random.Generator:
    """The same for arrays."""
    return np.random.default_rng(stream(seed, *parts).getrandbits(128))


@cache
def _controller() -> ThreadpoolController:
    # Looking for the libraries takes milliseconds, so it is done once, after numpy and scipy have loaded theirs.
    import numpy.linalg  # noqa: F401, PLC0415
    import scipy.linalg  # noqa: F401, PLC0415

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits every BLAS of this process to one thread while the context lasts, or another thread's context does."""
    with _LOCK:
        if not _INSIDE:
            _LIMITS.enter_context(_controller().limit(limits=1))
        _INSIDE.append(True)
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE.pop()
            if not _INSIDE:
                _LIMITS.close()


#: The limit is the process's, and optimizers work in several threads: the last one to leave lifts it.
_LOCK = threading.Lock()
_INSIDE: list[bool] = []
_LIMITS = ExitStack()


#: (point, value), (point, value, standard error) or (point, value, standard error, stopped).
Result: TypeAlias = (
    tuple[Mapping[str, Any], Any] | tuple[Mapping[str, Any], Any, Any] | tuple[Mapping[str, Any], Any, Any, bool]
)


class BaseSettings(BaseModel):
    """What a search file may say beside an optimizer's name; each optimizer has its own subclass."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Observation:
    """One told trial.

    Attributes:
        point: the canonical point; as it was told, where it is not a point of the space.
        values: what to minimise, shape (n_objectives,); None for a failed trial, and for a stopped one of which nothing
            is known. Never NaN or infinite.
        stds: standard errors of `values`, shape (n_objectives,), where folds give them.
        key: the point's identity.
        unit: its place in the unit cube, shape (n_dims,); outside [0, 1] for values beyond the bounds; None where the
            space has no place for it (other names, an unknown choice), so that it teaches nothing.
        stopped: the trial was stopped early; `values` are what it would probably have come to. They inform, but no
            stopped trial is ever the best.
    """

    point: Point
    values: tuple[float, ...] | None
    stds: tuple[float, ...] | None
    key: str
    unit: tuple[float, ...] | None
    stopped: bool = False

    @property
    def value(self) -> float | None:
        """The first objective's value; None for a failed trial."""
        return None if self.values is None else self.values[0]

    @property
    def std(self) -> float | None:
        """The standard error of `value`, where folds give one."""
        return None if self.stds is None else self.stds[0]


class Optimizer(ABC):
    """Proposes points; learns from their values. Lower is better.

    The contract, which `tests/contracts/test_optimizers.py` runs against every implementation:

    - `ask` returns exactly `n` distinct, feasible, canonical points (native Python values, JSON-ready), none equal to
      a told or pending one. Where the space has fewer left it returns those; where it has none it raises
      `ExhaustedError`.
    - `ask` is a pure function of (space, settings, seed, what was told in which order, pending): it changes no state
      that a later call can see. The same history gives the same points, bit for bit, in this process or a rebuilt
      one.
    - `tell` takes failed trials and learns from them what it can, at least not to propose them again. Failed is
      whatever has no finite number for every objective: None, NaN, ±inf, true and false, text, whole numbers beyond
      the floats.
    - Every finite value is taken as it is, 1e300 and denormal ones too: only the order counts for some optimizers, and
      the others tame the tails. Where all values are the same, they go on as if there were none.
    - A point that was told before may be told again, ten thousand times: it is one point, whose value is the mean.
      The optimizers that breed or sample from single results may take each telling for itself.
    - `tell` takes points from outside the space (other bounds, choices or constraints). Only the model based optimizers
      learn from values beyond the bounds; points with unknown choices teach none. None of them is ever proposed.
    - Slips of the caller, which would cost a result without a word, are an `InputError` of `tell`, and nothing of that
      call is taken: an unknown or missing name, text for a number, another count of values than of objectives.
      `tell_earlier` takes names and all as another search had them; what has no place in this space teaches nothing.
    - A space that is used up, down to its one point, raises `ExhaustedError`, and so does one without a feasible point,
      which `hpo-pilot validate` refuses with the constraints that exclude each other.
    - One thread at a time.

    Args of every constructor: the space, the seed, the settings as a search file gives them, the number of trials
    that the search may spend (a schedule's length; None: unknown), and the number of objectives.
    """

    Settings: type[BaseSettings] = BaseSettings
    settings: BaseSettings
    several_objectives: ClassVar[bool] = False
    """Whether it can search for a Pareto front."""
    learns_from_earlier: ClassVar[bool] = True
    """Whether `tell_earlier` makes a difference."""

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
        trials: int | None = None,
        objectives: int = 1,
    ) -> None:
        """Makes an optimizer that knows nothing yet.

        Raises:
            InputError: a setting is unknown or wrong, or there are more objectives than it can take.
        """
        if objectives < 1:
            raise ValueError(f"1 or more objectives, not {objectives}")
        self.objectives = objectives
        self.space = space
        self.seed = seed
        self.trials = trials
        try:
            self.settings = self.check_settings(settings or {})
        except ValidationError as error:
            wrong = "; ".join(map(str, mistakes_of(error, dict(settings or {}), self.Settings)))
            raise InputError(f"optimizer settings: {wrong}") from error
        single = self.of_one_objective(self.settings)
        if objectives > 1 and single:
            raise InputError(f"{single} takes one objective, not {objectives}")
        self.history: list[Observation] = []
        self.earlier: dict[str, list[Observation]] = {}
        """What was told of earlier searches, by search."""
        self._told_keys: set[str] = set()
        self._asked: dict[str, Point] = {}

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> BaseSettings:
        """The settings as a value of `cls.Settings`.

        Raises:
            pydantic.ValidationError: a setting is unknown or wrong (a ValueError; callers translate it).
        """
        return cls.Settings.model_validate(dict(settings))

    @classmethod
    def of_one_objective(cls, settings: BaseSettings) -> str:
        """What takes one objective alone, with these settings, in words; empty where several are welcome."""
        return "" if cls.several_objectives else "this optimizer"

    def ask(self, n: int, pending: Sequence[Mapping[str, Any]] | None = None) -> list[Point]:
        """Up to `n` new points.

        Args:
            n: how many, 1 or more.
            pending: the points that are out and have no value yet. None: whatever this object has proposed and not
                been told since; this bookkeeping is for callers who have none of their own.

        Raises:
            ExhaustedError: every point of the space is told or pending.
        """
        if n < 1:
            raise ValueError(f"ask for 1 or more points, not {n}")
        out = self._asked if pending is None else {point_key(p): p for p in map(self._settle, pending)}
        points = self._propose(n, [out[key] for key in sorted(out)])  # a set: its order says nothing
        for point in points:
            self._asked[point_key(point)] = point
        return points

    def tell(self, trials: Iterable[Result]) -> None:
        """Takes results in the order in which they came.

        Args:
            trials: (point, value), (point, value, standard error) or (point, value, standard error, stopped). A value
                of None, NaN or ±inf says that the trial failed; of several objectives one such is enough. Of a stopped
                trial it says that nothing is known of it. With several objectives, value and standard error are
                sequences.

        Raises:
            InputError: a name is unknown or missing, a value of the wrong kind, or there are more or fewer values than
                objectives; the message says where. Nothing was taken.
        """
        observed = []
        for number, trial in enumerate(trials):
            seen = self._observed(trial)
            if seen.unit is None or seen.values is None:
                slip = find_mistake(self.space, self.objectives, seen.point, trial[1])
                if slip:
                    raise InputError(f"result {number} of those told: {slip}")
            observed.append(seen)
        for seen in observed:
            self.take(seen)

    def take(self, observation: Observation) -> None:
        """Takes a result that another optimizer of the same space and objectives was told."""
        self._asked.pop(observation.key, None)
        self._told_keys.add(observation.key)
        self.history.append(observation)
        self._learn(observation)

    def tell_earlier(self, source: str, trials: Iterable[Result]) -> None:
        """Takes the results of an earlier search of the same kind: another data set, another machine, a smaller model.

        They say where good points may lie. They are not results of this search: their points may be proposed again,
        and what this search finds outvotes them.

        Args:
            source: what the earlier search is called; one call for each.
            trials: as `tell` takes them, in the order in which they came.
        """
        self.earlier[source] = [self._observed(trial) for trial in trials]

    def _observed(self, trial: Result) -> Observation:
        point, value, *rest = trial
        settled = self._settle(point)
        return Observation(
            settled,
            self._numbers(value),
            self._numbers(rest[0]) if rest else None,
            point_key(settled),
            unit_vector(self.space, settled),
            bool(rest[1]) if len(rest) > 1 else False,
        )

    def _numbers(self, value: Any) -> tuple[float, ...] | None:
        """One finite number for each objective; None where one is missing."""
        parts = list(value) if is_several(value) else [value]
        numbers = [finite(part) for part in parts]
        known = tuple(number for number in numbers if number is not None)
        return known if len(known) == len(parts) == self.objectives else None

    @abstractmethod
    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        """`ask`, with the pending points settled."""

    def _learn(self, observation: Observation) -> None:  # noqa: B027 - most have nothing to do here
        """Called after each told trial is in `history`; for optimizers that keep a running state."""

    def _settle(self, point: Mapping[str, Any]) -> Point:
        """`point` in canonical form, so that equal points have equal keys; as it is, where it is not in the space."""
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in point.items()}
        try:
            return self.space.canonical(plain)
        except InputError:
            return plain

    def _collect(self, n: int, pending: Sequence[Point]) -> Proposals:
        """Where `_propose` gathers its points: it refuses those told, pending, infeasible or gathered before."""
        return Proposals(self.space, n, self._told_keys, pending)
