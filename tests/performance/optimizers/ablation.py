"""``python -m tests.performance ablation``: the worth of each rule of `auto` and of `cma`, by switching it off.

Each rule has problems on which it acts, all of them problems to develop on. There the optimizer runs as it is and
without the rule, with the same seeds: mostly `auto` 64 points, `cma` 96, in batches of 8. `rank` is the mean rank
without the rule, of the two: 1.5 if the rule is worth nothing, 2 if every run is worse without it; with a 95% interval
by a bootstrap over the problems. `worse` counts the runs that are worse without the rule, of those that differ; `p` is
Wilcoxon's over them; `CPU` is the time without the rule, as a share. A rule that is worth nothing should go. Rules are
switched off by replacing parts of the optimizer's modules here: the product has no switches.

Not here are rules that only bound the CPU time (how often hyper-parameters are fitted, and on which points), and those
that show in no regret: no point twice, points of tiny feasible regions, stopped trials.

Runs are stored as they end, in build/bench/optimizers/ablation; those of the same sources are not done again.
`--runner` names rules, `--problem` and `--seeds` choose, `--show` runs nothing.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table

from hpo_pilot.optimizers import bayesian, create_optimizer, gaussian_process, objective_models, training_data
from hpo_pilot.optimizers.feasible_region import reflected
from hpo_pilot.search.nondominated import costs_of, hypervolume
from tests.performance import several_objectives
from tests.performance.optimizers import limits, prior, run_times
from tests.performance.optimizers.development import KINDS, NOISES
from tests.performance.optimizers.problem import SETTINGS, Setting
from tests.performance.optimizers.problems import problem
from tests.performance.optimizers.run import RunResult, run
from tests.performance.optimizers.store import FRESH, Store, StoredRun, environment, runner_version
from tests.performance.optimizers.tables import mean_ranks, p_over_runs, rank_intervals, regrets

FOLDER = FRESH.parent / "ablation"
_FEW = Setting("8x8", 8, 8)

# Problems beyond those of the suite: regret after 64 points in batches of 8, of an optimizer and a seed.


def _earlier(name: str, optimizer: str, seed: int) -> float:
    """An earlier search of 64 points by `cma`, whose best place is a little aside, or has to do with nothing."""
    kind, instance, related = name.split(":")
    one, dice = problem(f"dev:{kind}:{instance}"), random.Random(f"{name} {seed}")
    aside = [dice.gauss(0.0, 0.05 if related == "related" else 0.5) for _ in one.space.names]
    made, before = (create_optimizer(each, one.space, seed=seed, trials=64) for each in (optimizer, "cma"))
    for _ in range(_FEW.rounds):
        told = []
        for point in before.ask(_FEW.slots):
            value = one.function(one.space.decode(reflected(np.add(one.space.encode(point), aside)).tolist()))
            told.append((point, None if value is None else 3.0 * value + 1.0))
        before.tell(told)
    made.tell_earlier("before", [(known.point, known.value) for known in before.history])
    return _spent(made, lambda point: (value := one.function(point), value)) - one.minimum


def _folds(name: str, optimizer: str, seed: int) -> float:
    """Three folds a point, and their standard error is told; noise is larger in one half of the space."""
    one, dice = problem(f"dev:{name}"), random.Random(f"folds {name} {seed}")
    made = create_optimizer(optimizer, one.space, seed=seed, trials=_FEW.evaluations)

    def trained(point: Mapping[str, Any]) -> tuple[Any, Any, float]:
        true = one.function(point)
        noise = one.noise * (2.0 if one.space.encode(point)[0] > 0.5 else 0.2)
        folds = [true + dice.gauss(0.0, noise) for _ in range(3)]
        return statistics.fmean(folds), true, statistics.stdev(folds) / math.sqrt(3)

    return _spent(made, trained) - one.minimum


def _spent(made: Any, trained: Callable[[Mapping[str, Any]], Sequence[Any]]) -> float:
    """Returns the true value of the point with the lowest value; `trained` has value, true value, and error."""
    best = (math.inf, math.inf)
    for _ in range(_FEW.rounds):
        results = []
        for point in made.ask(_FEW.slots):
            value, true, *error = trained(point)
            best = min(best, (value, true))
            results.append((point, value, *error))
        made.tell(results)
    return best[1]


def _times(name: str, optimizer: str, seed: int) -> float:
    """The best value in the time in which 8 workers train 64 random points."""
    one, dice = run_times.PROBLEMS[name](), random.Random(0)
    points = [one.space.decode([dice.random() for _ in one.space.names]) for _ in range(200)]
    until = 8 * statistics.fmean(map(one.seconds, points))
    return min(best for at, best, _ in run_times.search(one, {}, seed, until=until) if at <= until)


def _front(name: str, optimizer: str, seed: int) -> float:
    """The hypervolume that is missing to 10."""
    one = several_objectives.PROBLEMS[name]
    return 10.0 - hypervolume(costs_of(several_objectives.ours(optimizer, one, seed)), one.reference)


_MORE: dict[str, Callable[[str, str, int], float]] = {
    "earlier": _earlier,
    "folds": _folds,
    "times": _times,
    "front": _front,
    "limits": lambda name, optimizer, seed: limits._regrets(limits.PROBLEMS[name], optimizer, seed)[-1],
    "prior": lambda name, _, seed: prior._regrets(problem(name.split(":")[0]), name.split(":")[1], seed)[1],
}


def _of(*kinds: str, instances: int = 2) -> tuple[str, ...]:
    return tuple(f"dev:{kind}:{i}" for i in range(instances) for kind in kinds)


_APART = ("many", "edge", "steps", "failing", "penalised", "constrained", "tiny")
_ANY = _of(*(kind for kind in KINDS if kind not in _APART))
_CLIMBED = _of(*(kind for kind in KINDS if kind not in (*_APART, "choices", "table", "plateaus")))
_STEPWISE = _of("mixed", "mixed-rippled", "mixed-noisy", "choices", "tree", "algorithms", "table", instances=3)
_RUGGED = ("rastrigin", "levy", "funnel", "two-basins", "steep", "mixed-rippled")
_FAILING = _of("failing", "penalised", instances=6)
_STEPS = (*_of("plateaus", instances=4), *_of("steps", instances=16))
_EARLIER = tuple(
    f"earlier:{kind}:{i}:related" for i in range(4) for kind in ("quadratic", "mixed", "rastrigin", "tree")
)
_UNRELATED = tuple(name.replace(":related", ":unrelated") for name in _EARLIER)
_PRIOR = tuple(f"prior:{name}:{belief}" for belief in ("right", "wrong") for name in prior._PROBLEMS)
_HEAVY = _of(
    *(f"{kind}+{noise}" for kind in ("quadratic", "rastrigin", "valley", "ridge", "wide", "levy") for noise in NOISES)
)
_HEAVY_MIXED = _of(*(f"{kind}+{noise}" for kind in ("mixed", "mixed-rippled", "tree") for noise in NOISES))
_NOISY = tuple(f"folds:{kind}:{i}" for i in range(6) for kind in ("noisy", "mixed-noisy"))


class Rule(NamedTuple):
    """The parts of hpo_pilot.optimizers that are replaced to switch a rule off, and the problems on which it acts."""

    parts: Mapping[str, Any]
    problems: Sequence[str] = _ANY
    optimizer: str = "auto"
    setting: Setting = _FEW


def _one_model(trend: bool) -> Any:
    """`ValuesLearner.models` with one of the two processes only."""
    wanted = objective_models.ValuesLearner.models

    def models(self: Any, known: int) -> list[Any]:
        return wanted(self, 10**9) if trend else wanted(self, 0)[1:]

    return models


def _without_scale(name: str) -> Any:
    return lambda values: {each: scaled for each, scaled in _scaled_values(values).items() if each != name}


def _straight_fit(*data: Any, least_scale: float | None = None, **more: Any) -> gaussian_process.Fit:
    """`best_fit` of the outcomes without a trend."""
    if least_scale is None:
        return gaussian_process.best_fit(*data, **more)
    return gaussian_process.best_fit(*data, least_scale=least_scale, **{**more, "basis": None})


_near = bayesian.Candidates._near
_scaled_values = training_data.scaled_values

#: Lower regrets count as this: nobody needs a better point.
_FLOOR = 1e-6

#: Rules of `auto`.
_AUTO: dict[str, Rule] = {
    "process with a trend": Rule({"objective_models.ValuesLearner.models": _one_model(False)}),
    "process without a trend": Rule({"objective_models.ValuesLearner.models": _one_model(True)}),
    "scales of the values": Rule(
        {"objective_models.scaled_values": lambda values: dict(list(_scaled_values(values).items())[:1])}
    ),
    "scale with tamed tails": Rule({"objective_models.scaled_values": _without_scale(training_data.TAMED)}),
    "nearly normal scale": Rule({"objective_models.scaled_values": _without_scale(training_data.NORMAL)}),
    "priors of the hyper-parameters": Rule(
        {"gaussian_process.log_prior": lambda theta, scales: (0.0, np.zeros_like(theta))}
    ),
    "second start of a fit": Rule({"gaussian_process._STARTS": (1.0,)}),
    "evenly distributed start": Rule({"bayesian.BayesianOptimizer._start": lambda self, proposals, count: None}),
    "candidates near the best": Rule(
        {"bayesian.Candidates._near": lambda self, best, count, numbers: _near(self, best[:1], 1, numbers)}
    ),
    "gradient ascent": Rule({"bayesian._MOST_CLIMBS": 0, "bayesian._LEAST_CLIMBS": 0}, _CLIMBED),
    "ascents from several starts": Rule({"bayesian._STARTS": 1}, _CLIMBED),
    "discrete neighbours": Rule({"training_data.FeatureMap.neighbours": lambda self, unit: unit[None, :]}, _STEPWISE),
    "chosen points are believed": Rule(
        {
            "acquisition.Surrogate.assume": lambda self, features: None,
            "acquisition.Surrogate.assume_candidate": lambda self, index: None,
        }
    ),
    "every fourth point from cma on steps": Rule({"auto.AutoOptimizer._on_steps": lambda self: False}, _STEPS),
    "cma where pairs of points show heavy noise": Rule(
        {"auto.Pairs.tell_heavy_noise": lambda self, history: False},
        (*_HEAVY, *_HEAVY_MIXED),
        setting=SETTINGS["8x12"],
    ),
    "three points beside the best ones": Rule(
        {"auto.Pairs.offer": lambda self, proposals, pending: None}, setting=SETTINGS["8x12"]
    ),
    "every second point from cma in many dimensions": Rule({"auto.MANY_DIMENSIONS": 10**9}, _of("many", instances=6)),
    "every second point from cma after 1,000 results": Rule(
        {"auto.ALONE": 10**9}, _of(*_RUGGED), setting=Setting("64x24", 64, 24)
    ),
    "model of failures": Rule(
        {"objective_models.SuccessLearner.caution": lambda self, *_: objective_models.Caution(None, 0.0)}, _FAILING
    ),
    "trend in the model of failures": Rule({"objective_models.best_fit": _straight_fit}, _FAILING),
    "least length scale and noise of failures": Rule(
        {"objective_models._LEAST_SCALE": 1e-3, "objective_models._LEAST_NOISE": 1e-10}, _FAILING
    ),
    "more caution after failures": Rule({"objective_models._CAUTION": 0.0}, _FAILING),
    "penalties are failures": Rule(
        {"training_data.penalties": lambda values, rows: np.zeros(len(values), dtype=bool)},
        _of("penalised", instances=6),
    ),
    "narrow dimensions are stretched": Rule(
        {"training_data._NARROW": 0.0}, (*_of("tiny", instances=6), *_of("constrained"))
    ),
    "errors of folds": Rule(
        {"training_data.ScaledValues.variances": lambda self, stds, stopped: np.zeros(len(stds))}, _NOISY
    ),
    "recommended by a model": Rule(
        {"objective_models.ValuesLearner.without_noise": lambda self, *_: "off"},
        _of("noisy", "mixed-noisy", instances=11),
        setting=SETTINGS["8x12"],
    ),
    "earlier searches": Rule({"objective_models.ValuesLearner.transfer": None}, _EARLIER),
    "earlier searches count by evidence": Rule({"objective_models._LOG_ODDS": 1e9}, (*_UNRELATED, *_EARLIER)),
    "starts near the best of earlier searches": Rule({"bayesian._STARTS_APART": 1}, _EARLIER),
    "candidates near the best of earlier searches": Rule(
        {"objective_models.ValuesLearner.earlier_best": lambda self, known: []}, _EARLIER
    ),
    "beliefs weight the acquisition": Rule({"bayesian._FADES": 1e18}, _PRIOR),
    "improvement per cost": Rule({"bayesian._COST": 0.0}, tuple(f"times:{name}" for name in run_times.PROBLEMS)),
    "cost only where it is predicted": Rule(
        {"run_times.RunTimeModel.is_telling": True}, tuple(f"times:{name}" for name in ("constant", "random", "by two"))
    ),
    "model of limits": Rule(
        {"objective_models.LimitLearner.threshold": lambda self, most: None},
        tuple(f"limits:{name}" for name in limits.PROBLEMS),
    ),
    "reference point beyond the front": Rule(
        {"acquisition._SHARE": 0.0}, tuple(f"front:{name}" for name in several_objectives.PROBLEMS)
    ),
}


def _drifting(self: Any, units: Any, active: Any, rng: Any) -> Any:
    """`Distribution._vectors` where inactive coordinates are in the middle, as told."""
    if not self._genotype.ordered:
        return np.tile(self._strategy.centroid, (len(units), 1)), np.zeros((len(units), 1), dtype=bool)
    return units, np.ones(units.shape, dtype=bool)


_ALL = _of(*(kind for kind in KINDS if kind not in ("many", "edge", "steps")))
_WIDE, _LONG = SETTINGS["64x8"], Setting("8x250", 8, 250)
_CATEGORIES = _of("mixed", "mixed-rippled", "mixed-noisy", "choices", "tree", "algorithms", instances=4)


def _cma(parts: Mapping[str, Any], problems: Sequence[str] = _ALL, setting: Setting = SETTINGS["8x12"]) -> Rule:
    return Rule(parts, problems, "cma", setting)


#: Rules of `cma`, which `auto` asks for every second or fourth point.
_CMA: dict[str, Rule] = {
    "mirrored orthogonal steps": _cma(
        {"cma.mirrored_steps": lambda rng, count, coordinates: rng.standard_normal((count, coordinates))}
    ),
    "shortened steps": _cma({"cma._SHORTENED": 1.0}, (*_ALL, *_of("edge", instances=8))),
    "shares of the choices move": _cma({"cma._SHARE_RATE": 0.0}, _CATEGORIES),
    "inactive coordinates do not drift": _cma(
        {"cma.Distribution._vectors": _drifting}, _of("tree", "algorithms", instances=8)
    ),
    "inactive coordinates do not drift, wide": _cma(
        {"cma.Distribution._vectors": _drifting}, _of("tree", "algorithms", instances=8), _WIDE
    ),
    "shorter steps where constraints refuse": _cma(
        {"cma.CmaOptimizer._offer_near": lambda self, *_: None}, _of("constrained", instances=16)
    ),
    "first spread by feasible points": _cma({"cma._LEAST_FEASIBLE": 10**9}, _of("constrained", "tiny", instances=8)),
    "population grows with the batch": _cma({"cma._UPDATES_PER_WIDTH": 10**9}, _ALL, _WIDE),
    "restarts": _cma({"cma.Distribution.is_spent": lambda self: False}, _of(*_RUGGED, instances=3), _LONG),
    "start around earlier searches": _cma({"cma.head_start": lambda *_: None}, _EARLIER),
}

RULES = {**_AUTO, **_CMA}


@contextmanager
def without(rule: str) -> Iterator[None]:
    """Switches a rule off."""
    with ExitStack() as stack:
        for name, part in RULES[rule].parts.items():
            stack.enter_context(mock.patch(f"hpo_pilot.optimizers.{name}", part))
        yield


def measure(*, quick: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing, and prints the table."""
    names = [rule for rule in RULES if not options.runner or rule in options.runner]
    problems = options.problem or (("dev:mixed:0", "dev:plateaus:0") if quick else None)
    rules = {
        name: RULES[name]._replace(problems=[one for one in RULES[name].problems if not problems or one in problems])
        for name in names
    }
    store = Store([FOLDER])
    first = options.first_seed
    seeds = range(first, first + (options.seeds or (1 if quick else 5)))
    for seed in () if options.show else seeds:
        for one in dict.fromkeys(one for rule in rules.values() for one in rule.problems):
            for name, rule in rules.items():
                for variant in (rule.optimizer, f"without {name}") if one in rule.problems else ():
                    if (key := _key(variant, rule, one, seed)) not in store.runs:
                        store.add(_run(variant, rule, one, seed), key[1], key[3], 1, environment(rule.optimizer))
    return _print(store, {name: rule for name, rule in rules.items() if rule.problems}, seeds)


def _key(variant: str, rule: Rule, one: str, seed: int) -> tuple[str, str, str, str, str, int]:
    digest = problem(one).digest if one.startswith("dev:") else ""
    return variant, runner_version(rule.optimizer), one, digest, rule.setting.name, seed


def _run(variant: str, rule: Rule, one: str, seed: int) -> RunResult:
    with ExitStack() as stack:
        if variant != rule.optimizer:
            stack.enter_context(without(variant.removeprefix("without ")))
        kind, _, rest = one.partition(":")
        begun = time.process_time()
        regret = (
            run(rule.optimizer, one, rule.setting, seed).regret
            if kind == "dev"
            else _MORE[kind](rest, rule.optimizer, seed)
        )
        return RunResult(variant, one, rule.setting.name, seed, (regret,), time.process_time() - begun, 0, 0)


def _print(store: Store, rules: Mapping[str, Rule], seeds: Sequence[int]) -> dict[str, Any]:
    table = Table("without", "of", "rank", "95%", "worse", "p", "CPU", "problems", "runs")
    figures: dict[str, Any] = {}
    for name, rule in rules.items():
        pairs: list[list[StoredRun]] = []
        for one in rule.problems:
            for seed in seeds:
                keys = [_key(variant, rule, one, seed) for variant in (rule.optimizer, f"without {name}")]
                if all(key in store.runs for key in keys):
                    both = [store.runs[key] for key in keys]
                    pairs.append([replace(each, trace=(max(each.regret, _FLOOR),)) for each in both])
        if not pairs:
            continue
        whole, mine = zip(*pairs, strict=True)
        found, there = regrets([*whole, *mine]), list(dict.fromkeys(stored.problem for stored in whole))
        variant = f"without {name}"
        low, high = rank_intervals(found, there)[variant]
        figures[name] = row = {
            "rank": mean_ranks(found, there)[variant],
            "interval": (low, high),
            "worse": sum(a.regret < b.regret for a, b in pairs),
            "differ": sum(a.regret != b.regret for a, b in pairs),
            "p": p_over_runs(found[variant], found[rule.optimizer]),
            "cpu": sum(stored.cpu for stored in mine) / sum(stored.cpu for stored in whole),
            "problems": len(there),
            "runs": len(pairs),
        }
        p = "" if row["p"] is None else f"{row['p']:.2g}"
        of = f"{row['worse']} of {row['differ']}"
        interval = f"{low:.2f}–{high:.2f}"
        cells = (f"{row['rank']:.2f}", interval, of, p, f"{row['cpu']:.2f}", str(row["problems"]), str(row["runs"]))
        table.add_row(name, rule.optimizer, *cells)
    Console(width=120, highlight=False).print(table)
    return figures
