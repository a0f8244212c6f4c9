from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_pilot.optimizers.early_stopping import CHECKPOINTS, Curves, Projection, Report, Stop, create_rule
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
    assert stops == {4: Stop(2, 4.0, "4th of 4 at step 2, where 3 go on")}
    assert asha.look([Report(1, 0, 3, 9.0), Report(2, 0, 3, 9.0)], EVERYBODY) == {}  # no rung
    stops = asha.look([Report(1, 0, 4, 0.5), Report(2, 0, 4, 0.4)], EVERYBODY)
    assert stops == {1: Stop(4, 0.5, "2nd of 2 at step 4, where 1 goes on")}


def test_asha_leaves_the_first_ones_alone() -> None:
    looks = [[Report(trial, 0, 1, float(trial))] for trial in (1, 2, 3)]
    assert run(rule("asha", eta=3), looks) == [{}, {}, {3: Stop(1, 3.0, "3rd of 3 at step 1, where 2 go on")}]
    assert run(rule("asha", eta=3, warmup_trials=4), looks) == [{}, {}, {}]


def test_asha_takes_the_first_report_at_or_after_a_rung() -> None:
    asha = rule("asha", min_steps=10, eta=2)
    looks = [[Report(1, 0, 9, 0.0), Report(1, 0, 12, 5.0)], [Report(1, 0, 11, 0.0)], [Report(2, 0, 10, 4.0)]]
    assert run(asha, looks) == [{}, {}, {}]
    assert asha.look([Report(3, 0, 10, 6.0)], EVERYBODY) == {3: Stop(10, 6.0, "3rd of 3 at step 10, where 2 go on")}


def test_asha_takes_no_value_from_beyond_the_next_rung() -> None:
    asha = rule("asha", min_steps=1, eta=2)
    asha.look([Report(1, 0, 8, 0.1), Report(2, 0, 9, 0.1)], EVERYBODY)  # nothing is known of them at step 1
    assert asha.look([Report(3, 0, 1, 5.0)], EVERYBODY) == {}
    assert asha.look([Report(4, 0, 1, 6.0)], EVERYBODY) == {4: Stop(1, 6.0, "2nd of 2 at step 1, where 1 goes on")}


def test_asha_ends_before_max_steps_and_starts_in_brackets() -> None:
    looks = [[Report(trial, 0, step, float(trial)) for trial in (1, 2, 3, 4)] for step in (1, 2, 3, 4)]
    assert [set(stops) for stops in run(rule("asha", eta=2, max_steps=2), looks)] == [{4}, set(), set(), set()]
    # 1 and 3 are in the first bracket, 2 and 4 in the second, where the first rung is at step 2.
    assert [set(stops) for stops in run(rule("asha", eta=2, brackets=2), looks)] == [{3}, {4}, set(), set()]


def test_asha_with_folds_judges_means_of_enough_folds() -> None:
    looks = [
        [Report(1, 0, 1, 1.0), Report(1, 1, 1, 3.0)],
        [Report(2, 0, 1, 9.0)],  # one fold is not enough
        [Report(2, 1, 1, 1.0)],
        [Report(2, 2, 1, -9.0)],  # judged again, but trial 1 has no such fold to compare with
        [Report(1, 2, 1, 2.0)],  # by all three folds the second one is better
    ]
    stops = run(create_rule(EarlyStopping(method="asha", eta=2, folds=2), 3), looks)
    assert stops[:2] == [{}, {}] and stops[2] == {2: Stop(1, 5.0, "2nd of 2 at step 1, where 1 goes on")}
    assert stops[3] == {} and stops[4] == {1: Stop(1, 2.0, "2nd of 2 at step 1, where 1 goes on")}


def test_by_default_folds_that_have_not_begun_are_not_waited_for() -> None:
    asha = rule("asha", folds=3, min_steps=2, eta=2)
    assert asha.look([Report(1, fold, 2, 1.0) for fold in range(3)], EVERYBODY) == {}
    assert asha.look([Report(2, 0, 1, 9.0), Report(2, 1, 1, 9.0)], EVERYBODY) == {}
    assert asha.look([Report(2, 0, 2, 9.0)], EVERYBODY) == {}  # the other one is on its way
    assert asha.look([Report(2, 1, 2, 9.0)], EVERYBODY).keys() == {2}
    assert asha.look([Report(3, 2, 2, 9.0)], EVERYBODY).keys() == {3}  # with few slots: two others wait for it


@pytest.mark.parametrize("method", ["asha", "median"])
def test_folds_are_compared_with_the_same_folds(method: str) -> None:
    """Fold 2 is hard for everybody: a trial that is the best of all in each of its folds is no worse for having it."""
    stopping = rule(method, folds=3, warmup_trials=3, **({"min_steps": 9} if method == "asha" else {}))
    for trial in range(2, 8):
        stopping.look([Report(trial, fold, 9, trial + value) for fold, value in ((0, 1.0), (1, 1.0))], ())
    assert stopping.look([Report(1, 1, 9, 2.0), Report(1, 2, 9, 99.0)], EVERYBODY) == {}
    assert stopping.look([Report(8, 0, 9, 9.0), Report(8, 2, 9, 9.0)], EVERYBODY) == {}  # none has two of its folds
    assert stopping.look([Report(8, 1, 9, 9.0)], EVERYBODY).keys() == {8}


@pytest.mark.parametrize("method", ["asha", "median"])
def test_a_trial_is_not_stopped_by_what_it_was_long_ago(method: str) -> None:
    """Two folds are at step 81 when the third one begins: its first steps are no reason to stop the trial."""
    stopping = rule(method, folds=4, **({"min_steps": 3} if method == "asha" else {}))
    for trial in range(1, 9):
        stopping.look([Report(trial, fold, step, 1.0) for fold in range(4) for step in (1, 3, 9, 27)], ())
    looks = [[Report(9, fold, step, 0.1) for fold in (0, 1)] for step in (1, 3, 9, 27, 81)]
    looks += [[Report(9, 2, step, 9.0)] for step in (1, 3, 9)]
    assert run(stopping, looks) == [{}] * 8
    assert stopping.look([Report(9, 3, 27, 9.0)], EVERYBODY) == {}
    assert stopping.look([Report(9, fold, 81, 9.0) for fold in (2, 3)], EVERYBODY) == {}  # none has come so far


@pytest.mark.parametrize("folds", [1, 2])
@pytest.mark.parametrize("settings", [{"method": "asha", "eta": 2, "max_steps": 12}, {"method": "asha", "eta": 2}])
def test_what_is_nearly_done_is_not_stopped(folds: int, settings: dict[str, Any]) -> None:
    """Whether the length of a training is given, or known from those that are over."""
    for step, first in ((8, set()), (8, {5}) if folds == 2 else (4, {5})):
        stopping = rule(folds=folds, **settings, min_steps=step)
        good = [Report(n, fold, at, 0.1) for n in range(1, 5) for fold in range(folds) for at in (4, 8, 12)]
        ended = {(n, fold): 0.1 for n in range(1, 5) for fold in range(folds)}
        assert stopping.look(good, (), ended) == {}
        bad = [Report(5, fold, step, 9.0) for fold in range(folds)]
        if folds == 2 and not first:  # one is over, the other one is at 8 of 12
            bad += [Report(5, 0, 12, 9.0)]
        elif folds == 1 and not first:
            bad = [Report(5, 0, 9, 9.0)]
        assert stopping.look(bad, {5}).keys() == first


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
@settings(max_examples=40)
def test_the_same_looks_give_the_same_decisions(looks: Any, options: dict[str, Any], folds: int) -> None:
    shuffled = [random.Random(len(look)).sample(look, len(look)) for look in looks]
    # The values of one step in one look are one report: which of two counts is the store's business.
    if all(len({report[:3] for report in look}) == len(look) for look in looks):
        assert run(rule(folds=folds, **options), looks) == run(rule(folds=folds, **options), shuffled)
    assert run(rule(folds=folds, **options), looks) == run(rule(folds=folds, **options), looks)


@given(st.lists(st.permutations(range(1, 9)), min_size=1, max_size=4), st.sampled_from([2, 3, 4]), st.data())
@settings(max_examples=60)
def test_asha_never_stops_the_best_of_a_rung_and_lets_about_one_in_eta_go_on(orders: Any, eta: int, data: Any) -> None:
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
            others = len(seen) - 1
            limit = (others + math.sqrt(others * (eta - 1))) / eta
            assert bool(stops) == (len(seen) >= eta and better >= max(1, limit))
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


@given(LOOKS)
@settings(max_examples=80)
def test_the_median_rule_follows_its_definition(looks: Any) -> None:
    """Against the definition, worked out anew from the whole record at each look."""
    median_rule, last = rule("median", warmup_trials=2), dict.fromkeys(EVERYBODY, 0)
    record: dict[int, dict[int, float]] = defaultdict(dict)

    def until(trial: int, step: int, what: Any) -> float | None:
        there = record[trial]
        if not there or not min(there) <= step <= max(there):
            return None
        found: float = what([value for at, value in there.items() if at <= step])
        return found

    for look in looks:
        stops = median_rule.look(look, EVERYBODY)
        for trial, fold, step, value in sorted(look):
            if fold == 0 and step > max(record[trial], default=-1):
                record[trial][step] = value
        for trial in {report.trial for report in look}:
            steps = [s for s in CHECKPOINTS if s >= 1 and until(trial, s, min) is not None]
            if not steps:
                assert trial not in stops
                continue
            step = steps[-1]
            others = [a for t in range(1, 9) if t != trial and (a := until(t, step, lambda all: all[-1])) is not None]
            best = until(trial, step, min)
            if step == last[trial]:  # a step is judged once, also where there were too few others
                continue
            last[trial] = step
            if len(others) < 2:
                continue
            worse = sum(other < best for other in others) > (len(others) + len(others) ** 0.5) / 2
            assert worse == (trial in stops)


@given(LOOKS, OPTIONS, st.sampled_from([1, 2]), st.integers(1, 8))
@settings(max_examples=60)
def test_a_trial_that_is_best_everywhere_is_never_stopped(
    looks: Any, options: dict[str, Any], folds: int, n: int
) -> None:
    """Whatever the others do, in whatever order its folds and theirs come."""
    best = [[r._replace(value=-2e308 if r.trial == n else r.value) for r in look] for look in looks]
    best = [[r._replace(value=max(r.value, -1.7e308)) for r in look] for look in best]
    assert all(n not in stops for stops in run(rule(folds=folds, **options), best))


# --- what both are made of ---


def test_checkpoints() -> None:
    assert CHECKPOINTS[:23] == [*range(21), 22, 24] and CHECKPOINTS[-1] > 2**53 and len(CHECKPOINTS) < 400
    assert all(b - a >= 1 and b <= max(a + 1, 1.13 * a) for a, b in pairwise(CHECKPOINTS))


def test_curves() -> None:
    curves = Curves(2)
    assert curves.last(1, 1) is None and curves.projected(1) is None and curves.share(1, 9) == 0.0
    # Of step 2 comes too late, of -1 and of 2^54 is none that a training has.
    for step, value in ((3, 5.0), (2, 1.0), (-1, 1.0), (2**54, 1.0), (6, 3.0), (7, 4.0)):
        curves.see(Report(1, 0, step, value))
    assert [curves.values[step].of(1) for step in (2, 3, 5, 6, 7)] == [{}, {0: 5.0}, {0: 5.0}, {0: 3.0}, {0: 4.0}]
    assert [curves.bests[step].of(1) for step in (5, 7)] == [{0: 5.0}, {0: 3.0}]
    curves.see(Report(1, 1, 4, 1.0))
    assert curves.last(1, 1) == (7, 4.0) and curves.last(1, 2) == (4, 2.5) and curves.last(1, 3) == (4, 2.5)
    assert curves.come(1) == {0: 7, 1: 4}


def test_the_share_of_a_trial_that_is_done() -> None:
    curves = Curves(3)
    curves.see(Report(1, 0, 8, 1.0))
    assert curves.share(1, 16) == pytest.approx(1 / 6) and curves.share(1, 4) == pytest.approx(1 / 3)
    assert curves.length is None and curves.share(1, None) == 0.0  # nobody knows how long a training is
    curves.see(Report(2, 0, 16, 1.0))
    curves.end(2, 0, 1.0)
    assert curves.length == 16 and curves.share(2, 99) == pytest.approx(1 / 3)


def test_projection_by_hand() -> None:
    assert Projection([])(0.7) == 0.7
    others = [(1.0, 0.1), (2.0, 0.2), (3.0, 0.4)]
    assert Projection(others)(2.5) == pytest.approx(0.2 + 0.2 / 3)  # two of three are better
    # Beyond them by 1, of which the slope is left: half of the final values lie within 0.15, there within 1.
    assert Projection(others)(4.0) == pytest.approx(0.4 + 0.15)
    assert Projection(others)(0.5) == pytest.approx(0.1 - 0.5 * 0.15)  # it may well become the best
    # Of one other alone nothing is known of the slope.
    assert Projection([(1.0, 0.1)])(9.0) == pytest.approx(8.1)
    assert Projection([(1.0, 0.1)])(0.9) == 0.1
    # It is better now than any was in the end.
    assert Projection([(0.2, 0.1), (0.3, 0.2)])(0.05) == 0.05
    assert Projection(others)(inf) == 0.4


FINALS = st.lists(st.tuples(st.floats(-1e308, 1e308), st.floats(-1e308, 1e308)), min_size=1, max_size=12)


@given(st.floats(-1e308, 1e308), FINALS)
def test_a_projection_is_finite_and_beyond_the_others_only_where_the_trial_is(
    value: float, others: list[tuple[float, float]]
) -> None:
    found = Projection(others)(value)
    assert -inf < found < inf
    if found < min(final for _, final in others):
        assert value < min(at for at, _ in others)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=2).map(sorted), FINALS)
def test_a_worse_place_projects_no_better(pair: list[float], others: list[tuple[float, float]]) -> None:
    low, high = (Projection(others)(value) for value in pair)
    assert low <= high + 1e-9 * abs(high)


def test_a_trial_is_projected_from_its_own_folds() -> None:
    """Two of three folds are over and better than any: that is what the trial is worth, whatever the third one has."""
    curves = Curves(3)
    for trial in (1, 2, 3):
        for fold in range(3):
            curves.see(Report(trial, fold, 3, 0.5 + trial / 10))
            curves.end(trial, fold, 0.12 + trial / 100 + fold / 1000)
    for fold in (0, 1):
        curves.see(Report(4, fold, 81, 0.085))
        curves.end(4, fold, 0.085)
    known = 0.085 + 0.0005  # the third fold is a little harder: by 0.0015 than the other two
    assert curves.projected(4) == pytest.approx(known)
    curves.see(Report(4, 2, 3, 0.7))
    assert curves.projected(4) == pytest.approx((0.085 + 0.085 + 0.142) / 3)
    assert curves.projected(1) == pytest.approx(0.131)  # whole


def test_a_trial_is_projected_from_the_newest_others_in_whatever_order_they_ended() -> None:
    def seen(trials: Iterable[int]) -> float | None:
        curves = Curves(2)
        for trial in trials:
            curves.see(Report(trial, 0, 3, trial % 7))
            for fold in range(2):
                curves.end(trial, fold, trial % 11 + fold + (100 if trial <= 500 else 0))
        curves.see(Report(9999, 0, 3, 2.5))
        return curves.projected(9999)

    newest = seen(range(501, 1501))
    assert newest is not None and newest < 12
    assert seen(range(1, 1501)) == seen([*range(1500, 700, -1), *range(1, 701)]) == newest


def test_nothing_is_projected_of_a_trial_that_diverged() -> None:
    curves = Curves(2)
    curves.end(1, 0, 0.5)
    curves.see(Report(1, 1, 3, inf))
    assert curves.projected(1) is None
