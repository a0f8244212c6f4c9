"""One run: an optimizer spends its budget on a problem, in batches or as slots come free."""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpo_pilot.search import point_key
from tests.performance.optimizers.problem import SETTINGS, Evaluation, Problem, Setting, durations
from tests.performance.optimizers.problems import problem as problem_called
from tests.performance.optimizers.runners import Proposal, Runner, make_runner


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    Attributes:
        trace: the regret of the best point so far, after each evaluation in the order in which results came; infinite
            before the first feasible one. With noise it is the true regret of the point that looked best. With two
            objectives it is that of all points together.
        cpu: seconds of this process inside `ask` and `tell`.
        repeats: proposals equal to an earlier one.
        infeasible: proposals that broke a constraint.
        recommended: with noise, the true regret of the point that the runner recommends; None: it recommends none.
    """

    runner: str
    problem: str
    setting: str
    seed: int
    trace: tuple[float, ...]
    cpu: float
    repeats: int
    infeasible: int
    recommended: float | None = None

    @property
    def regret(self) -> float:
        """At the end, of the recommended point if there is one."""
        return self.trace[-1] if self.recommended is None else self.recommended


@dataclass
class _Record:
    """What is noted while a run goes on."""

    problem: Problem
    dice: random.Random
    trace: list[float] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    front: list[tuple[float, ...]] = field(default_factory=list)
    measured: float = math.inf
    regret: float = math.inf
    infeasible: int = 0
    repeats: int = 0

    def evaluate(self, proposal: Proposal) -> Evaluation:
        key = point_key(proposal.point)
        self.repeats += key in self.seen
        self.seen.add(key)
        evaluation = self.problem.evaluate(proposal.point, self.dice)
        self.infeasible += not evaluation.feasible
        if not evaluation.feasible or evaluation.value is None:
            pass
        elif self.problem.objectives > 1:
            self.front.append(evaluation.true)
            self.regret = self.problem.front_regret(self.front)
        elif evaluation.value < self.measured:
            assert evaluation.true is not None
            self.measured = evaluation.value
            self.regret = evaluation.true - self.problem.minimum
        self.trace.append(self.regret)
        return evaluation


class _Clock:
    """The CPU time of what stands inside `with`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._begun = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._begun


def run(runner: str, problem: str | Problem, setting: str | Setting, seed: int) -> RunResult:
    """Spends the setting's budget on the problem; the same result each time, the CPU seconds apart.

    Raises:
        ValueError: an unknown name, or a runner that cannot ask while points are out.
    """
    problem = problem_called(problem) if isinstance(problem, str) else problem
    setting = SETTINGS[setting] if isinstance(setting, str) else setting
    clock = _Clock()
    with clock:
        optimizer = make_runner(runner, problem, setting, seed)
    record = _Record(problem, random.Random(f"noise {problem.name} {setting.name} {seed}"))
    if setting.asynchronous:
        if not optimizer.asynchronous:
            raise ValueError(f"{runner} asks in batches only")
        _run_slots(optimizer, record, clock, setting, durations(problem.name, setting, seed))
    else:
        _run_batches(optimizer, record, clock, setting)
    missing = setting.evaluations - len(record.trace)  # of a space with fewer points than the budget
    trace = (*record.trace, *[record.regret] * missing)
    counts = (clock.seconds, record.repeats, record.infeasible)
    return RunResult(runner, problem.name, setting.name, seed, trace, *counts, _recommended(optimizer, problem))


def _recommended(optimizer: Runner, problem: Problem) -> float | None:
    point = optimizer.recommended() if problem.is_noisy else None
    value = None if point is None else problem.function(point)
    return value - problem.minimum if isinstance(value, float) else None


def _run_batches(optimizer: Runner, record: _Record, clock: _Clock, setting: Setting) -> None:
    for _ in range(setting.rounds):
        with clock:
            proposals = optimizer.ask(setting.slots)
        results = [(proposal, record.evaluate(proposal)) for proposal in proposals]
        with clock:
            optimizer.tell(results)
        if len(proposals) < setting.slots:
            return


def _run_slots(optimizer: Runner, record: _Record, clock: _Clock, setting: Setting, lasting: Sequence[float]) -> None:
    out: list[tuple[float, int, Proposal]] = []  # (end, number, proposal), the next to end first
    now, started = 0.0, 0
    wanted = setting.slots
    while wanted or out:
        if wanted:
            with clock:
                proposals = optimizer.ask(wanted)
            for proposal in proposals:
                heapq.heappush(out, (now + lasting[started], started, proposal))
                started += 1
            if not out:
                return
        now, _, proposal = heapq.heappop(out)
        result = (proposal, record.evaluate(proposal))
        with clock:
            optimizer.tell([result])
        wanted = min(1, setting.evaluations - started)
