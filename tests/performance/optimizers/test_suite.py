"""The benchmark of the optimizers: problems, ranks, runs, and stored results."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.util
import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpo_pilot.search import Categorical, Integer, Ordinal, Point, SearchSpace, point_key
from tests.performance.optimizers import ablation, public, suite
from tests.performance.optimizers import run as run_module
from tests.performance.optimizers.development import NOISES
from tests.performance.optimizers.problem import SETTINGS, Evaluation, Problem, Setting, durations
from tests.performance.optimizers.problems import SUITES, problem
from tests.performance.optimizers.run import RunResult, run
from tests.performance.optimizers.run import run as run_once
from tests.performance.optimizers.runners import OURS, PEERS, Proposal, Runner, make_runner, runner_class
from tests.performance.optimizers.runners.runner import has_steps
from tests.performance.optimizers.store import COMMITTED, Store, runner_version
from tests.performance.optimizers.tables import (
    beaten,
    mean_ranks,
    p_over_problems,
    p_over_runs,
    peer_wins,
    rank_intervals,
    ranks,
)

PUBLIC = public.share_of(public.NAMES, 0.01)
NAMES = (*SUITES["table"], *SUITES["dev"][::2], *(name for name in PUBLIC if not name.startswith("biobj")))


def sampled(problem: Problem, count: int) -> list[Point]:
    """Points all over the space, and neighbours of the best one: near it a wrong minimum shows first."""
    dice = random.Random(problem.name)
    place = problem.space.encode(problem.best)
    points = [problem.space.decode([dice.random() for _ in place]) for _ in range(count)]
    for _ in range(count):
        width = 10 ** dice.uniform(-6, -0.5)
        moved = [u + dice.gauss(0, width) * (dice.random() < 0.5) for u in place]
        points.append(problem.space.decode(moved))
    return points


@pytest.mark.parametrize("name", NAMES)
def test_the_minimum_is_attained_and_nothing_is_below(name: str) -> None:
    it = problem(name)
    assert it.space.canonical(it.best) == it.best
    best = it.evaluate(it.best, random.Random(1))
    assert best.feasible
    scale = max(1.0, abs(it.minimum))
    assert best.true == pytest.approx(it.minimum, abs=1e-7 * scale)
    for point in sampled(it, 60):
        evaluation = it.evaluate(point, random.Random(1))
        if evaluation.feasible and evaluation.true is not None:
            assert evaluation.true >= it.minimum - 1e-9 * scale, point


def test_the_public_problems_are_the_ones_that_were_fixed() -> None:
    assert len(public.NAMES) == 24 * 9 + 30 * 3 + 92 * 3 + 15
    of_each = [f"{name} {problem(name).digest}" for name in public.NAMES[::29]]
    text = "\n".join([*public.NAMES, *of_each])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "9231025b33fa26b7"


def test_a_larger_share_of_the_public_problems_has_those_of_a_smaller_one() -> None:
    some, more = (set(public.share_of(public.NAMES, share)) for share in (0.02, 0.1))
    assert some < more
    assert {public.group(name) for name in some} == {public.group(name) for name in public.NAMES}


@pytest.mark.parametrize("function", [101, 103, 107, 108, 109, 114])
def test_the_noise_is_that_of_the_library(function: int) -> None:
    """But for uniform noise, whose two factors depend on each other there: their seeds are neighbours."""
    it = public.problem(f"noisy:f{function}:i{1 + function % 3:02}:d05")
    point = it.space.decode([0.3, 0.8, 0.2, 0.6, 0.7])
    library = public._coco_problem("noisy", function, 1 + function % 3, 5)
    dice = random.Random(1)
    drawn = [
        sorted(measure() - it.minimum for _ in range(4000))
        for measure in (
            lambda: it.evaluate(point, dice).value,
            lambda: float(library(list(point.values()))),
        )
    ]
    is_uniform = (function - 101) % 3 == 1
    for place in (400, 2000, 3600):
        assert drawn[0][place] == pytest.approx(drawn[1][place], rel=0.7 if is_uniform else 0.15)


def test_a_repeat_of_a_table_is_measured_and_their_mean_is_true() -> None:
    it = problem("hpolib:naval_propulsion")
    dice = random.Random(1)
    values = {it.evaluate(it.best, dice).value for _ in range(100)}
    assert len(values) == 4
    assert statistics.fmean(values) == pytest.approx(it.minimum)


def test_the_regret_of_two_objectives_is_that_of_all_points_together() -> None:
    it = Problem("two", problem("branin").space, lambda _: None, 0.0, {}, ideal=(0.0, 10.0), nadir=(1.0, 20.0))
    assert it.front_regret([(0.0, 10.0)]) == 0.0
    assert it.front_regret([(0.5, 10.0), (0.0, 15.0), (5.0, 5.0)]) == pytest.approx(0.25)
    assert it.front_regret([(4.0, 60.0)]) == pytest.approx(1.0 + 5.0)
    found = run("random", "biobj:f001:i02:d05", SMALL, 0).trace
    assert all(math.isfinite(regret) and regret > 0.0 for regret in found)
    assert list(found) == sorted(found, reverse=True)


@pytest.mark.parametrize("name", [name for name in NAMES if "constrained" in name])
def test_measured_violations_and_the_expressions_draw_the_same_line(name: str) -> None:
    it = problem(name)
    points = sampled(it, 150)
    feasible = [it.evaluate(point, random.Random(1)).feasible for point in points]
    assert feasible == [it.space.is_feasible(point) for point in points]
    assert any(feasible)
    assert not all(feasible)


def test_one_percent_of_the_constrained_box_or_less_is_feasible() -> None:
    it = problem("constrained7")
    dice = random.Random(5)
    points = [it.space.decode([dice.random() for _ in it.space.names]) for _ in range(3000)]
    share = sum(it.evaluate(point, dice).feasible for point in points) / len(points)
    assert 0.0 < share <= 0.01


def test_a_development_problem_is_the_same_each_time_and_others_differ() -> None:
    assert problem("dev:mixed:3").digest == problem.__wrapped__("dev:mixed:3").digest
    assert problem("dev:mixed:3").digest != problem("dev:mixed:4").digest


def test_the_development_suite_has_every_kind_of_dimension() -> None:
    dimensions = [d for name in SUITES["dev"] for d in problem(name).space.dimensions.values()]
    for kind in (Integer, Ordinal, Categorical):
        assert any(isinstance(dimension, kind) for dimension in dimensions)
    assert any(dimension.when for dimension in dimensions)
    assert any(getattr(dimension, "scale", "") == "log" for dimension in dimensions)
    sizes = {len(problem(name).space.names) for name in SUITES["dev"]}
    assert min(sizes) <= 3 and max(sizes) >= 14


@pytest.mark.parametrize("noise", NOISES)
def test_heavy_noise_is_as_large_as_the_differences_between_good_points(noise: str) -> None:
    it, plain, dice = problem(f"dev:quadratic+{noise}:0"), problem("dev:quadratic:0"), random.Random(1)
    points = [it.space.decode([dice.random() for _ in it.space.names]) for _ in range(200)]
    measured = [[it.evaluate(point, dice).value for point in points] for _ in range(2)]
    true, *others = (np.argsort(values).tolist() for values in ([plain.function(point) for point in points], *measured))
    assert all(len({*true[:20]} & {*other[:20]}) < 18 for other in others) and others[0] != others[1]
    assert {it.evaluate(point, dice).true for point in points} == {plain.function(point) for point in points}


def test_noise_disturbs_what_is_told_and_not_the_regret() -> None:
    it = problem("dev:noisy:0")
    dice = random.Random(1)
    found = [it.evaluate(it.best, dice) for _ in range(200)]
    assert {evaluation.true for evaluation in found} == {it.function(it.best)}
    values = [evaluation.value for evaluation in found if evaluation.value is not None]
    mean = sum(values) / len(values)
    spread = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    assert spread == pytest.approx(it.noise, rel=0.2)


@pytest.mark.parametrize("runner", ["cma", "cmaes"])
def test_with_noise_the_regret_is_that_of_the_recommended_point(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if runner == "cmaes":
        pytest.importorskip("cmaes")
    it = problem("dev:noisy:0")
    found = run(runner, it, Setting("few", 8, 4), 0)
    assert found.regret == found.recommended
    best = it.best
    monkeypatch.setattr(runner_class(runner), "recommended", lambda _: best)
    assert run(runner, it, Setting("few", 8, 4), 0).regret == pytest.approx(0.0)
    assert run(runner, "branin", Setting("few", 8, 4), 0).recommended is None


def test_peers_without_steps_take_integers() -> None:
    def space(**dimension: Any) -> SearchSpace:
        return SearchSpace.from_dict({"x": {"low": 0, "high": 8, **dimension}})

    assert not has_steps(space(type="integer"))
    assert not has_steps(space(type="real"))
    assert has_steps(space(type="integer", step=2))
    assert has_steps(space(type="real", step=0.5))


def test_the_expected_rank_counts_pairs_of_runs_and_halves_ties() -> None:
    assert beaten([1.0, 3.0], [2.0, 3.0]) == pytest.approx((0 + 0 + 1 + 0.5) / 4)
    table = {"a": {"p": [1.0, 3.0]}, "b": {"p": [2.0, 3.0]}, "c": {"p": [0.0]}}
    assert ranks(table, "p") == {
        "a": pytest.approx(1 + 0.375 + 1),
        "b": pytest.approx(1 + 0.625 + 1),
        "c": pytest.approx(1.0),
    }


def test_ranks_of_a_problem_add_up_whatever_the_number_of_seeds() -> None:
    table = {"a": {"p": [5.0] * 7}, "b": {"p": [5.0, math.inf]}, "c": {"p": [math.inf] * 3}}
    assert sum(ranks(table, "p").values()) == pytest.approx(1 + 2 + 3)


def test_who_lacks_a_problem_is_neither_ranked_nor_ranked_against() -> None:
    table = {"a": {"p": [1.0], "q": [2.0]}, "b": {"p": [2.0], "q": [1.0]}, "partial": {"p": [0.0]}}
    assert mean_ranks(table, ["p", "q"]) == {"a": 1.5, "b": 1.5}
    assert mean_ranks(table, ["p"])["partial"] == 1.0


def test_the_interval_of_a_mean_rank_holds_it_and_is_none_where_all_problems_agree() -> None:
    table = {"a": {f"p{i}": [float(i % 3)] for i in range(9)}, "b": {f"p{i}": [1.5] for i in range(9)}}
    low, high = rank_intervals(table, list(table["a"]))["a"]
    assert low < mean_ranks(table, list(table["a"]))["a"] < high
    assert rank_intervals({"a": {"p": [1.0]}, "b": {"p": [2.0]}}, ["p"]) == {"a": (1.0, 1.0), "b": (2.0, 2.0)}


def test_a_peer_wins_where_more_than_chance_is_between_them() -> None:
    ours = {"p": [5.0 + i for i in range(10)], "q": [float(i) for i in range(10)]}
    peer = {"p": [float(i) / 10 for i in range(10)], "q": [i + 0.5 for i in range(10)]}
    assert [case[:2] for case in peer_wins({"ours": ours, "peer": peer}, "ours")] == [("peer", "p")]
    assert peer_wins({"ours": {"p": [2.0]}, "peer": {"p": [1.0]}}, "ours") == []


def test_p_values_do_not_depend_on_a_problems_scale() -> None:
    first = {"p": [1.0, 2.0, 3.0, 4.0], "q": [5.0, 6.0, 7.0, 9.0]}
    second = {"p": [2.5, 2.6, 3.5, 5.0], "q": [6.5, 7.5, 8.5, 8.0]}
    stretched = [{"p": [1e6 * v for v in t["p"]], "q": t["q"]} for t in (first, second)]
    p = p_over_runs(first, second)
    assert p is not None
    assert 0.0 < p < 0.2
    assert p_over_runs(*stretched) == p
    assert p_over_runs(second, first) == pytest.approx(p)


def test_p_values_of_equal_runs_and_of_clear_differences() -> None:
    same = {f"p{i}": [1.0, 2.0] for i in range(9)}
    better = {f"p{i}": [0.1, 0.2] for i in range(9)}
    assert p_over_runs(same, same) is None
    assert p_over_problems(better, same) == pytest.approx(2 / 2**9)


SMALL = Setting("small", 4, 3)
SMALL_ASYNC = Setting("small-async", 4, 3, asynchronous=True)

# skopt and the GPs take seconds even here; the same driver runs them all.
RUNNERS = [
    name
    for name in (*OURS, *PEERS)
    if name not in ("skopt", "optuna-gp", "optuna-auto", "smac", "ax", "bayesian", "auto")
]


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
        patch.setattr(run_module, "make_runner", lambda _, *rest: Fixed(*rest))
        result = run("fixed", changed, Setting("one", 4, 1), 0)
    assert result.trace == (float("inf"), float("inf"), 1.5, 0.5)
    assert (result.infeasible, result.repeats) == (1, 3)


def test_batch_only_runners_refuse_to_run_asynchronously() -> None:
    with pytest.raises(ValueError, match="batches only"):
        run("skopt", "branin", SETTINGS["async8"], 0)


@pytest.mark.parametrize(("runner", "module"), [("optuna-gp", "torch"), ("smac", "smac"), ("ax", "ax")])
def test_dear_peers_keep_to_the_budget(runner: str, module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip("needs the extra bench-peers")
    assert len(run(runner, "hpolib:naval_propulsion", SMALL_ASYNC, 1).trace) == SMALL_ASYNC.evaluations


@pytest.mark.parametrize("rule", ablation.RULES)
def test_every_rule_can_be_switched_off(rule: str) -> None:
    with ablation.without(rule):
        pass


def test_without_a_rule_the_points_are_others_and_it_comes_back() -> None:
    def trace() -> tuple[float, ...]:
        return run("bayesian", "dev:valley:0", Setting("few", 8, 3), 0).trace

    whole = trace()
    with ablation.without("gradient ascent"):
        assert trace() != whole
    assert trace() == whole


RESULT = RunResult("cmaes", "branin", "8x12", 4, (math.inf, math.inf, 0.5, 0.123456, 0.1, 1e-7), 1.25, 2, 1)
MACHINE = {"cpu": "some", "python": "3.11", "libraries": {"cmaes": "1"}}


def test_what_is_stored_is_read_again(tmp_path: Path) -> None:
    store = Store([tmp_path])
    store.add(RESULT, "r1", "abc", 2, MACHINE)
    store.add(dataclasses.replace(RESULT, seed=5), "r1", "abc", 2, MACHINE)
    again = Store([tmp_path])
    assert again.runs == store.runs
    assert again.environments == store.environments
    run = again.runs["cmaes", "r1", "branin", "abc", "8x12", 4]
    assert run.trace == (math.inf, 0.1235, 1e-7)
    assert (run.cpu, run.repeats, run.infeasible) == (1.25, 2, 1)
    assert again.environments[run.environment] == MACHINE


def test_a_line_cut_off_by_a_kill_costs_that_run_only(tmp_path: Path) -> None:
    store = Store([tmp_path])
    for seed in (1, 2):
        store.add(dataclasses.replace(RESULT, seed=seed), "r1", "abc", 2, MACHINE)
    path = tmp_path / "cmaes.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    resumed = Store([tmp_path])
    assert [run.seed for run in resumed.runs.values()] == [1]
    resumed.add(dataclasses.replace(RESULT, seed=2), "r1", "abc", 2, MACHINE)
    assert [run.seed for run in Store([tmp_path]).runs.values()] == [1, 2]


def test_new_results_go_to_the_last_folder(tmp_path: Path) -> None:
    Store([tmp_path / "kept", tmp_path / "fresh"]).add(RESULT, "r1", "abc", 2, MACHINE)
    assert not (tmp_path / "kept").exists()
    assert len(Store([tmp_path / "kept", tmp_path / "fresh"]).runs) == 1


@pytest.fixture
def suite_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The suite with its folders here; the runs that it does."""
    done: list[tuple[Any, ...]] = []
    real = run_once

    def noted(*arguments: Any) -> RunResult:
        done.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(suite, "run", noted)
    monkeypatch.setattr(suite, "COMMITTED", tmp_path / "kept")
    monkeypatch.setattr(suite, "FRESH", tmp_path / "fresh")
    monkeypatch.setattr(suite, "_PAGES", tmp_path / "pages")
    return done


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    suite.add_options(parser)
    return parser.parse_args(arguments)


def test_the_suite_goes_on_where_it_stopped_and_shows_the_figures(
    suite_in: list[tuple[Any, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--setting", "8x12", "--problem", "branin", "--problem", "mixed7", "--against", "seeds-ea"]
    runners = ["--runner", "random", "--runner", "seeds-ea"]
    suite.measure(quick=False, options=options(*asked, *runners, "--seeds", "1"))
    assert len(suite_in) == 4
    figures = suite.measure(quick=False, options=options(*asked, *runners, "--seeds", "2"))["8x12"]
    assert len(suite_in) == 8
    assert set(figures["rank"]) == {"random", "seeds-ea"}
    assert sum(figures["rank"].values()) == pytest.approx(3.0)
    shown = suite.measure(quick=False, options=options(*asked, *runners, "--seeds", "5", "--show"))["8x12"]
    assert len(suite_in) == 8
    assert shown["regret"] == figures["regret"]
    assert "branin" in capsys.readouterr().out
    assert (tmp_path / "pages" / "8x12.html").stat().st_size > 1e6  # with its JavaScript


def test_results_of_changed_sources_are_not_shown(
    suite_in: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = options("--setting", "8x12", "--problem", "branin", "--runner", "random", "--seeds", "1")
    suite.measure(quick=False, options=asked)
    monkeypatch.setattr(suite, "runner_version", lambda runner: "changed")
    suite.measure(quick=False, options=asked)
    assert len(suite_in) == 2


def test_a_change_of_one_optimizer_leaves_the_others_results_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    def versions() -> dict[str, str]:
        runner_version.cache_clear()
        return {runner: runner_version(runner) for runner in ("random", "evolutionary", "cma")}

    before, read = versions(), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.name == "evolutionary.py"))
    after = versions()
    runner_version.cache_clear()
    changed = {runner for runner, version in before.items() if after[runner] != version}
    assert "evolutionary" in changed
    assert "random" not in changed


def test_the_committed_results_are_of_peers_and_of_these_problems() -> None:
    store = Store([COMMITTED])
    assert store.runs
    for stored in store.runs.values():
        assert stored.runner not in OURS
        assert stored.digest == problem(stored.problem).digest, stored.problem
        assert stored.environment in store.environments
    assert sum(path.stat().st_size for path in COMMITTED.iterdir()) < 1.5e6
