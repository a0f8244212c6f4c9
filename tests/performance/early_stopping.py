"""What early stopping saves, and what it costs in quality: our rules beside Optuna's pruners on the same curves.

The curves are those of real trainings, of each point three folds (`tests/performance/learning_curves`). They are
replayed in simulated time: a search draws points from a table, trains them in few or many slots, and reports as it goes
on. Our rules run in the product's own steering, against a workflow manager in memory. Optuna's users train the folds of
a trial one after another in one objective function, and report every step of each: so do its trials here. All policies
have the same points in the same order.

`compute` is the training time as a part of that without early stopping. `worse` is by how much the reported best trial
is worse than without early stopping, by its true figure of merit, the mean over all its folds: on average over the
seeds, in units of the scatter of that best over the seeds. `lost` is the share of the searches where it is worse at
all.
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import optuna

from hpo_pilot.search import TrialState
from tests.performance.learning_curves import Problem, load
from tests.steering.memory_slots import PERIOD, Training, replay

PROBLEMS = ("digits", "bdt", "calo_gan")
#: By slots: how many trials a search has; but no more than three quarters of the points of a table.
TRIALS = {2: 24, 8: 32, 32: 48}
FOLDS = (1, 3)


@dataclass(frozen=True)
class Scan:
    """One search.

    Attributes:
        trials: of each its folds.
        sign: 1 where lower is better, else -1.
        steps: of a whole training.
    """

    trials: list[list[Training]]
    slots: int
    sign: float
    steps: int

    @property
    def seconds(self) -> float:
        """Of all trainings."""
        return sum(fold.seconds for trial in self.trials for fold in trial)

    def true(self, number: int) -> float:
        """The figure of merit of a trial; lower is better, infinity where it failed."""
        finals = [fold.final for fold in self.trials[number - 1]]
        good = [final for final in finals if final is not None]
        return self.sign * statistics.fmean(good) if len(good) == len(finals) else float("inf")

    @property
    def best(self) -> float:
        """Of all trials."""
        return min(self.true(number) for number in range(1, len(self.trials) + 1))


def scan_of(problem: Problem, folds: int, slots: int, seed: int) -> Scan:
    """A search over points of a table, drawn by the seed."""
    count = min(TRIALS[slots], len(problem.points) * 3 // 4)
    points = random.Random(f"{problem.name} {seed}").sample(problem.points, count)
    return Scan([point[:folds] for point in points], slots, 1 if problem.goal == "minimize" else -1, problem.steps)


#: The seconds of training, and the trials that ran to their end.
Outcome = tuple[float, list[int]]
Policy = Callable[[Scan], Outcome]


def ours(**early: Any) -> Policy:
    """A rule of ours. `asha` is told how many steps a training has, unless `max_steps` is None."""

    def policy(scan: Scan) -> Outcome:
        told = {"max_steps": scan.steps} if early["method"] == "asha" and "max_steps" not in early else {}
        settings = {key: value for key, value in {**early, **told}.items() if value is not None}
        goal = "minimize" if scan.sign > 0 else "maximize"
        objective = {"metric": "figure", "goal": goal}
        trials, used = replay(scan.trials, scan.slots, early_stopping=settings, objective=objective)
        return used, [trial.number for trial in trials if trial.state is TrialState.FINISHED]

    return policy


def optunas(make: Callable[[Scan], optuna.pruners.BasePruner]) -> Policy:
    """A pruner of Optuna's, through its own study: each slot runs a trial, fold after fold."""

    def policy(scan: Scan) -> Outcome:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        direction = "minimize" if scan.sign > 0 else "maximize"
        study = optuna.create_study(
            pruner=make(scan), sampler=optuna.samplers.RandomSampler(seed=0), direction=direction
        )
        period = PERIOD * statistics.median(fold.seconds for trial in scan.trials for fold in trial)
        waiting = itertools.count()
        clock = [(0.0, next(waiting), _folds(study, trial, period)) for trial in scan.trials[: scan.slots]]
        used, finished, more = 0.0, [], iter(range(len(clock), len(scan.trials)))
        while clock:
            now, number, trial = heapq.heappop(clock)
            try:
                seconds = next(trial)
                used += seconds
                heapq.heappush(clock, (now + seconds, number, trial))
                continue
            except StopIteration as end:
                finished += [number + 1] if end.value else []
            if (one := next(more, None)) is not None:
                heapq.heappush(clock, (now, one, _folds(study, scan.trials[one], period)))
        return used, finished

    return policy


def _folds(study: optuna.Study, trainings: list[Training], period: float) -> Any:
    """Trains a trial; yields the seconds to its next report, and returns whether it came to its end."""
    trial = study.ask()
    for fold, training in enumerate(trainings):
        done, steps = 0.0, 0
        while done < training.seconds:
            pause = min(period, training.seconds - done)
            yield pause
            done += pause
            for step in range(steps, training.steps_after(done)):
                trial.report(training.curve[step], fold * len(training.curve) + step + 1)
            steps = training.steps_after(done)
            if (fold, steps) < (len(trainings) - 1, len(training.curve)) and trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                return False
    finals = [training.final for training in trainings]
    if None in finals:
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return False
    study.tell(trial, statistics.fmean(final for final in finals if final is not None))
    return True


def _halving(scan: Scan) -> optuna.pruners.BasePruner:
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=scan.steps // 9, reduction_factor=3)


def _hyperband(scan: Scan) -> optuna.pruners.BasePruner:
    most = scan.steps * len(scan.trials[0])
    return optuna.pruners.HyperbandPruner(min_resource=scan.steps // 9, max_resource=most, reduction_factor=3)


POLICIES: dict[str, Policy] = {
    "asha": ours(method="asha"),
    "asha, max_steps unknown": ours(method="asha", max_steps=None),
    "median": ours(method="median"),
    "optuna Median": optunas(lambda _: optuna.pruners.MedianPruner()),
    "optuna SuccessiveHalving": optunas(_halving),
    "optuna Hyperband": optunas(_hyperband),
}


def measure(*, quick: bool) -> dict[str, Any]:
    """12 searches for each table, number of folds and of slots, and each policy (quick: 3)."""
    figures: dict[str, Any] = {}
    print(f"{'curves':9} {'folds':>5} {'slots':>5} {'policy':25} {'compute':>8} {'worse':>6} {'lost':>5} {'CPU-s':>6}")
    for name, folds, slots in itertools.product(PROBLEMS, FOLDS, TRIALS):
        problem = load(name)
        scans = [scan_of(problem, folds, slots, seed) for seed in range(3 if quick else 12)]
        scatter = statistics.stdev(scan.best for scan in scans) or float("nan")
        for label, policy in POLICIES.items():
            begun = time.process_time()
            found = [(scan, *policy(scan)) for scan in scans]
            losses = [min(map(scan.true, done), default=float("inf")) - scan.best for scan, _, done in found]
            row = {
                "compute": statistics.fmean(used / scan.seconds for scan, used, _ in found),
                "worse": statistics.fmean(losses) / scatter,
                "lost": sum(loss > 0 for loss in losses) / len(losses),
                "cpu_seconds": (time.process_time() - begun) / len(scans),
            }
            figures[f"{name}/{folds}/{slots}/{label}"] = row
            print(
                f"{name:9} {folds:5} {slots:5} {label:25} {row['compute']:8.0%} {row['worse']:6.2f} {row['lost']:5.0%} "
                f"{row['cpu_seconds']:6.2f}",
                flush=True,
            )
    _together(figures)
    return figures


def _together(figures: dict[str, Any]) -> None:
    print(f"\n{'all of them':22} {'policy':25} {'compute':>8} {'most':>6} {'worse':>6} {'most':>6} {'lost':>5}")
    for label in POLICIES:
        rows = [row for key, row in figures.items() if key.endswith(f"/{label}")]
        compute, worse, lost = ([row[what] for row in rows] for what in ("compute", "worse", "lost"))
        means = [statistics.fmean(values) for values in (compute, worse, lost)]
        print(
            f"{'':22} {label:25} {means[0]:8.0%} {max(compute):6.0%} {means[1]:6.2f} {max(worse):6.2f} {means[2]:5.0%}"
        )
