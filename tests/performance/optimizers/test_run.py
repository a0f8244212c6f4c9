from __future__ import annotations

import dataclasses
import importlib.util
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from hpo_pilot.search import point_key
from tests.performance.optimizers import run as run_module
from tests.performance.optimizers.problem import Evaluation, Problem
from tests.performance.optimizers.problems import problem
from tests.performance.optimizers.run import run
from tests.performance.optimizers.runners import OURS, PEERS, Proposal, Runner, make_runner
from tests.performance.optimizers.setting import SETTINGS, Setting, durations

SMALL = Setting("small", 4, 3)
SMALL_ASYNC = Setting("small-async", 4, 3, asynchronous=True)

# skopt and the GPs take seconds even here; the same driver runs them all.
RUNNERS = [name for name in (*OURS, *PEERS) if name not in ("skopt", "optuna-gp", "bayesian", "auto")]


class Watched(Runner):
    """Passes everything on and notes it."""

    def __init__(self, inner: Runner, log: list[tuple[str, Any]]) -> None:
        super().__init__(inner.problem, inner.setting, inner.seed)
        self._inner, self._log = inner, log

    def ask(self, n: int) -> list[Proposal]:
        proposals = self._inner.ask(n)
        self._log.append(("ask", proposals))
        return proposals

    def tell(self, results: Sequence[tuple[Proposal, Evaluation]]) -> None:
        self._log.append(("tell", [proposal for proposal, _ in results]))
        self._inner.tell(results)


@pytest.mark.parametrize("setting", [SMALL, SMALL_ASYNC], ids=lambda setting: setting.name)
@pytest.mark.parametrize("name", ["mixed7", "branches", "constrained7"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_every_runner_keeps_to_the_budget(
    runner: str, name: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[tuple[str, Any]] = []
    evaluated: Counter[str] = Counter()
    monkeypatch.setattr(run_module, "make_runner", lambda *a: Watched(make_runner(*a), log))
    it = problem(name)

    def counted(point: Any) -> float | None:
        evaluated[point_key(point)] += 1
        return it.function(point)

    result = run(runner, dataclasses.replace(it, function=counted), setting, 1)
    assert len(result.trace) == setting.evaluations == evaluated.total()
    assert list(result.trace) == sorted(result.trace, reverse=True)
    assert result.repeats == evaluated.total() - len(evaluated)
    out: set[int] = set()
    for what, proposals in log:
        if what == "ask":
            out |= {id(proposal) for proposal in proposals}
            assert len(out) == setting.slots or not setting.asynchronous
        else:
            assert len(proposals) == (1 if setting.asynchronous else setting.slots)
            out -= {id(proposal) for proposal in proposals}
    assert not out
    if runner in OURS:
        assert result.repeats == result.infeasible == 0


@pytest.mark.parametrize("runner", [name for name in RUNNERS if name not in OURS])
@pytest.mark.parametrize("setting", [SMALL, SMALL_ASYNC], ids=lambda setting: setting.name)
def test_a_run_is_the_same_each_time(runner: str, setting: Setting) -> None:
    first, again = (run(runner, "mixed7", setting, 3).trace for _ in range(2))
    assert first == again
    assert first != run(runner, "mixed7", setting, 4).trace


def test_results_come_in_the_order_in_which_evaluations_end(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[str, Any]] = []
    monkeypatch.setattr(run_module, "make_runner", lambda *a: Watched(make_runner(*a), log))
    run("random", "branin", SMALL_ASYNC, 2)
    lasting = durations("branin", SMALL_ASYNC, 2)
    started = [id(proposal) for what, proposals in log if what == "ask" for proposal in proposals]
    told = [started.index(id(proposals[0])) for what, proposals in log if what == "tell"]
    ends: dict[int, float] = {}
    clock, following = 0.0, SMALL_ASYNC.slots
    ends = {number: lasting[number] for number in range(following)}
    for number in told:
        assert ends[number] == min(ends.values())
        clock = ends.pop(number)
        if following < SMALL_ASYNC.evaluations:
            ends[following] = clock + lasting[following]
            following += 1
    assert told != sorted(told)


def test_infeasible_and_failed_points_never_count_as_the_best() -> None:
    class Fixed(Runner):
        values = iter([-5.0, None, 3.0, 2.0])

        def ask(self, n: int) -> list[Proposal]:
            return [Proposal(dict(problem("branin").best)) for _ in range(n)]

        def tell(self, results: Sequence[tuple[Proposal, Evaluation]]) -> None:
            assert [evaluation.feasible for _, evaluation in results] == [False, True, True, True]

    it = problem("branin")
    broken = iter([(1.0,), (0.0,), (0.0,), (-1.0,)])
    changed = Problem("made up", it.space, lambda _: next(Fixed.values), 1.5, it.best, lambda _: next(broken))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "make_runner", Fixed)
        patch.setattr(run_module, "make_runner", lambda _, *rest: Fixed(*rest))
        result = run("fixed", changed, Setting("one", 4, 1), 0)
    assert result.trace == (float("inf"), float("inf"), 1.5, 0.5)
    assert (result.infeasible, result.repeats) == (1, 3)


def test_batch_only_runners_refuse_to_run_asynchronously() -> None:
    with pytest.raises(ValueError, match="batches only"):
        run("skopt", "branin", SETTINGS["async8"], 0)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="GPSampler needs torch: the extra bench-gp")
def test_gp_sampler_keeps_to_the_budget() -> None:
    assert len(run("optuna-gp", "branches", SMALL_ASYNC, 1).trace) == SMALL_ASYNC.evaluations
