from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_pilot.optimizers.early_stopping import Curves, Report, Stop, create_rule, projected
from hpo_pilot.optimizers.early_stopping.curves import CHECKPOINTS, Ranked
from hpo_pilot.optimizers.early_stopping.rule import place_text
from hpo_pilot.search import EarlyStopping

EVERYBODY = range(1, 10_000)


def rule(method: str, folds: int = 1, **options: Any) -> Any:
    return create_rule(EarlyStopping(method=method, **options), folds)


def run(stopping: Any, looks: list[list[Report]]) -> list[dict[int, Stop]]:
    """The decisions of each look; a trial that is stopped is not judged again."""
    stopped: set[int] = set()
    decided = []
    for look in looks:
        stops = stopping.look(look, set(EVERYBODY) - stopped)
        stopped |= stops.keys()
        decided.append(stops)
    return decided


def test_none_has_no_rule() -> None:
    assert create_rule(EarlyStopping(), 1) is None


# --- asha ---


def test_asha_by_hand() -> None:
    asha = rule("asha", min_steps=2, eta=2)
    first = [Report(trial, 0, 2, float(trial)) for trial in (1, 2, 3, 4)]
    stops = asha.look(first, EVERYBODY)
    assert stops == {
        3: Stop(2, 3.0, "3rd of 4 at step 2, where 2 go on"),
        4: Stop(2, 4.0, "4th of 4 at step 2, where 2 go on"),
    }
    assert asha.look([Report(1, 0, 3, 9.0), Report(2, 0, 3, 9.0)], EVERYBODY) == {}  # no rung
    stops = asha.look([Report(1, 0, 4, 0.5), Report(2, 0, 4, 0.4)], EVERYBODY)
    assert stops == {1: Stop(4, 0.5, "2nd of 2 at step 4, where 1 goes on")}


def test_asha_leaves_the_first_ones_alone() -> None:
    looks = [[Report(trial, 0, 1, float(trial))] for trial in (1, 2, 3)]
    assert run(rule("asha", eta=3), looks) == [{}, {}, {3: Stop(1, 3.0, "3rd of 3 at step 1, where 1 goes on")}]
    assert run(rule("asha", eta=3, warmup_trials=4), looks) == [{}, {}, {}]


def test_asha_takes_the_first_report_at_or_after_a_rung() -> None:
    asha = rule("asha", min_steps=10, eta=2)
    looks = [[Report(1, 0, 9, 0.0), Report(1, 0, 12, 5.0)], [Report(1, 0, 11, 0.0)], [Report(2, 0, 10, 4.0)]]
    assert run(asha, looks) == [{}, {}, {}]
    assert asha.look([Report(3, 0, 10, 4.5)], EVERYBODY) == {3: Stop(10, 4.5, "2nd of 3 at step 10, where 1 goes on")}


def test_asha_ends_before_max_steps_and_starts_in_brackets() -> None:
    looks = [[Report(trial, 0, step, float(trial)) for trial in (1, 2, 3, 4)] for step in (1, 2, 3, 4)]
    assert [set(stops) for stops in run(rule("asha", eta=2, max_steps=2), looks)] == [{3, 4}, set(), set(), set()]
    # 1 and 3 are in the first bracket, 2 and 4 in the second, where the first rung is at step 2.
    assert [set(stops) for stops in run(rule("asha", eta=2, brackets=2), looks)] == [{3}, {4}, set(), set()]


def test_asha_with_folds_judges_means_of_enough_folds() -> None:
    asha = rule("asha", folds=3, eta=2)
    stops = run(
        asha,
        [
            [Report(1, 0, 1, 1.0), Report(1, 1, 1, 3.0)],
            [Report(2, 0, 1, 9.0)],  # one fold of three is not enough
            [Report(2, 1, 1, 1.0)],
            [Report(2, 2, 1, -9.0)],  # judged again, and now the better one
            [Report(1, 2, 1, 2.0)],
        ],
    )
    assert stops[:2] == [{}, {}] and stops[2] == {2: Stop(1, 5.0, "2nd of 2 at step 1, where 1 goes on")}
    assert stops[3] == {} and stops[4] == {1: Stop(1, 2.0, "2nd of 2 at step 1, where 1 goes on")}


VALUES = st.floats(-1e9, 1e9) | st.sampled_from([0.0, 1.0, 1e308, -1e308])
REPORTS = st.builds(Report, st.integers(1, 8), st.integers(0, 1), st.integers(-1, 40), VALUES)
LOOKS = st.lists(st.lists(REPORTS, max_size=6), max_size=15)
OPTIONS = st.sampled_from(
    [
        {"method": "asha", "eta": 2},
        {"method": "asha", "eta": 3, "min_steps": 2, "max_steps": 30, "brackets": 2},
        {"method": "median", "warmup_trials": 1},
        {"method": "median", "warmup_trials": 3, "warmup_steps": 5},
    ]
)


@given(LOOKS, OPTIONS, st.sampled_from([1, 2]))
@settings(max_examples=40, deadline=None)
def test_the_same_looks_give_the_same_decisions(looks: Any, options: dict[str, Any], folds: int) -> None:
    shuffled = [random.Random(len(look)).sample(look, len(look)) for look in looks]
    # The values of one step in one look are one report: which of two counts is the store's business.
    if all(len({report[:3] for report in look}) == len(look) for look in looks):
        assert run(rule(folds=folds, **options), looks) == run(rule(folds=folds, **options), shuffled)
    assert run(rule(folds=folds, **options), looks) == run(rule(folds=folds, **options), looks)


@given(st.lists(st.permutations(range(1, 9)), min_size=1, max_size=4), st.sampled_from([2, 3, 4]), st.data())
@settings(max_examples=60, deadline=None)
def test_asha_never_stops_the_best_of_a_rung_and_lets_one_in_eta_go_on(orders: Any, eta: int, data: Any) -> None:
    asha = rule("asha", eta=eta)
    out = set(range(1, 9))
    for depth, order in enumerate(orders):
        seen: dict[int, float] = {}
        for trial in order:
            if trial not in out:
                continue
            value = seen[trial] = data.draw(st.floats(-100, 100))
            stops = asha.look([Report(trial, 0, eta**depth, value)], out)
            better = sum(other < value for other in seen.values())
            assert bool(stops) == (len(seen) >= eta and better >= max(1, len(seen) // eta))
            assert not (stops and better == 0)
            out -= stops.keys()


# --- median ---


def test_median_by_hand() -> None:
    rule_of_two = rule("median", warmup_trials=2, warmup_steps=2)
    looks = [
        [Report(1, 0, 1, 4.0), Report(1, 0, 2, 2.5)],
        [Report(2, 0, 1, 1.0), Report(2, 0, 2, 2.0)],
        [Report(3, 0, 1, 9.0)],  # before the first step at which any is stopped
        [Report(3, 0, 2, 2.6)],  # worse than both
        [Report(4, 0, 1, 2.4), Report(4, 0, 2, 9.0)],  # it was better than one of the three
    ]
    reason = "worse at step 2 than 2 of the 2 others that came to it"
    assert run(rule_of_two, looks) == [{}, {}, {}, {3: Stop(2, 2.6, reason)}, {}]


@pytest.mark.parametrize(("others", "enough"), [(2, 2), (3, 3), (4, 4), (5, 4), (9, 7), (16, 11), (100, 56)])
def test_median_wants_more_of_few(others: int, enough: int) -> None:
    """Of so many others so many must be better."""
    for better, stops in ((enough, {999}), (enough - 1, set())):
        there = [Report(n, 0, 5, 0.0 if n <= better else 2.0) for n in range(1, others + 1)]
        stopping = rule("median", warmup_trials=1)
        stopping.look(there, ())
        assert stopping.look([Report(999, 0, 5, 1.0)], {999}).keys() == stops


@pytest.mark.parametrize("method", ["asha", "median"])
def test_a_training_that_diverges_is_stopped_whatever_it_was_before(method: str) -> None:
    stopping = rule(method, warmup_trials=2)
    good = [Report(trial, 0, 1, 1.0) for trial in (1, 2, 3, 4, 5, 6)]
    assert stopping.look(good, EVERYBODY) == {}
    stops = stopping.look([Report(trial, 0, 3, 0.5 if trial > 1 else inf) for trial in range(1, 7)], EVERYBODY)
    assert list(stops) == [1] and (stops[1].step, stops[1].value) == (3, inf)


@pytest.mark.parametrize("method", ["asha", "median"])
def test_where_all_diverge_none_is_better_than_another(method: str) -> None:
    assert rule(method, warmup_trials=2).look([Report(n, 0, 3, inf) for n in range(1, 9)], EVERYBODY) == {}


def test_median_lets_a_trial_go_on_that_was_once_good() -> None:
    looks = [[Report(trial, 0, 1, float(trial)) for trial in range(1, 7)], [Report(1, 0, 2, 99.0)]]
    stops = run(rule("median"), looks)
    assert set(stops[0]) == {5, 6} and stops[1] == {}


@given(LOOKS, st.sampled_from([1, 2]))
@settings(max_examples=80, deadline=None)
def test_median_is_what_it_says(looks: Any, folds: int) -> None:
    """Against the definition, worked out anew from the whole record at each look."""
    median_rule, last = rule("median", folds=folds, warmup_trials=2), dict.fromkeys(EVERYBODY, 0)
    record: dict[int, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))

    def until(trial: int, step: int, what: Any) -> float | None:
        there = [f for f in record[trial].values() if f and min(f) <= step <= max(f)]
        parts = [what([value for at, value in fold.items() if at <= step]) for fold in there]
        return fmean(parts) if len(parts) >= (folds + 1) // 2 else None

    for look in looks:
        stops = median_rule.look(look, EVERYBODY)
        for trial, fold, step, value in sorted(look):
            if fold < folds and step > max(record[trial][fold], default=-1) and abs(value) < 1e300:
                record[trial][fold][step] = value
            elif fold >= folds or abs(value) >= 1e300:
                return  # sums of those differ in their last digits
        for trial in {report.trial for report in look}:
            steps = [s for s in CHECKPOINTS if s >= 1 and until(trial, s, min) is not None]
            if not steps:
                assert trial not in stops
                continue
            step = steps[-1]
            others = [a for t in range(1, 9) if t != trial and (a := until(t, step, lambda all: all[-1])) is not None]
            best = until(trial, step, min)
            if len(others) < 2 or step == last[trial]:
                continue
            last[trial] = step
            worse = sum(other < best for other in others) > (len(others) + len(others) ** 0.5) / 2
            assert worse == (trial in stops) or any(abs(best - other) < 1e-3 for other in others)


# --- what both are made of ---


def test_checkpoints() -> None:
    assert CHECKPOINTS[:23] == [*range(21), 22, 24] and CHECKPOINTS[-1] > 2**53 and len(CHECKPOINTS) < 400
    assert all(b - a >= 1 and b <= max(a + 1, 1.13 * a) for a, b in pairwise(CHECKPOINTS))


def test_curves() -> None:
    curves = Curves()
    assert curves.last(1, 1) is None and curves.compared(1, {}) is None
    assert curves.see(Report(1, 0, 3, 5.0)) == [3]
    assert curves.see(Report(1, 0, 2, 1.0)) == [] and curves.see(Report(1, 0, -1, 1.0)) == []
    assert curves.see(Report(1, 0, 2**54, 1.0)) == []
    assert curves.see(Report(1, 0, 6, 3.0)) == [4, 5, 6]
    at = curves.at[5][1], curves.at[6][1]
    assert [(a.folds, a.value, a.best) for a in at] == [(1, 5.0, 5.0), (1, 3.0, 3.0)]
    curves.see(Report(1, 1, 4, 1.0))
    assert curves.last(1, 1) == (6, 3.0) and curves.last(1, 2) == (4, 2.0) and curves.last(1, 3) == (4, 2.0)
    curves.see(Report(2, 0, 9, 7.0))
    assert curves.compared(1, {2: 0.5}) == (3.0, [])
    curves.see(Report(1, 0, 9, 2.0))
    assert curves.compared(1, {2: 0.5}) == (2.0, [(7.0, 0.5)])


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(-3, 3).map(float)), min_size=2))
def test_ranked(entries: list[tuple[int, float]]) -> None:
    ranked, plain = Ranked(), {}
    for trial, value in entries:
        ranked.put(trial, value)
        plain[trial] = value
        others = [v for t, v in plain.items() if t != trial]
        assert len(ranked) == len(plain) and ranked[trial] == value
        assert ranked.better_than(trial) == sum(v < value for v in others)
        assert ranked.below(value + 0.5) == sum(v < value + 0.5 for v in plain.values())


@pytest.mark.parametrize(("better", "text"), [(0, "1st"), (1, "2nd"), (2, "3rd"), (10, "11th"), (21, "22nd")])
def test_places(better: int, text: str) -> None:
    assert place_text(better) == text


def test_projection_by_hand() -> None:
    assert projected(0.7, []) == 0.7
    others = [(1.0, 0.1), (2.0, 0.2), (3.0, 0.4)]
    assert projected(0.5, others) == 0.1
    assert projected(2.5, others) == pytest.approx(0.2 + 0.2 / 3)  # two of three are better
    assert projected(4.0, others) == pytest.approx(1.4)  # beyond the worst by 1
    assert projected(9.0, [(1.0, 0.1)]) == pytest.approx(8.1)


FINALS = st.lists(st.tuples(st.floats(-1e308, 1e308), st.floats(-1e308, 1e308)), min_size=1, max_size=12)


@given(st.floats(-1e308, 1e308), FINALS)
def test_a_projection_is_finite_and_never_better_than_the_best(value: float, others: list[tuple[float, float]]) -> None:
    found = projected(value, others)
    assert min(final for _, final in others) <= found < float("inf")


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=2).map(sorted), FINALS)
def test_a_worse_place_projects_no_better(pair: list[float], others: list[tuple[float, float]]) -> None:
    low, high = (projected(value, others) for value in pair)
    assert low <= high + 1e-9 * abs(high)
