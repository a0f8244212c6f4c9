"""``python -m tests.performance fidelity``: the cost of the figure of merit that full trainings come to, by policy.

Policies choose points and how far to train each, on 8 and on 64 workers in simulated time. Trainings are those of
recorded tables (`learning_curves`; a point trains as a mean of the nearest recorded ones) and MFHartmann
(`mf_hartmann`). A job takes its epochs' time and a start-up of `START_UP` of a whole training. A training that was
paused goes on from where it was, for peers too, though none of them keeps checkpoints by itself. `oracle` is
the same optimizer with a selection without mistakes.

`fidelity`: as searches with `auto` do it. `promotion`: the rule always decides who goes on; `joint`: always the model
of levels.
`run times`: improvement is weighed against them; else `fidelity` does not use them, as steering does not.

The target of a table is the median, over the seeds, of the best of `auto`'s full trainings within the budget, and 1% of
its distance to the first full trainings' figure less (so that digits nobody needs do not count). `epochs` and `hours`
are the expected costs to reach it, in epochs of all trainings, with those in progress, and in simulated wall time: the
sum over all runs divided by the number of runs that reach it (Hansen et al. 2009, expected running time), as a ratio to
that of `auto`'s full trainings; `>` where no run reaches it, so the true ratio is larger. `left at a quarter` is what
is left of the way from the first full trainings' figure to the last one's, after a quarter of the budget's epochs: the
median over the runs.

Runs are stored as they end, in `STORE`; those that are stored are not done again. `--seeds`, `--problem` and `--runner`
choose; `--show` runs nothing. Rules are developed on made-up curves, `--problem dev:KIND:INSTANCE`. The
goals are those that were set before the rule was written.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import logging
import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.base import Result
from hpo_pilot.optimizers.early_stopping import Report, create_rule
from hpo_pilot.optimizers.level_results import LevelResults
from hpo_pilot.search import EarlyStopping, Point, SearchSpace, point_key
from hpo_pilot.search.promotion import Promotion, first_points
from tests.performance.learning_curves.curves import NAMES, Trainings, trainings
from tests.performance.optimizers.store import runner_version

WORKERS = {8: 64, 64: 128}  #: and how many full trainings are the budget
ETA, LEVELS = 3, 4
START_UP, TOLERANCE = 0.02, 0.01
STORE = Path("build/bench/fidelity.jsonl")
REFERENCE, OURS, STOPPING = "full, auto", "fidelity, auto", "early stopping, auto"
_QUICK = ("mfhartmann3", "mfhartmann6", "digits")


@dataclass
class Job:
    """Trains a trial from one step to another."""

    trial: int
    point: Point
    begin: int
    end: int


class Policy(ABC):
    """Chooses jobs. Values are costs, and infinite where a training failed."""

    reads_steps = False  #: whether it wants the value of every step

    def __init__(self, problem: Trainings, workers: int, seed: int) -> None:
        self.problem, self.workers, self.seed = problem, workers, seed
        self.levels = [problem.steps // ETA**power for power in reversed(range(LEVELS)) if problem.steps >= ETA**power]
        self.numbers = itertools.count(1)

    @abstractmethod
    def jobs(self, free: int) -> Sequence[Job]:
        """Jobs for free workers, fewer where it waits for results."""

    def goes_on(self, job: Job, step: int, value: float) -> bool:
        """Takes the value of a step before the last; False ends the job there."""
        return True

    @abstractmethod
    def over(self, job: Job, step: int, value: float) -> None:
        """Takes the end of a job: its last step, and the value there."""


@dataclass
class Course:
    """(epochs, seconds, best cost at the highest level) whenever that improves, and the end."""

    points: list[tuple[float, float, float]] = field(default_factory=list)
    end: tuple[float, float] = (0.0, 0.0)


def simulate(policy: Policy, budget: float, until: float = -math.inf) -> Course:
    """Runs jobs until `budget` epochs were trained, nothing is left to run, or the cost is `until` or lower."""
    problem, course = policy.problem, Course()
    running: list[tuple[float, int, Job, int, int, float]] = []
    order = itertools.count()
    start_up = START_UP * problem.typical_seconds
    now = epochs = 0.0
    best = math.inf

    def push(job: Job, step: int, at: float) -> None:
        following = step + 1 if policy.reads_steps else job.end
        lasts = problem.seconds(job.point, following) - problem.seconds(job.point, step)
        heapq.heappush(running, (at + lasts, next(order), job, step, following, at))

    def in_progress() -> float:
        return sum((to - since) * max(0.0, now - at) / (end - at) for end, _, _, since, to, at in running if end > at)

    while True:
        if epochs < budget and len(running) < policy.workers:
            for job in policy.jobs(policy.workers - len(running)):
                push(job, job.begin, now + start_up)
        if not running:
            return course
        now, _, job, since, step, _ = heapq.heappop(running)
        epochs += step - since
        value = problem.value(job.point, step)
        if step < job.end and math.isfinite(value) and policy.goes_on(job, step, value):
            push(job, step, now)
            continue
        policy.over(job, step, value)
        if step == problem.steps and value < best:
            best = value
            course.points.append((epochs + in_progress(), now, best))
        course.end = (epochs, now)
        if best <= until:
            return course


# Ours.


class _WithOptimizer(Policy):
    def __init__(self, optimizer: str, problem: Trainings, workers: int, seed: int) -> None:
        super().__init__(problem, workers, seed)
        self.name = optimizer
        self.optimizer = self.new_optimizer()
        self.running: dict[int, Job] = {}

    def new_optimizer(self, levels: Sequence[int] = ()) -> Any:
        trials, (name, _, acquisition) = WORKERS[self.workers], self.name.partition(" ")
        settings = {"acquisition": acquisition} if acquisition else {}
        return create_optimizer(
            name, self.problem.space, seed=self.seed, trials=trials, settings=settings, levels=levels
        )

    def result(self, job: Job, step: int, value: float) -> Result:
        """With the seconds of the job, its start-up included, in proportion to a whole training."""
        seconds = self.problem.seconds(job.point, step) - self.problem.seconds(job.point, job.begin)
        seconds = (seconds + START_UP * self.problem.typical_seconds) * self.problem.steps / (step - job.begin)
        cost = (value,) if math.isfinite(value) else None
        return Result(job.point, cost, seconds=seconds, level=step)

    def new(self, count: int, end: int) -> list[Job]:
        """Jobs of new points."""
        pending = [job.point for job in self.running.values()]
        try:
            points = self.optimizer.ask(count, pending)
        except ExhaustedError:
            return []
        made = [Job(next(self.numbers), point, 0, end) for point in points]
        self.running.update((job.trial, job) for job in made)
        return made


class Full(_WithOptimizer):
    """Every training is a whole one."""

    def jobs(self, free: int) -> Sequence[Job]:
        return self.new(free, self.problem.steps)

    def over(self, job: Job, step: int, value: float) -> None:
        del self.running[job.trial]
        self.optimizer.tell([self.result(job, step, value)])


class Stopping(Full):
    """Our early stopping by ASHA, which looks at every step."""

    reads_steps = True

    def __init__(self, optimizer: str, problem: Trainings, workers: int, seed: int) -> None:
        super().__init__(optimizer, problem, workers, seed)
        rule = create_rule(EarlyStopping(method="asha", max_steps=problem.steps), 1)
        assert rule is not None
        self.rule = rule

    def goes_on(self, job: Job, step: int, value: float) -> bool:
        return not self.rule.look([Report(job.trial, 0, step, value)], {job.trial})

    def over(self, job: Job, step: int, value: float) -> None:
        if step == self.problem.steps and math.isfinite(value):
            self.rule.look([], (), {(job.trial, 0): value})
        elif math.isfinite(value):
            del self.running[job.trial]
            self.optimizer.tell([Result(job.point, self.rule.curves.projected(job.trial), stopped=True)])
            return
        super().over(job, step, value)


class Promoting(_WithOptimizer):
    """Our promotion between levels, each of which is a trial of its own; the optimizer is told as steering tells it."""

    decides: ClassVar[bool | None] = False  #: whether the optimizer decides who goes on; None: while ranks agree

    def __init__(self, optimizer: str, problem: Trainings, workers: int, seed: int) -> None:
        super().__init__(optimizer, problem, workers, seed)
        self.promotion = Promotion(self.levels, ETA, first_points(WORKERS[workers], problem.steps, None))
        self.results = LevelResults()
        self.done: dict[int, Job] = {}
        self.asked: list[Job] = []
        self.last: dict[str, int] = {}  # point -> its last trial
        self.chains: dict[int, int] = {}  # trial -> the first one of its point

    def jobs(self, free: int) -> Sequence[Job]:
        if self.promotion.levels_agree if self.decides is None else self.decides:
            return self.by_model(free)
        made = [self.on(number, int(level)) for number, level in itertools.islice(self.promotion.due(), free)]
        if len(self.asked) < free - len(made):  # points are asked for in batches, for each wants a new optimizer
            self.optimizer = self.new_optimizer()
            self.optimizer.tell(self.results.results())
            self.asked += self.new(self.workers, self.levels[0])
        count = free - len(made)
        made += self.asked[:count]
        del self.asked[:count]
        return made

    def by_model(self, free: int) -> list[Job]:
        """What the optimizer chooses: new points, and points that go on."""
        made = self.asked[:free]
        del self.asked[:free]
        self.optimizer = self.new_optimizer(self.levels)
        self.optimizer.tell(self.results.told)
        for job in self.new(free - len(made), self.levels[0]) if free > len(made) else ():
            number = self.last.get(point_key(job.point))
            if number is None:
                made.append(job)
            else:
                del self.running[job.trial]
                made.append(self.on(number, next(level for level in self.levels if level > self.done[number].end)))
        return made

    def on(self, number: int, level: int) -> Job:
        """The job of a trial that goes on from another one."""
        self.promotion.go_on(number)
        before = self.done[number]
        job = self.running[trial] = Job(trial := next(self.numbers), before.point, before.end, level)
        self.chains[trial] = self.chains.get(number, number)
        return job

    def over(self, job: Job, step: int, value: float) -> None:
        del self.running[job.trial]
        self.done[job.trial] = job
        self.last[point_key(job.point)] = job.trial
        result = self.result(job, step, value)
        chain = self.chains.get(job.trial, job.trial)
        self.promotion.tell(job.trial, job.end, result.values, chain)
        self.results.tell(chain, job.end, result)


class Fidelity(Promoting):
    """As searches with `auto` do it: by its model of levels while ranks agree, else by the rule."""

    decides = None


class Joint(Promoting):
    """The model of levels decides always."""

    decides = True


class Oracle(Full):
    """Selects without mistakes: it is told final values at the lowest level, and trains only improvements on."""

    def __init__(self, optimizer: str, problem: Trainings, workers: int, seed: int) -> None:
        super().__init__(optimizer, problem, workers, seed)
        self.best, self.better = math.inf, list[Job]()

    def jobs(self, free: int) -> Sequence[Job]:
        made = [Job(job.trial, job.point, job.end, self.problem.steps) for job in self.better[:free]]
        del self.better[:free]
        return [*made, *self.new(free - len(made), self.levels[0])] if free > len(made) else made

    def over(self, job: Job, step: int, value: float) -> None:
        if job.begin == 0:
            final = self.problem.value(job.point, self.problem.steps)
            super().over(job, step, final)
            if final < self.best:
                self.best = final
                self.better.append(job)


# Peers.


class OptunaHyperband(Policy):
    """Hyperband's pruner with TPE, both with their defaults."""

    reads_steps = True

    def __init__(self, problem: Trainings, workers: int, seed: int) -> None:
        import optuna

        super().__init__(problem, workers, seed)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        pruner = optuna.pruners.HyperbandPruner(self.levels[0], problem.steps, ETA)
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner)
        self.states = optuna.trial.TrialState
        self.trials: dict[int, Any] = {}

    def jobs(self, free: int) -> Sequence[Job]:
        from tests.performance.optimizers.runners.optuna_samplers import suggested

        made = []
        for _ in range(free):
            trial = self.study.ask()
            made.append(Job(next(self.numbers), suggested(trial, self.problem.space), 0, self.problem.steps))
            self.trials[made[-1].trial] = trial
        return made

    def goes_on(self, job: Job, step: int, value: float) -> bool:
        self.trials[job.trial].report(value, step)
        return not self.trials[job.trial].should_prune()

    def over(self, job: Job, step: int, value: float) -> None:
        trial = self.trials.pop(job.trial)
        if not math.isfinite(value):
            self.study.tell(trial, state=self.states.FAIL)
        elif step < self.problem.steps:
            self.study.tell(trial, state=self.states.PRUNED)
        else:
            self.study.tell(trial, value)


class SmacMultiFidelity(Policy):
    """SMAC3's `MultiFidelityFacade`: Hyperband and a random forest."""

    def __init__(self, problem: Trainings, workers: int, seed: int) -> None:
        import tempfile

        from smac import MultiFidelityFacade, Scenario

        from tests.performance.optimizers.runners import smac_facade

        super().__init__(problem, workers, seed)
        self.facade = smac_facade
        self.folder = tempfile.TemporaryDirectory()
        scenario = Scenario(
            smac_facade.configuration_space(problem.space, seed),
            deterministic=True,
            n_trials=100_000,
            min_budget=self.levels[0],
            max_budget=problem.steps,
            output_directory=Path(self.folder.name),
            seed=seed,
        )
        intensifier = MultiFidelityFacade.get_intensifier(scenario, eta=ETA)
        self.smac = MultiFidelityFacade(
            scenario,
            lambda config, seed, budget: 0.0,
            intensifier=intensifier,
            initial_design=MultiFidelityFacade.get_initial_design(scenario, n_configs=10),
            logging_level=logging.ERROR,
            overwrite=True,
        )
        self.known: dict[Any, tuple[int, int]] = {}  # configuration -> trial, step
        self.asked: dict[int, Any] = {}

    def jobs(self, free: int) -> Sequence[Job]:
        made = []
        for _ in range(free):
            info = self.smac.ask()
            trial, begin = self.known.get(info.config) or (next(self.numbers), 0)
            end = max(begin + 1, round(info.budget))
            self.known[info.config], self.asked[trial] = (trial, end), info
            made.append(Job(trial, self.facade.point_of(self.problem.space, info.config), begin, end))
        return made

    def over(self, job: Job, step: int, value: float) -> None:
        self.smac.tell(self.asked[job.trial], self.facade.told_value(value), save=False)


class SyneTune(Policy):
    """Syne Tune's asynchronous successive halving, which stops and does not pause."""

    reads_steps = True

    def __init__(self, scheduler: str, problem: Trainings, workers: int, seed: int) -> None:
        from syne_tune.backend.trial_status import Trial
        from syne_tune.optimizer import baselines

        super().__init__(problem, workers, seed)
        logging.getLogger("syne_tune").setLevel(logging.ERROR)
        self.trial_class = Trial
        self.scheduler = getattr(baselines, scheduler)(
            _syne_tune_space(problem.space),
            metric="cost",
            time_attr="step",
            max_t=problem.steps,
            random_seed=seed,
            grace_period=self.levels[0],
            reduction_factor=ETA,
        )
        self.trials: dict[int, Any] = {}

    def jobs(self, free: int) -> Sequence[Job]:
        import datetime

        from tests.performance.optimizers.runners.runner import active_point

        made = []
        for _ in range(free):
            number = next(self.numbers)
            config = self.scheduler.suggest().config
            trial = self.trial_class(number, config, datetime.datetime.now(tz=datetime.UTC))
            self.scheduler.on_trial_add(trial)
            self.trials[number] = trial
            made.append(Job(number, active_point(self.problem.space, config), 0, self.problem.steps))
        return made

    def goes_on(self, job: Job, step: int, value: float) -> bool:
        result = {"cost": value, "step": step}
        return bool(self.scheduler.on_trial_result(self.trials[job.trial], result) == "CONTINUE")

    def over(self, job: Job, step: int, value: float) -> None:
        trial = self.trials.pop(job.trial)
        if not math.isfinite(value):
            self.scheduler.on_trial_error(trial)
        elif step == self.problem.steps:
            self.scheduler.on_trial_complete(trial, {"cost": value, "step": step})
        else:
            self.scheduler.on_trial_remove(trial)


def _syne_tune_space(space: SearchSpace) -> dict[str, Any]:
    from syne_tune import config_space as syne

    from hpo_pilot.search import Integer, Ordinal, Real

    made: dict[str, Any] = {}
    for name, dimension in space.dimensions.items():
        match dimension:
            case Real():
                kind = syne.loguniform if dimension.scale == "log" else syne.uniform
                made[name] = kind(float(dimension.low), float(dimension.high))
            case Integer():
                kind = syne.lograndint if dimension.scale == "log" else syne.randint
                made[name] = kind(dimension.low, dimension.high)
            case Ordinal():
                made[name] = syne.ordinal(list(dimension.choices), kind="equal")
            case _:
                made[name] = syne.choice(list(dimension.choices))
    return made


def _with(kind: Callable[..., Policy], name: str) -> Callable[[Trainings, int, int], Policy]:
    return lambda *rest: kind(name, *rest)


#: MOBSTER is no longer in Syne Tune (0.16); its ASHA with quantile regression (Salinas et al. 2023) takes part instead.
_PEERS: dict[str, Callable[[Trainings, int, int], Policy]] = {
    "optuna Hyperband + TPE": OptunaHyperband,
    "SMAC3 multi-fidelity": SmacMultiFidelity,
    "Syne Tune ASHA": _with(SyneTune, "ASHA"),
    "Syne Tune ASHACQR": _with(SyneTune, "ASHACQR"),
}

POLICIES: dict[str, Callable[[Trainings, int, int], Policy]] = {
    "full, random": _with(Full, "random"),
    REFERENCE: _with(Full, "auto"),
    STOPPING: _with(Stopping, "auto"),
    "oracle, auto": _with(Oracle, "auto"),
    "promotion, random": _with(Promoting, "random"),
    "promotion, auto": _with(Promoting, "auto plain"),
    OURS: _with(Fidelity, "auto plain"),
    "fidelity, run times, auto": _with(Fidelity, "auto per_cost"),
    "joint, auto": _with(Joint, "auto plain"),
    **_PEERS,
}


# Runs, and their table.


#: Raised when a change of this file changes results.
_REVISION = 4


def _version(policy: str) -> str:
    return f"r{_REVISION} {runner_version('auto') if policy.endswith('auto') else ''}"


def _stored() -> dict[tuple[Any, ...], tuple[Course, float]]:
    """Runs, each with the cost at which it was ended."""
    found = {}
    for line in STORE.read_text().splitlines() if STORE.exists() else ():
        row = json.loads(line)
        if row["version"] == _version(row["policy"]):
            course = Course([tuple(point) for point in row["course"]], tuple(row["end"]))
            found[row["problem"], row["workers"], row["policy"], row["seed"]] = course, row["until"]
    return found


def measure(*, quick: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Runs what is missing, prints the costs, and the goals."""
    names = options.problem or (_QUICK if quick else NAMES)
    workers = [8] if quick else list(WORKERS)
    seeds = range(options.seeds or (2 if quick else 20))
    policies = [name for name in POLICIES if not options.runner or name in options.runner]
    stored = _stored()
    missing: set[str] = set()
    STORE.parent.mkdir(parents=True, exist_ok=True)
    runs: dict[tuple[Any, ...], Course] = {}
    for key in _keys(names, workers, policies, seeds):
        name, slots, policy, seed = key
        until = -math.inf if policy == REFERENCE else _target(runs, name, slots)
        if key in stored and (stored[key][1] <= until or options.show):
            runs[key] = stored[key][0]
            continue
        if policy in missing or options.show:
            continue
        try:
            begun, made = time.process_time(), POLICIES[policy](trainings(name), slots, seed)
        except ImportError as error:
            print(f"{policy} is left out: {error}")
            missing.add(policy)
            continue
        runs[key] = course = simulate(made, WORKERS[slots] * trainings(name).steps, until)
        row = {"problem": name, "workers": slots, "policy": policy, "seed": seed, "version": _version(policy)}
        row |= {"until": until, "course": course.points, "end": course.end}
        with STORE.open("a") as file:
            file.write(json.dumps(row | {"cpu_seconds": time.process_time() - begun}) + "\n")
    return _print(runs)


def _keys(names: Sequence[str], workers: Sequence[int], policies: Sequence[str], seeds: Sequence[int]) -> Iterator[Any]:
    """The reference first, which sets the targets; then seed after seed, so that all problems have some runs first."""
    others = [policy for policy in policies if policy != REFERENCE]
    for some in ([REFERENCE] if REFERENCE in policies else [], others):
        for seed in seeds:
            for key in itertools.product(names, workers, some):
                yield (*key, seed)


def _reference(runs: Mapping[tuple[Any, ...], Course], name: str, workers: int) -> tuple[float, float]:
    """Returns the first and the last figure of the reference; minus infinity without runs of it."""
    found = [course for key, course in runs.items() if key[:3] == (name, workers, REFERENCE) and course.points]
    if not found:
        return -math.inf, -math.inf
    first, last = (statistics.median_high(course.points[place][2] for course in found) for place in (0, -1))
    return first, last


def _target(runs: Mapping[tuple[Any, ...], Course], name: str, workers: int) -> float:
    """Returns the target of a table; minus infinity without runs of the reference."""
    first, last = _reference(runs, name, workers)
    return last + TOLERANCE * (first - last) if math.isfinite(last) else last


def left_after(courses: Sequence[Course], epochs: float, first: float, last: float) -> float:
    """Returns the median, over runs, of what is left after so many epochs of the way from `first` to `last`."""
    reached = (min((cost for at, _, cost in course.points if at <= epochs), default=first) for course in courses)
    return statistics.median((cost - last) / ((first - last) or math.inf) for cost in reached)


def expected(courses: Sequence[Course], target: float) -> tuple[float, float, int]:
    """Expected epochs and seconds to a target, and how many runs reach it; a lower bound where none does."""
    epochs = seconds = 0.0
    reached = 0
    for course in courses:
        hit = next((point for point in course.points if point[2] <= target), None)
        reached += hit is not None
        spent = hit[:2] if hit else course.end
        epochs, seconds = epochs + spent[0], seconds + spent[1]
    return epochs / max(1, reached), seconds / max(1, reached), reached


def _print(runs: Mapping[tuple[Any, ...], Course]) -> dict[str, Any]:
    heads = ("table", "workers", "policy", "reached", "epochs", "hours", "left at a quarter")
    table = Table(*heads, title_justify="left")
    ratios: dict[str, dict[tuple[str, int], tuple[float, float, bool]]] = {}
    for name, slots in dict.fromkeys(key[:2] for key in runs):
        courses: dict[str, list[Course]] = {}
        for key, course in runs.items():
            if key[:2] == (name, slots):
                courses.setdefault(key[2], []).append(course)
        if REFERENCE not in courses:
            continue
        target = _target(runs, name, slots)
        whole = expected(courses[REFERENCE], target)
        for policy, found in courses.items():
            epochs, seconds, reached = expected(found, target)
            ratio = (epochs / whole[0], seconds / whole[1], reached > 0)
            ratios.setdefault(policy, {})[name, slots] = ratio
            sign = "" if reached else ">"
            left = left_after(found, WORKERS[slots] * trainings(name).steps / 4, *_reference(runs, name, slots))
            cells = (f"{sign}{part:.2f}" for part in ratio[:2])
            table.add_row(name, str(slots), policy, f"{reached} of {len(found)}", *cells, f"{left:.2f}")
    console = Console(width=110, highlight=False)
    console.print(table)
    summary = Table("policy", "epochs", "hours", "tables", title="geometric means", title_justify="left")
    means: dict[str, tuple[float, float]] = {}
    for policy, found in ratios.items():
        means[policy] = tuple(  # type: ignore[assignment]
            math.exp(statistics.fmean(math.log(ratio[part]) for ratio in found.values())) for part in range(2)
        )
        sign = "" if all(ratio[2] for ratio in found.values()) else ">"
        summary.add_row(policy, *(f"{sign}{mean:.2f}" for mean in means[policy]), str(len(found)))
    console.print(summary)
    _print_goals(console, ratios)
    return {"ratio": means, "tables": {p: {f"{n}/{w}": r for (n, w), r in f.items()} for p, f in ratios.items()}}


def _print_goals(console: Console, ratios: Mapping[str, Mapping[Any, tuple[float, float, bool]]]) -> None:
    """Our epochs as a ratio to those of others, over the tables that both have run on."""
    for other in (REFERENCE, STOPPING, *_PEERS):
        goal = {REFERENCE: "at most 0.25", STOPPING: "at most 0.50"}.get(other, "below 1")
        shared = ratios.get(OURS, {}).keys() & ratios.get(other, {}).keys()
        if shared:
            logs = [math.log(ratios[OURS][key][0] / ratios[other][key][0]) for key in shared]
            found = f"{math.exp(statistics.fmean(logs)):.2f} on {len(shared)} tables"
        else:
            found = "not run"
        console.print(f"epochs to those of {other}, goal {goal}: {found}")
