"""Exports and figures of many trials."""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpo_pilot.report import mlflow
from hpo_pilot.report.catalogue import build, kinds
from hpo_pilot.report.figure import FigureData, Results
from hpo_pilot.report.importance import importances
from hpo_pilot.search import Search, Trial
from tests.report.exports.made import curves_of, finished, search_of, subject_of
from tests.report.figures.made_up import make_search, make_trials, on_nodes

# How long the export of a large search takes, as trials a second; reading from the store not included. MLflow's client
# writes one trial after another.


def measure_exports(*, quick: bool) -> dict[str, Any]:
    """Exports a search of two folds, nine parameters and ten steps of intermediate values."""
    count = 100 if quick else 1000
    with tempfile.TemporaryDirectory() as folder:
        numbers, path = range(1, count + 1), Path(folder) / "mlflow.db"
        subject = subject_of(search_of(), [finished(number) for number in numbers], curves_of(numbers, steps=10))
        rate, again = (_rate(count, lambda: mlflow.write(subject, path)) for _ in range(2))
    print(f"mlflow {rate:8.0f} trials/s ({count / rate:5.1f} s for {count}); a second time {again:8.0f}/s")
    return {"mlflow": rate}


def _rate(count: int, work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)


# How long figures take to build and how large they are, beside optuna's for the kinds that it has.
#
# Both get the same trials, in memory: seven parameters, one of them conditional, one with choices, three folds, one
# trial
# in eleven failed. The time is processor time of one call once everything is loaded, and of the same call again; the
# size
# is that of the JSON that a page or a notebook gets. `parallel`, `importance`, `contours` and `slices` of optuna draw
# the
# trials that have every parameter alone, or all parameters; it has no folds, slots or failures over the space.

COUNTS = (100, 1_000, 10_000)
#: optuna's slower ones at more trials than this take minutes, or memory that this machine has not.
MOST_FOR_OPTUNA = {"importance": 1_000, "contours": 1_000}


def measure_figures(*, quick: bool = False) -> dict[str, Any]:
    """Measures, prints, and returns seconds and bytes by kind and number of trials."""
    search = make_search()
    build("importance", FigureData(search, make_trials(search, 30)))  # what is loaded once
    figures: dict[str, Any] = {}
    print(f"{'figure':12} {'trials':>7} {'s':>7} {'kB':>6} {'optuna s':>9} {'kB':>7} {'time, ratio':>12}")
    for count in COUNTS[:2] if quick else COUNTS:
        trials = on_nodes(make_trials(search, count))
        reports = {t.number: {0: [(step, 1.0 / step) for step in range(1, 40)]} for t in trials[:100]}
        subject = FigureData(search, trials, reports)
        peers = _peers(search, trials)
        for kind in kinds(search):
            ours = _timed(lambda key=kind.key, subject=subject: [figure.spec for figure in build(key, subject)])
            row = {"seconds": ours[0], "bytes": len(json.dumps(ours[1]))}
            theirs = None
            if kind.key in peers and count <= MOST_FOR_OPTUNA.get(kind.key, count):
                theirs = _timed(peers[kind.key])
                row |= {"optuna_seconds": theirs[0], "optuna_bytes": len(theirs[1].to_json())}
                row["ratio"] = ours[0] / theirs[0]
            figures[f"{kind.key} {count}"] = row
            end = f"{theirs[0]:9.2f} {row['optuna_bytes'] / 1e3:7.0f} {row['ratio']:12.2f}" if theirs else f"{'–':>9}"
            print(f"{kind.key:12} {count:7} {ours[0]:7.3f} {row['bytes'] / 1e3:6.0f} {end}", flush=True)
    return figures


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of a call, the better of two, and what it gave."""
    best, found = float("inf"), None
    for _ in range(2):
        started = time.process_time()
        found = call()
        best = min(best, time.process_time() - started)
    return best, found


def _peers(search: Search, trials: Sequence[Trial]) -> dict[str, Callable[[], Any]]:
    """The same trials' figures by optuna."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    study = optuna.create_study(direction="minimize")
    spaces = {name: _distribution(optuna, dimension) for name, dimension in search.space_dimensions.items()}
    states = optuna.trial.TrialState
    study.add_trials(
        [
            optuna.trial.create_trial(
                params=trial.point,
                distributions={name: spaces[name] for name in trial.point},
                value=trial.value,
                state=states.FAIL if trial.value is None else states.COMPLETE,
            )
            for trial in trials
        ]
    )
    show = optuna.visualization
    most = importances(Results(search, trials))
    pair = [one.name for one in most.parameters[:3]] if most else list(search.space.names[:3])
    return {
        "convergence": lambda: show.plot_optimization_history(study),
        "parallel": lambda: show.plot_parallel_coordinate(study),
        "importance": lambda: show.plot_param_importances(study),
        "contours": lambda: show.plot_contour(study, params=pair),
        "slices": lambda: show.plot_slice(study),
    }


def _distribution(optuna: Any, dimension: Any) -> Any:
    made = optuna.distributions
    if dimension.type in ("categorical", "ordinal"):
        return made.CategoricalDistribution(dimension.choices)
    kind = made.FloatDistribution if dimension.type == "real" else made.IntDistribution
    return kind(dimension.low, dimension.high, log=dimension.scale == "log")
