"""What early stopping saves, and what it costs in quality: our rules beside optuna's pruners on the same curves.

Learning curves are simulated: each trial comes down by a power law from a random start to its final loss, with noise
at every step; steps take log-normal times, and 16 trials run side by side, so that what is compared is what has come
in by then. "Crossing" curves of good trials start worse and come down later. Each policy sees the same trials in the
same order; the figures are medians over the seeds.
"""

from __future__ import annotations

import heapq
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import optuna

from hpo_pilot.optimizers.early_stopping import Report, create_rule
from hpo_pilot.search import EarlyStopping

TRIALS, STEPS, WORKERS = 200, 81, 16
KINDS = {"plain": 0.0, "crossing": 1.0}


@dataclass(frozen=True)
class Curve:
    """One trial."""

    values: list[float]
    seconds: float  # a step

    @property
    def final(self) -> float:
        return self.values[-1]


def curves(seed: int, crossing: float) -> list[Curve]:
    """The trials of one search."""
    dice = random.Random(f"{seed} {crossing}")
    found = []
    for _ in range(TRIALS):
        quality = dice.random()  # 0: the best
        final = 0.1 + quality**1.5 + 0.02 * dice.gauss(0, 1)
        rate = dice.uniform(0.4, 1.2) * (1 - 0.5 * crossing * (1 - quality))
        start = final + dice.uniform(0.5, 2.0) * (1 + 0.5 * crossing * (1 - quality))
        values = [
            final + (start - final) * (step**-rate - STEPS**-rate) / (1 - STEPS**-rate) + 0.02 * dice.gauss(0, 1)
            for step in range(1, STEPS)
        ]
        found.append(Curve([*values, final], dice.lognormvariate(0, 0.4)))
    return found


class Policy(Protocol):
    """Told of every value; says whether the trial stops. `ended`: the trial ran to its end."""

    def stops(self, trial: int, step: int, value: float) -> bool: ...

    def ended(self, trial: int) -> None: ...


class Ours:
    """A rule of ours."""

    def __init__(self, **settings: Any) -> None:
        self.rule = create_rule(EarlyStopping(**settings), 1)

    def stops(self, trial: int, step: int, value: float) -> bool:
        return self.rule is not None and bool(self.rule.look([Report(trial, 0, step, value)], {trial}))

    def ended(self, trial: int) -> None:
        """The rule goes by what was reported alone."""


class Optunas:
    """A pruner of optuna's, through its own study."""

    def __init__(self, pruner: optuna.pruners.BasePruner) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.study = optuna.create_study(pruner=pruner, sampler=optuna.samplers.RandomSampler(seed=0))
        self.trials: dict[int, optuna.Trial] = {}
        self.last = 0.0

    def stops(self, trial: int, step: int, value: float) -> bool:
        mine = self.trials.get(trial) or self.trials.setdefault(trial, self.study.ask())
        mine.report(value, step)
        self.last = value
        stop = mine.should_prune()
        if stop:
            self.study.tell(mine, state=optuna.trial.TrialState.PRUNED)
        return bool(stop)

    def ended(self, trial: int) -> None:
        self.study.tell(self.trials[trial], self.last)


POLICIES: dict[str, Callable[[], Policy]] = {
    "none": lambda: Ours(method="none"),
    "asha": lambda: Ours(method="asha", max_steps=STEPS),
    "asha, max_steps unknown": lambda: Ours(method="asha"),
    "median": lambda: Ours(method="median"),
    "optuna SuccessiveHalving": lambda: Optunas(
        optuna.pruners.SuccessiveHalvingPruner(min_resource=3, reduction_factor=3)
    ),
    "optuna SuccessiveHalving, auto": lambda: Optunas(optuna.pruners.SuccessiveHalvingPruner()),
    "optuna Median": lambda: Optunas(optuna.pruners.MedianPruner()),
}


def run(policy: Policy, trials: list[Curve]) -> tuple[float, float, float]:
    """(share of the compute used, final loss of the best that ran to its end above the best of all, CPU-s)."""
    waiting = list(enumerate(trials, start=1))[::-1]
    clock: list[tuple[float, int, int]] = []  # (when, trial, step)
    used, best = 0.0, float("inf")
    begun = time.process_time()

    def begin(now: float) -> None:
        if waiting:
            number, curve = waiting.pop()
            heapq.heappush(clock, (now + curve.seconds, number, 1))

    for _ in range(WORKERS):
        begin(0.0)
    while clock:
        now, number, step = heapq.heappop(clock)
        curve = trials[number - 1]
        used += curve.seconds
        stops = policy.stops(number, step, curve.values[step - 1])
        if step == STEPS:
            best = min(best, curve.final)
            if not stops:
                policy.ended(number)
        if stops or step == STEPS:
            begin(now)
        else:
            heapq.heappush(clock, (now + curve.seconds, number, step + 1))
    total = sum(curve.seconds * STEPS for curve in trials)
    return used / total, best - min(curve.final for curve in trials), time.process_time() - begun


def measure(*, quick: bool) -> dict[str, Any]:
    """10 searches of 200 trials for each kind of curves and each policy (quick: 3)."""
    figures: dict[str, Any] = {}
    print(f"{TRIALS} trials of {STEPS} steps, {WORKERS} side by side; quality: final loss above the best of all trials")
    print(f"{'curves':9} {'policy':31} {'compute':>8} {'quality':>8} {'worst':>8} {'CPU-s':>7}")
    for kind, crossing in KINDS.items():
        for name, make in POLICIES.items():
            runs = [run(make(), curves(seed, crossing)) for seed in range(3 if quick else 10)]
            used, loss, cpu = (statistics.median(values) for values in zip(*runs, strict=True))
            worst = max(values[1] for values in runs)
            figures[f"{kind}/{name}"] = {"compute": used, "quality": loss, "worst": worst, "cpu_seconds": cpu}
            print(f"{kind:9} {name:31} {used:8.1%} {loss:8.4f} {worst:8.4f} {cpu:7.2f}", flush=True)
    return figures
