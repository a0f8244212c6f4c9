"""The ask/tell contract of all optimizers."""

from __future__ import annotations

import importlib
import math
import numbers
import random
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # it ships no types

from hpo_pilot.errors import InputError
from hpo_pilot.optimizers.proposals import Keys, Proposals, unit_vector
from hpo_pilot.search import Integer, Mistake, MistakeError, Point, Real, SearchSpace, point_key
from hpo_pilot.search.measured_limits import MeasuredLimit
from hpo_pilot.search.mistakes import did_you_mean, listing, mistakes_of
from hpo_pilot.search.values import is_number, show


def finite(value: Any) -> float | None:
    """Returns `value` as a finite number; None for anything else (None, NaN, ±inf, booleans, text, containers)."""
    return float(value) if is_number(value) else None


def is_several(value: Any) -> bool:
    """Tells whether `value` is a sequence with one entry per objective."""
    return type(value) is tuple or (isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes))


def _no_numbers(value: Any) -> list[Any]:
    """Returns the parts of `value` that are neither a number (NaN and ±inf are numbers) nor None."""
    parts = value if is_several(value) else (value,)
    is_bool = bool | np.bool_
    return [p for p in parts if p is not None and (isinstance(p, is_bool) or not isinstance(p, numbers.Real))]


def find_mistake(space: SearchSpace, objectives: int, point: Mapping[str, Any], value: Any) -> str:
    """Returns the caller's mistake in a told result; an empty text where there is none.

    Values beyond the bounds, unknown choices, broken constraints and failed trials are not mistakes.

    Args:
        space: the search space.
        objectives: the number of objectives.
        point: the point, in native values.
        value: its value, or one value for each objective.
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
    if wrong := _no_numbers(value):
        return f"a value must be a number, or None for a failed trial, not {show(wrong[0])}"
    given = len(value) if is_several(value) else 1
    if given == objectives or (not is_several(value) and finite(value) is None):
        return ""
    return f"{given} value{'s' * (given != 1)} for {objectives} objective{'s' * (objectives > 1)}"


def stream(seed: int, *parts: int | str) -> random.Random:
    """Returns the random stream of a seed and a purpose (for example the number of known points)."""
    return random.Random("/".join(map(str, (seed, *parts))))  # noqa: S311 - a search needs no secrets


def array_stream(seed: int, *parts: int | str) -> np.random.Generator:
    """Returns the random stream of a seed and a purpose, for numpy arrays."""
    return np.random.default_rng(stream(seed, *parts).getrandbits(128))


@cache
def _controller() -> ThreadpoolController:
    # The search for the libraries takes milliseconds. It is done once, after numpy and scipy have loaded theirs.
    import numpy.linalg  # noqa: F401, PLC0415
    import scipy.linalg  # noqa: F401, PLC0415

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits every BLAS library of this process to one thread, until the last context of all threads has ended."""
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


#: The limit applies to the whole process, and optimizers work in several threads: the last one to leave removes it.
_LOCK = threading.Lock()
_INSIDE: list[bool] = []
_LIMITS = ExitStack()


@contextmanager
def global_randomness(rng: random.Random) -> Iterator[None]:
    """Seeds the global random streams of Python, numpy and a loaded torch from `rng`; restores them afterwards.

    Other packages use these streams. Only one thread at a time is inside: optimizers of several searches may run in one
    process.
    """
    torch: Any = sys.modules.get("torch")
    with _GLOBAL_STREAMS:
        before = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()
        random.seed(rng.getrandbits(64))
        seed = rng.getrandbits(32)
        np.random.seed(seed)
        if torch:
            torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            if torch:
                torch.set_rng_state(before[2])


#: Reentrant, because a generator of another program may be one of ours (`gest_generator`).
_GLOBAL_STREAMS = threading.RLock()


@dataclass(frozen=True)
class Result:
    """The result of one trial, for `Optimizer.tell`.

    Attributes:
        point: the point; unchanged where it is not a point of the space.
        values: the value to minimise, or one value for each objective. None, NaN or ±inf means that the trial failed;
            with several objectives, one such value is enough. For a stopped trial it means that nothing is known.
        errors: the standard error of each value; None where folds do not give them.
        stopped: the trial was stopped early, and `values` are estimates of its final values.
        measured: other figures of the trial, by name.
        seconds: mean run time of its folds, each trained in whole; None: unknown, as of a training that was stopped.
            Of a job that trained a part of the levels, in proportion.
        level: the level that it was trained to; None: the highest, or there are no levels.
    """

    point: Mapping[str, Any]
    values: Any
    errors: Any = None
    stopped: bool = False
    measured: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    level: float | None = None


#: A result, or the first two, three or four of its attributes.
Told: TypeAlias = (
    Result
    | tuple[Mapping[str, Any], Any]
    | tuple[Mapping[str, Any], Any, Any]
    | tuple[Mapping[str, Any], Any, Any, bool]
)


def _as_result(told: Told) -> Result:
    return told if isinstance(told, Result) else Result(*told)


class BaseSettings(BaseModel):
    """Settings beside an optimizer's name in a search file; each optimizer has its own subclass."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def foreign_class(key: str, name: str, base: type) -> Any:
    """Returns the class of another package that a setting names as `package.module:Class`.

    Args:
        key: the key of the setting.
        name: its value.
        base: the class that it must implement.

    Raises:
        MistakeError: there is none.
    """
    module, _, cls = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), cls)
    except (Exception, SystemExit) as error:  # of a module that is a program
        hint = "install its package where searches are steered, or correct the name: package.module:Class"
        raise MistakeError([Mistake((key,), f"cannot be imported: {type(error).__name__}: {error}", hint)]) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        message = f"{name} is no subclass of {base.__module__}.{base.__qualname__}"
        raise MistakeError([Mistake((key,), message, "name another class: package.module:Class")])
    return found


#: The violation of a point whose limited figures are not all known, and hold as far as they are; and the value in Deb's
#: order of a point on a limit: half the largest float.
_UNKNOWN, _BEHIND_ALL = 1e-300, sys.float_info.max / 2.0


@dataclass(frozen=True)
class Observation:
    """The result of one trial, as the optimizer was told it.

    Attributes:
        point: the canonical point; unchanged where it is not a point of the space.
        values: the values to minimise, shape (n_objectives,); None for a failed trial, and for a stopped trial without
            a projected value. Never NaN or infinite.
        stds: standard errors of `values`, shape (n_objectives,); None where folds do not give them.
        key: identifies the point.
        unit: coordinates in the unit cube, shape (n_dims,); outside [0, 1] for values beyond the bounds. None where the
            space cannot represent the point (other names, an unknown choice); nothing is learned from it then.
        stopped: the trial was stopped early, and `values` are its projected final values. Optimizers learn from them,
            but a stopped trial is never the best.
        measured: other figures of the trial, by name.
        seconds: mean run time of its folds, each trained in whole; None: unknown, as of a training that was stopped.
        excesses: for each limit the distance of its figure beyond it, as a share of the limit: 0 or less: it holds;
            infinite: far beyond; NaN: the figure is not known.
        level: the level that it was trained to; None: the highest, or there are no levels.
    """

    point: Point
    values: tuple[float, ...] | None
    stds: tuple[float, ...] | None
    key: str
    unit: tuple[float, ...] | None
    stopped: bool = False
    measured: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    excesses: tuple[float, ...] = ()
    level: float | None = None

    @property
    def violation(self) -> float:
        """The sum of what is beyond the limits: 0: all hold; nearly 0 where all known ones hold."""
        beyond = sum(excess for excess in self.excesses if excess > 0)
        return beyond or (_UNKNOWN if any(map(math.isnan, self.excesses)) else 0.0)

    @property
    def ranked(self) -> Observation:
        """The observation with values that are in Deb's order: feasible points first, then by their violation.

        Deb 2000, "An efficient constraint handling method for genetic algorithms".
        """
        if self.values is None or not self.violation:
            return self
        share = self.violation / (1.0 + self.violation) if self.violation < math.inf else 1.0
        return replace(self, values=(_BEHIND_ALL * (1.0 + share),) * len(self.values), stds=None)

    @property
    def value(self) -> float | None:
        """The value of the first objective; None for a failed trial."""
        return None if self.values is None else self.values[0]

    @property
    def std(self) -> float | None:
        """The standard error of `value`; None where folds do not give one."""
        return None if self.stds is None else self.stds[0]

    @property
    def is_within_bounds(self) -> bool:
        """Whether the point is in the unit cube; constraints are not checked."""
        return self.unit is not None and all(0.0 <= place <= 1.0 for place in self.unit)


def _merit(seen: Observation) -> tuple[float, ...] | None:
    """Returns the values by which old results are kept; None: it is not among the best."""
    return None if seen.stopped else seen.ranked.values


@dataclass(frozen=True)
class Recommendation:
    """A told point that is probably one of the best.

    Attributes:
        point: the point.
        value: its value without noise, as a model predicts it; without a model the mean of its told values.
        error: the standard error of the prediction; None without a model.
        reason: why no model is used; empty if one is.
    """

    point: Point
    value: float
    error: float | None = None
    reason: str = ""


#: Of more results than the first number, an optimizer learns from the newest ones and from the best of the others.
_MOST, _NEWEST, _BEST = 10_000, 5_000, 1_000

#: The distance of figures within a limit counts up to this share of the limit: minus infinity cannot be modelled.
_FAR = 1e6


def _excess(limit: MeasuredLimit, figure: Any) -> float:
    """Returns one of `Observation.excesses`."""
    if figure is None or isinstance(figure, bool) or math.isnan(figure):
        return math.nan
    return max(limit.excess(float(figure)) / (abs(limit.bound) or 1.0), -_FAR)


class Optimizer(ABC):
    """Proposes points and learns from their values. Lower values are better.

    The contract, which `hpo_pilot.testing.optimizers` and `tests/contracts/test_optimizers.py` check:

    - `ask` returns exactly `n` distinct, feasible, canonical points (native Python values that JSON can hold). None of
      them equals a told or pending point. Where fewer points are left in the space, `ask` returns these; where none is
      left, it raises `ExhaustedError`.
    - `ask` is a pure function of (space, settings, seed, the told results in their order, pending). It changes no state
      that a later call can see. The same history gives the same points, bit for bit, in this process and after a
      restart.
    - `tell` accepts failed trials. An optimizer never proposes their points again, and may learn more from them. A
      trial has failed if it has no finite number for every objective: None, NaN, ±inf, booleans, text, and integers
      beyond the range of floats.
    - `tell` accepts every finite value, also 1e300 and denormal numbers: some optimizers use only the order of the
      values, the others transform extreme values. Where all values are equal, an optimizer goes on as without values.
    - A point may be told again, also ten thousand times. It counts as one point, and its value is the mean.
      Optimizers that breed or sample from single results may use each result separately.
    - `tell` accepts points outside the space (other bounds, choices or constraints). Only model-based optimizers learn
      from values beyond the bounds; none learns from points with unknown choices. Such points are never proposed.
    - `tell` raises `InputError` for mistakes of the caller that would silently lose a result: an unknown or missing
      name, text instead of a number, a wrong number of values. It then takes nothing of that call. `tell_earlier`
      accepts the names of another search; nothing is learned from points that this space cannot represent.
    - A space without a point that is left raises `ExhaustedError`, and so does a space without a feasible point
      (`hpo-pilot validate` refuses such a space, and names the constraints that exclude each other).
    - After 10,000 results, an optimizer learns only from the newest 5,000 and the best 1,000 of the others, until there
      are 10,000 again; so no `ask` costs more than with these. It never proposes a point that was told.
    - With levels of training, each result has its level, and an optimizer that uses levels may also return told points
      that are below the highest level: these should go on to their next level (`go_on` returns no others).
    - An optimizer is used by one thread at a time.

    Every constructor takes the space, the seed, the settings as in a search file, the number of trials that the search
    may spend (the length of a schedule; None: unknown), the number of objectives, the limits on measured figures, and,
    if it uses them, the levels of training in ascending order.

    Attributes:
        several_objectives: whether the optimizer can search for a Pareto front.
        learns_from_earlier: whether `tell_earlier` has an effect.
        uses_prior: whether it uses the beliefs in `space.prior`.
        uses_levels: whether it learns from results at all levels and decides which points go on.
        history: the told results in their order, without forgotten ones.
        forgotten: the number of forgotten results.
        earlier: the results of earlier searches, by search.
    """

    Settings: type[BaseSettings] = BaseSettings
    settings: BaseSettings
    several_objectives: ClassVar[bool] = False
    learns_from_earlier: ClassVar[bool] = True
    uses_prior: ClassVar[bool] = False
    uses_levels: ClassVar[bool] = False

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
        trials: int | None = None,
        objectives: int = 1,
        limits: Sequence[MeasuredLimit] = (),
        levels: Sequence[float] = (),
    ) -> None:
        """Makes an optimizer without results.

        Raises:
            InputError: a setting is unknown or wrong, or the optimizer does not support this number of objectives.
        """
        if objectives < 1:
            raise ValueError(f"1 or more objectives, not {objectives}")
        self.objectives = objectives
        self.limits = limits
        self.levels = tuple(levels)
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
        self.forgotten = 0
        self._learned = 0
        self.earlier: dict[str, list[Observation]] = {}
        self._told_keys = Keys()
        self._asked: dict[str, Point] = {}

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> BaseSettings:
        """Returns the settings as an instance of `cls.Settings`.

        Raises:
            pydantic.ValidationError: a setting is unknown or wrong (a ValueError; callers translate it).
        """
        return cls.Settings.model_validate(dict(settings))

    @classmethod
    def of_one_objective(cls, settings: BaseSettings) -> str:
        """Names the part that supports only one objective with these settings; empty where several are supported."""
        return "" if cls.several_objectives else "this optimizer"

    def ask(self, n: int, pending: Sequence[Mapping[str, Any]] | None = None) -> list[Point]:
        """Returns up to `n` new points.

        Args:
            n: the number of points, 1 or more.
            pending: the points that were proposed and have no result yet. None: the points that this object has
                proposed and was not told yet, for callers that do not keep a list.

        Raises:
            ExhaustedError: every point of the space is told or pending.
        """
        if n < 1:
            raise ValueError(f"ask for 1 or more points, not {n}")
        return self._asked_of(self._propose, n, pending)

    def go_on(self, n: int, pending: Sequence[Mapping[str, Any]] | None = None) -> list[Point]:
        """Returns up to `n` told points that should go on to their next levels, and no new ones; arguments as of `ask`.

        An empty list where the optimizer does not use levels, or no point is below the highest one.
        """
        return self._asked_of(self._choose_paused, n, pending)

    def _asked_of(
        self,
        propose: Callable[[int, list[Point]], list[Point]],
        n: int,
        pending: Sequence[Mapping[str, Any]] | None,
    ) -> list[Point]:
        out = self._asked if pending is None else {point_key(p): p for p in map(self._settle, pending)}
        self._catch_up()
        points = propose(n, [out[key] for key in sorted(out)])  # sorted: the order of pending points must not matter
        for point in points:
            self._asked[point_key(point)] = point
        return points

    def tell(self, trials: Iterable[Told]) -> None:
        """Takes results in the order in which they arrived.

        Args:
            trials: the results; tuples of (point, value), (point, value, standard error) or (point, value, standard
                error, stopped) are accepted.

        Raises:
            InputError: a name is unknown or missing, a value is neither a number nor None, or the number of values
                differs from the number of objectives; the message says where. No result of the call was taken.
        """
        for seen in self._all_observed(trials):
            self.take(seen)

    def tell_stored(self, brief: Iterable[Told], whole: Callable[[list[int]], Iterable[Told]]) -> None:
        """Takes results as `tell`, before the first `ask`; only those that it does not forget at once are read whole.

        Args:
            brief: all results in their order, with canonical points, and with the measured figures that have a limit.
                Stopped trials have no values.
            whole: returns the results at these places of `brief`, from 0, in their order.

        Raises:
            InputError: as `tell`, of a whole result.
        """
        merits = [_merit(seen) for seen in self.history]
        for result in map(_as_result, brief):
            key = point_key(result.point)
            self._told_keys.add(key)
            values = None if result.stopped else self._numbers(result.values)
            if self.limits:
                values = Observation({}, values, None, key, None, excesses=self._excesses(result)).ranked.values
            merits.append(values)
        kept, first = list[int](), 0
        while first < len(merits):
            end = first + _MOST + 1 - len(kept)
            kept, first = [*kept, *range(len(merits))[first:end]], end
            if len(kept) > _MOST:
                kept = [kept[place] for place in self._remembered([merits[place] for place in kept])]
        known = [self.history[place] for place in kept if place < len(self.history)]
        stored = self._all_observed(whole([place - len(self.history) for place in kept[len(known) :]]))
        self.forgotten += len(merits) - len(kept)
        self.history = known + stored
        self._learned = 0
        self._start_over()

    def _all_observed(self, trials: Iterable[Told]) -> list[Observation]:
        """Returns results as observations; the errors are those of `tell`."""
        observed = []
        for number, result in enumerate(map(_as_result, trials)):
            seen = self._observed(result)
            if seen.unit is None or seen.values is None:
                mistake = find_mistake(self.space, self.objectives, seen.point, result.values)
                if mistake:
                    raise InputError(f"result {number} of those told: {mistake}")
            if wrong := _no_numbers(result.errors):
                message = f"a standard error must be a number, or None, not {show(wrong[0])}"
                raise InputError(f"result {number} of those told: {message}")
            observed.append(seen)
        return observed

    def recommend(self, count: int = 1) -> list[Recommendation]:
        """Returns the told points that are probably the best, best first; at most `count`.

        With noise, the lowest value is partly luck. So the values are predicted by the model of `bayesian`, from the
        results that it keeps, where it finds noise and its predictions of left-out results are as good as it expects.
        Else the told values decide. Points that are stopped, infeasible or out of bounds are not recommended; of more
        than 2,000 points, the best half of this number and a random sample are looked at.

        Raises:
            InputError: there are several objectives, and so no best point.
        """
        from hpo_pilot.optimizers.bayesian import BayesianOptimizer  # noqa: PLC0415 - it is a subclass

        model = BayesianOptimizer(
            self.space, seed=self.seed, trials=self.trials, objectives=self.objectives, levels=self.levels
        )
        for observation in self.history:
            model.take(observation)
        return model.recommend(count)

    def take(self, observation: Observation) -> None:
        """Takes a result that another optimizer of the same space and objectives has received."""
        self._asked.pop(observation.key, None)
        self._told_keys.add(observation.key)
        self.history.append(observation)
        if len(self.history) > _MOST:
            self._forget()

    def follow(self, other: Optimizer) -> None:
        """Takes all that another optimizer of the same space and objectives was told."""
        self._told_keys, self.forgotten = other._told_keys, other.forgotten
        for source, observations in other.earlier.items():
            self.tell_earlier(source, [(o.point, o.values, o.stds, o.stopped) for o in observations])
        self.history = list(other.history)

    def _forget(self) -> None:
        """Forgets old results, except the best of them."""
        kept = self._remembered([_merit(seen) for seen in self.history])
        self.forgotten += len(self.history) - len(kept)
        self.history = [self.history[place] for place in kept]
        self._learned = 0
        self._start_over()

    def _remembered(self, merits: Sequence[tuple[float, ...] | None]) -> list[int]:
        """Returns the places of the results that are not forgotten, in their order; `merits`: of each result."""
        older = range(len(merits) - _NEWEST)
        good = [place for place in older if merits[place] is not None]
        values = np.array([merits[place] for place in good]).reshape(len(good), self.objectives)
        merit = values[:, 0]
        if self.objectives > 1:
            from hpo_pilot.search.nondominated import ranks  # noqa: PLC0415 - loads DEAP

            merit = np.array(ranks(values))
        best = [good[place] for place in sorted(np.argsort(merit, kind="stable")[:_BEST])]
        return [*best, *range(len(older), len(merits))]

    def _catch_up(self) -> None:
        """Learns from the results that came since the last call and are not forgotten yet."""
        for observation in self.history[self._learned :]:
            self._learn(observation)
        self._learned = len(self.history)

    def tell_earlier(self, source: str, trials: Iterable[Told]) -> None:
        """Takes the results of an earlier search of the same kind: another data set, another machine, a smaller model.

        They indicate where good points may be. They are not results of this search: their points may be proposed
        again, and the results of this search have more weight.

        Args:
            source: the name of the earlier search; one call for each search.
            trials: as for `tell`, in the order in which they arrived.
        """
        self.earlier[source] = [self._observed(_as_result(trial)) for trial in trials]

    def _observed(self, result: Result) -> Observation:
        settled = self._settle(result.point)
        return Observation(
            settled,
            self._numbers(result.values),
            self._numbers(result.errors),
            point_key(settled),
            unit_vector(self.space, settled),
            bool(result.stopped),
            result.measured,
            result.seconds,
            self._excesses(result),
            result.level,
        )

    def _excesses(self, result: Result) -> tuple[float, ...]:
        return tuple(_excess(limit, result.measured.get(limit.name)) for limit in self.limits)

    def _numbers(self, value: Any) -> tuple[float, ...] | None:
        """Returns one finite number for each objective; None where one is missing."""
        parts = list(value) if is_several(value) else [value]
        numbers = [finite(part) for part in parts]
        known = tuple(number for number in numbers if number is not None)
        return known if len(known) == len(parts) == self.objectives else None

    @abstractmethod
    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        """Does the work of `ask`; the pending points are in canonical form and sorted."""

    def _choose_paused(self, n: int, pending: list[Point]) -> list[Point]:
        """Does the work of `go_on`; the pending points as of `_propose`."""
        return []

    def _learn(self, observation: Observation) -> None:  # noqa: B027 - most have nothing to do here
        """Updates the state of optimizers that have one; called for each result of `history`."""

    def _start_over(self) -> None:  # noqa: B027 - most have nothing to do here
        """Drops the state that `_learn` has made; it is called for all results of `history` again."""

    def _known_points(self, pending: Sequence[Point]) -> list[Point]:
        """Returns the last told and the pending points, around which `Proposals.complete` seeks feasible ones."""
        return [*(observation.point for observation in self.history[-64:]), *pending]

    def _settle(self, point: Mapping[str, Any]) -> Point:
        """Returns `point` in canonical form, so that equal points have equal keys; unchanged where it is not one."""
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in point.items()}
        try:
            return self.space.canonical(plain)
        except InputError:
            return plain

    def _collect(self, n: int, pending: Sequence[Point], paused: Collection[str] = ()) -> Proposals:
        """Returns the collection for the points of one `_propose`; `paused`: keys of told points that may go on."""
        return Proposals(self.space, n, self._told_keys, pending, paused)
