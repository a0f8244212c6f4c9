"""optuna's samplers behind our ask and tell; optional: `pip install 'hpo-pilot[optuna]'`.

Each `ask` builds a study in memory from the told results, in their order, and from the pending points, as running
trials. So the points depend on nothing else, as the contract demands. optuna is imported only when this optimizer is
used.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, model_validator

from hpo_pilot.optimizers.base import BaseSettings, Observation, Optimizer, foreign_class, one_thread, stream
from hpo_pilot.optimizers.proposals import Proposals
from hpo_pilot.search import Integer, Mistake, MistakeError, Point, Real
from hpo_pilot.search.mistakes import did_you_mean, listing
from hpo_pilot.search.parameters import Dimension
from hpo_pilot.search.values import is_number, show

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

#: Name in a search file -> optuna's class.
SAMPLERS = {
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "nsgaii": "NSGAIISampler",
    "nsgaiii": "NSGAIIISampler",
    "qmc": "QMCSampler",
    "random": "RandomSampler",
}

#: The module that a sampler needs besides optuna.
_NEEDS = {"cmaes": "cmaes", "gp": "torch"}

#: These samplers store their state in the trials that they propose. So told trials are asked for again.
_WITH_MEMORY = ("cmaes", "nsgaii", "nsgaiii", "qmc")

#: These samplers support constraints.
_WITH_CONSTRAINTS = ("tpe", "gp", "nsgaii", "nsgaiii")

_ONE_OBJECTIVE = ("cmaes",)

#: Arguments that we set ourselves, or that a file cannot express.
_NOT_FOR_FILES = ("self", "seed", "constraints_func", "independent_sampler", "source_trials")

#: Annotations of optuna's arguments that a file can express: in words, and the test of a value.
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("a whole number", lambda value: is_number(value) and isinstance(value, int)),
    "float": ("a number", is_number),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "str": ("text", lambda value: isinstance(value, str)),
    "dict[str, Any]": ("a mapping", lambda value: isinstance(value, Mapping)),
    "None": ("null", lambda value: value is None),
}

#: Larger values are told as this: their squares would overflow.
_LARGEST = 1e100

#: Number of requests to a sampler per missing point, before points are drawn at random: it may have no new point.
#: Crossover often repeats children, but is fast.
_PATIENCE = 4
_PATIENCE_WITH_CROSSOVER = 40

#: What is told of a limit whose figure is not known: broken, by less than any other.
_NOT_KNOWN = 1e-12

_CONSTRAINTS = "constraints"  # optuna's name of a trial's attribute; above 0: broken


class OptunaSettings(BaseSettings):
    """The sampler and its arguments: `{name: optuna, sampler: tpe, multivariate: true}`.

    A sampler of another package is named as `package.module:Class`.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    sampler: str = "tpe"

    @model_validator(mode="after")
    def _check(self) -> OptunaSettings:
        for module in ("optuna", _NEEDS.get(self.sampler)):
            if module is not None and importlib.util.find_spec(module) is None:
                message = f"needs {module}, which is not installed"
                remedy = "pip install torch" if module == "torch" else "pip install 'hpo-pilot[optuna]'"
                raise MistakeError([Mistake(() if module == "optuna" else ("sampler",), message, remedy)])
        parameters = inspect.signature(self._class().__init__).parameters
        kinds = {name: _kinds(parameter) for name, parameter in parameters.items() if name not in _NOT_FOR_FILES}
        known = [name for name, kind in kinds.items() if kind]
        what = f"is not a setting of optuna's {self.sampler} sampler"
        wrong = [Mistake((key,), what, did_you_mean(key, known)) for key in self.arguments if key not in known]
        if self.sampler not in SAMPLERS:
            wrong = []  # the rehearsal shows what it refuses
        elif not wrong:
            wrong = [mistake for key, value in self.arguments.items() for mistake in _mistakes(key, value, kinds[key])]
        if wrong:
            raise MistakeError(wrong)
        try:
            self._rehearse()
        except Exception as error:  # optuna's errors have no common root
            message = f"optuna refuses these settings of {self.sampler}: {error}"
            raise MistakeError([Mistake((), message)]) from error
        return self

    def _class(self) -> Any:
        """Returns the class of the sampler."""
        import optuna  # noqa: PLC0415 - seldom wanted

        if ":" in self.sampler:
            return foreign_class("sampler", self.sampler, optuna.samplers.BaseSampler)
        if self.sampler not in SAMPLERS:
            names = listing([*SAMPLERS, "package.module:Class"], "or")
            hint = did_you_mean(self.sampler, SAMPLERS)
            raise MistakeError([Mistake(("sampler",), f"must be {names}, not {show(self.sampler)}", hint)])
        return getattr(optuna.samplers, SAMPLERS[self.sampler])

    def _rehearse(self) -> None:
        """Asks the sampler once, because some arguments are checked only then; `gp`, slow to load, is only made."""
        import optuna  # noqa: PLC0415 - seldom wanted

        sampler = self.made(0)
        if self.sampler == "gp" or "x0" in self.arguments:  # x0 contains names of the space
            return
        axes: dict[str, BaseDistribution] = {n: optuna.distributions.FloatDistribution(0.0, 1.0) for n in "xy"}
        with _quiet():
            study = optuna.create_study(sampler=sampler)
            for value in (0.25, 0.75):
                study.add_trial(
                    optuna.trial.create_trial(params=dict.fromkeys(axes, value), distributions=axes, value=value)
                )
            study.ask(axes)

    @property
    def arguments(self) -> dict[str, Any]:
        """The settings besides `sampler`."""
        return dict(self.__pydantic_extra__ or {})

    def made(self, seed: int) -> BaseSampler:
        """Returns a sampler with a seed."""
        cls = self._class()
        parameters = inspect.signature(cls.__init__).parameters
        arguments = dict.fromkeys({"seed"} & set(parameters), seed) | self.arguments
        for name, value in (
            ("constant_liar", True),  # for batches; the default depends on optuna's version
            ("warn_independent_sampling", False),
            ("warn_asynchronous_seeding", False),
        ):
            if name in parameters:
                arguments.setdefault(name, value)
        if self.sampler in _WITH_CONSTRAINTS:
            arguments["constraints_func"] = _broken
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: BaseSampler = cls(**arguments)
        return made


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences optuna's log and warnings."""
    import optuna  # noqa: PLC0415 - seldom wanted

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _kinds(parameter: inspect.Parameter) -> list[str]:
    """Returns the types of a sampler's argument that a file can express; empty where there is none."""
    kinds = [kind for part in str(parameter.annotation).split("|") if (kind := part.strip()) in _KINDS]
    return kinds if kinds != ["None"] else []


def _mistakes(key: str, value: Any, kinds: Sequence[str]) -> Iterator[Mistake]:
    """Checks an argument of a sampler; optuna itself would refuse it in the middle of the search."""
    words, tests = zip(*(_KINDS[kind] for kind in kinds), strict=True)
    if not any(fits(value) for fits in tests):
        yield Mistake((key,), f"must be {listing(words, 'or')}, not {show(value)}")
    elif is_number(value) and value < 0 and key != "inc_popsize":  # a negative inc_popsize turns it off
        yield Mistake((key,), f"must be 0 or more, not {show(value)}")


def _broken(trial: FrozenTrial) -> tuple[float, ...]:
    found = trial.system_attrs.get(_CONSTRAINTS)
    return tuple(found) if found is not None else (0.0,)


class OptunaOptimizer(Optimizer):
    """One of optuna's samplers; TPE by default.

    Failed trials are not proposed again, and nothing else is learned from them. Points outside the space and results of
    earlier searches (`tell_earlier`) are not used, because optuna does not support them.
    """

    Settings = OptunaSettings
    settings: OptunaSettings
    several_objectives = True
    learns_from_earlier = False

    @classmethod
    def of_one_objective(cls, settings: BaseSettings) -> str:
        """Names the sampler if it supports only one objective."""
        assert isinstance(settings, OptunaSettings)
        return f"optuna's {settings.sampler} sampler" if settings.sampler in _ONE_OBJECTIVE else ""

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        rng = stream(self.seed, "optuna", proposals.known, len(self.history))
        with _quiet(), one_thread():
            self._ask(proposals, pending, rng.getrandbits(32))
        return proposals.complete(rng, self._known_points(pending)) if proposals.missing else proposals.points

    def _ask(self, proposals: Proposals, pending: list[Point], seed: int) -> None:
        """Asks the sampler until no point is missing, or it repeats itself too often."""
        from optuna.trial import TrialState  # noqa: PLC0415

        study = self._study(pending)
        if self.settings.sampler != "qmc":  # qmc has one sequence, and the study stores the position in it
            study.sampler = self.settings.made(seed)
        worst = max((o.values for o in self.history if o.values is not None), default=None)
        patience = _PATIENCE_WITH_CROSSOVER if self.settings.sampler.startswith("nsga") else _PATIENCE
        for _ in range(patience * proposals.missing + 8):
            if proposals.missing == 0:
                return
            trial = study.ask()
            point = self._suggested(trial)
            if proposals.offer_point(point):
                continue  # the trial stays in the study as a running one
            broken = not self.space.is_feasible(point)
            if broken and worst is not None and self.settings.sampler in _WITH_CONSTRAINTS:
                study._storage.set_trial_system_attr(trial._trial_id, _CONSTRAINTS, (1.0, *(0.0 for _ in self.limits)))
                study.tell(trial, [_bounded(value) for value in worst])
            else:
                study.tell(trial, state=TrialState.FAIL)

    def _study(self, pending: Iterable[Point]) -> optuna.Study:
        import optuna  # noqa: PLC0415
        from optuna.trial import TrialState, create_trial  # noqa: PLC0415

        study = optuna.create_study(sampler=self.settings.made(self.seed), directions=["minimize"] * self.objectives)
        for observation in self.history:
            arguments = self._arguments(observation)
            if arguments is None:
                continue
            if self.settings.sampler in _WITH_MEMORY:
                study.enqueue_trial(arguments["params"])
                trial = study.ask()
                _ = trial.relative_params  # all values are fixed, but now the sampler stores its state
                self._suggested(trial)
                for name, value in arguments["system_attrs"].items():
                    study._storage.set_trial_system_attr(trial._trial_id, name, value)
                values = arguments["values"]
                study.tell(trial, values, state=TrialState.FAIL if values is None else None)
            else:
                study.add_trial(create_trial(**arguments))
        for point in pending:
            params = self._params(point)
            if params is not None:
                out = create_trial(
                    state=TrialState.RUNNING, params=params, distributions=self._distributions_of(params)
                )
                study.add_trial(out)
        return study

    def _arguments(self, observation: Observation) -> dict[str, Any] | None:
        """Returns optuna's arguments for a told trial; None where it is outside the space."""
        from optuna.trial import TrialState  # noqa: PLC0415

        params = self._params(observation.point)
        if params is None:
            return None
        values = (observation if self.settings.sampler in _WITH_CONSTRAINTS else observation.ranked).values
        infeasible = self.space.constraints and not self.space.is_feasible(observation.point)
        broken = [1.0 if infeasible else 0.0] if self.space.constraints else []
        broken += [_bounded(_NOT_KNOWN if math.isnan(excess) else excess) for excess in observation.excesses]
        return {
            "state": TrialState.FAIL if values is None else TrialState.COMPLETE,
            "params": params,
            "distributions": self._distributions_of(params),
            "values": None if values is None else [_bounded(value) for value in values],
            "system_attrs": {_CONSTRAINTS: tuple(broken)} if broken else {},
        }

    @cached_property
    def _distributions(self) -> dict[str, BaseDistribution]:
        return {name: _distribution(dimension) for name, dimension in self.space.dimensions.items()}

    def _distributions_of(self, params: Mapping[str, Any]) -> dict[str, BaseDistribution]:
        return {name: self._distributions[name] for name in params}

    def _params(self, point: Point) -> dict[str, Any] | None:
        """Returns a point's values in optuna's form; None where it is outside the space (constraints aside)."""
        params: dict[str, Any] = {}
        for name, dimension in self.space.dimensions.items():
            if self.space.is_active(name, point) != (name in point):
                return None
            if name in point:
                try:
                    params[name] = _to_optuna(dimension, dimension.canonical(point[name]))
                except ValueError:
                    return None
        return params if len(params) == len(point) else None

    def _suggested(self, trial: Trial) -> Point:
        """Returns the point of a trial; parents are suggested before the parameters that depend on them."""
        values: Point = {}
        for name in self.space.parents_first:
            if self.space.is_active(name, values):
                value = trial._suggest(name, self._distributions[name])
                values[name] = _from_optuna(self.space.dimensions[name], value)
        return {name: values[name] for name in self.space.names if name in values}


def _bounded(value: float) -> float:
    return min(_LARGEST, max(-_LARGEST, value))


def _has_own_values(dimension: Dimension) -> bool:
    """Tells whether optuna gets the values themselves; choices, and steps, which it rounds, go in by their index."""
    if isinstance(dimension, Real):
        return dimension.step is None
    return isinstance(dimension, Integer) and dimension.step == 1


def _distribution(dimension: Dimension) -> BaseDistribution:
    from optuna.distributions import (  # noqa: PLC0415
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if _has_own_values(dimension):
        assert isinstance(dimension, Real | Integer)
        log = dimension.scale == "log"
        if isinstance(dimension, Real):
            return FloatDistribution(dimension.low, dimension.high, log=log)
        return IntDistribution(dimension.low, dimension.high, log=log)
    count = int(dimension.size)
    return IntDistribution(0, count - 1) if dimension.is_ordered else CategoricalDistribution(tuple(range(count)))


def _to_optuna(dimension: Dimension, value: Any) -> Any:
    return value if _has_own_values(dimension) else int(dimension.to_unit(value) * dimension.size)


def _from_optuna(dimension: Dimension, value: Any) -> Any:
    return dimension.canonical(
        value if _has_own_values(dimension) else dimension.from_unit((value + 0.5) / dimension.size)
    )
