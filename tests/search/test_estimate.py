"""Estimated ends of searches."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hpo_pilot.search import Search
from hpo_pilot.search.estimate import Span, estimate
from tests.made import made_search


def search_of(**budget):
    space = {"x": {"type": "real", "low": 0.0, "high": 1.0}}
    return Search.model_validate({"search": "s", "space": space, "payload": {"command": "x"}, "budget": budget})


def judged(search, spans, now, **more):
    return estimate(search, spans, **{"over": len(spans), "job_seconds": 0.0, "clock": 0.0, "now": now, **more})


def simulated(search, length, until=None):
    """Spans of trials that run side by side, each of a length that `length` draws; all of them."""
    free = [0.0] * search.budget.parallel
    spans = []
    for _ in range(search.budget.trials):
        begun = min(free)
        free.remove(begun)
        ended = begun + length()
        free.append(ended)
        spans.append(Span(begun, ended))
    return sorted(spans, key=lambda span: span.ended)


def test_without_a_result_there_is_no_estimate():
    assert judged(search_of(trials=8), [], 5.0) is None


@pytest.mark.parametrize("parallel", [1, 4, 16])
@pytest.mark.parametrize("kind", ["equal", "mixed"])
def test_an_estimate_is_near_the_end_that_comes(parallel, kind):
    rng = random.Random(3)
    search = search_of(trials=10 * parallel, parallel=parallel)
    spans = simulated(search, (lambda: 60.0) if kind == "equal" else (lambda: rng.uniform(30.0, 90.0)))
    end = spans[-1].ended
    for share in (0.15, 0.5, 0.8):
        now = share * end
        known = [span for span in spans if span.ended <= now]
        out = [Span(span.begun, now) for span in spans if span.begun <= now < span.ended]
        found = judged(search, known, now, out=out)
        if found is None:
            continue
        assert abs(found.seconds - (end - now)) < 0.25 * end, (share, found, end - now)
    assert judged(search, spans[: 3 * parallel + 4], spans[3 * parallel + 3].ended).results > 0


def within(draw, share):
    """Share of searches that end within the limits, as estimated after a share of their results."""
    search, found = search_of(trials=64, parallel=16), 0
    for seed in range(40):
        rng = random.Random(seed)
        spans = simulated(search, lambda rng=rng: draw(rng))
        now = spans[int(64 * share) - 1].ended
        known = [span for span in spans if span.ended <= now]
        out = [replace(span, ended=now) for span in spans if span.begun <= now < span.ended]
        end = judged(search, known, now, out=out)
        assert end.earliest <= end.seconds <= end.latest
        found += end.earliest <= spans[-1].ended - now <= end.latest
    return found / 40


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 1.5])
def test_limits_of_the_end_hold_also_where_few_trials_take_most_of_the_time(sigma, share):
    """Early on the trials that have ended are the short ones."""
    assert within(lambda rng: rng.lognormvariate(4.0, sigma), share) >= 0.75


@pytest.mark.parametrize("start", [0.0, 100.0])
@pytest.mark.parametrize(
    ("budget", "trained", "left", "limit"),
    [
        ({}, 40.0, 27 + 11 * 2 + 5 * 6 - 40, "trials"),
        ({"fidelity": 60.0}, 40.0, 20, "fidelity"),
        ({"fidelity": 60.0}, 61.0, 0, "fidelity"),
        ({"trials": 64, "fidelity": 200.0}, 40.0, 64 + 24 * 2 + 11 * 6 - 40, "trials"),
    ],
)
def test_levels_left_are_estimated_by_the_seconds_of_a_level(budget, trained, left, limit, start):
    """Four trials train five levels each time, so that `start` counts 0.8 times for a level."""
    search = made_search(fidelity={"epochs": {"low": 1, "high": 9}}, budget={"trials": 27, "parallel": 1, **budget})
    spans, now = [], 0.0
    for levels in (1.0, 1.0, 1.0, 2.0) * 5:
        spans.append(Span(now, now + start + 10 * levels, levels))
        now += start + 10 * levels
    found = judged(search, spans, now, trained=trained)
    assert found.limit == limit
    assert found.seconds == pytest.approx((10 + 0.8 * start) * left, rel=0.2, abs=1)


def test_few_results_are_judged_by_their_length():
    found = judged(search_of(trials=41, parallel=8), [Span(0.0, 60.0)], 60.0)
    assert found.seconds == pytest.approx(40 / 8 * 60 - 60 / 8, rel=0.2)
    assert (found.results, found.each, found.parallel) == (0, 60.0, 8)


def test_estimates_forget_pauses_and_count_stalls():
    search = search_of(trials=30, parallel=1)
    before = [Span(10.0 * i, 10.0 * i + 10) for i in range(10)]
    after = [Span(50_000 + 10.0 * i, 50_000 + 10.0 * i + 10) for i in range(5)]
    assert judged(search, before + after, 50_050.0).seconds < 400
    assert judged(search, before, 100.0 + 3600).seconds > 3600


def test_the_last_trial_still_needs_its_run_time():
    spans = [Span(0.0, 100.0)] * 8
    found = judged(search_of(trials=9, parallel=8), spans, 100.0, out=[Span(95.0, 100.0)])
    assert found.seconds == pytest.approx(95.0, rel=0.1)


@pytest.mark.parametrize(
    ("limit", "amount", "job_seconds", "seconds", "left"),
    [
        ("hours", 1.0, 0.0, pytest.approx(2400 + 60), 980),
        ("core_hours", 0.5, 1200.0, pytest.approx(600, rel=0.15), pytest.approx(10)),
    ],
)
def test_another_limit_than_trials_ends_it_first(limit, amount, job_seconds, seconds, left):
    spans = [Span(60.0 * i, 60.0 * i + 60) for i in range(20)]
    search = search_of(trials=1000, parallel=1, **{limit: amount})
    found = judged(search, spans, 1200.0, job_seconds=job_seconds)
    assert (found.limit, found.seconds, found.left) == (limit, seconds, left)


def test_confirmation_runs_are_waited_for():
    search = search_of(trials=20, parallel=1)
    search = search.model_copy(update={"confirm": search.confirm.model_copy(update={"top": 2, "repeats": 5})})
    spans = [Span(10.0 * i, 10.0 * i + 10) for i in range(20)]
    assert judged(search, spans, 200.0).seconds == pytest.approx(100, abs=1)
    assert judged(search, spans, 200.0, confirmed=10).seconds == 0
