from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hpo_pilot.report.slot_figures import JOB_LIMIT, PLACE_LIMIT
from hpo_pilot.search import Search, Trial, TrialState
from tests.made import made_fold
from tests.report.figures.made_up import START, draw, make_trial, make_trials, on_nodes


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def job(
    number: int, start: float, end: float, node: str | None = "n1", *, submitted: float = 0, **changes: Any
) -> Trial:
    """A trial of one fold that ran from `start` to `end` seconds."""
    value = changes.pop("value", 0.1 * number)
    fold = made_fold(
        0, value, node=node, started=at(start), ended=at(end), attempt=changes.pop("attempt", 1),
        error=None if value is not None else "lost",
    )  # fmt: skip
    times = {"submitted": at(submitted), "started": at(start), "ended": at(end)}
    return make_trial(number, value, folds=(fold,), **times, **changes)


def heights(figure: Any, name: str) -> list[tuple[str, float]]:
    trace = next(each for each in figure.spec["data"] if each["name"] == name)
    return [(x[17:], y) for x, y in zip(trace["x"], trace["y"], strict=True)]


def bars(figure: Any, name: str) -> list[tuple[float, str, float]]:
    found = [each for each in figure.spec["data"] if each["name"] == name]
    return [bar for each in found for bar in zip(each["y"], each["base"], each["x"], strict=True)]


def test_slots_in_use_and_waiting_by_hand(search: Search) -> None:
    curve, _ = draw("slots", search, [job(1, 2, 10), job(2, 4, 6), job(3, 6, 9, submitted=5)])
    assert heights(curve, "running") == [
        ("00.000", 0), ("02.000", 1), ("04.000", 2), ("05.000", 2), ("06.000", 2), ("09.000", 1), ("10.000", 0),
    ]  # fmt: skip
    assert heights(curve, "waiting") == [
        ("00.000", 2), ("02.000", 1), ("04.000", 0), ("05.000", 1), ("06.000", 0), ("09.000", 0), ("10.000", 0),
    ]  # fmt: skip
    assert "3 jobs over 10 s: 1.3 ran at once on average, 2 at most; half of the jobs waited less than 2" in (
        curve.description
    )


def test_rows_are_slots_of_nodes_and_failures_are_their_own(search: Search) -> None:
    trials = [job(1, 0, 5), job(2, 1, 3), job(3, 6, 8, submitted=4), job(4, 0, 9, "n2"), job(5, 3, 4, value=None)]
    _, chart = draw("slots", search, trials)
    assert chart.spec["layout"]["yaxis"]["ticktext"] == ["n1", "n2"]
    assert chart.spec["layout"]["yaxis"]["tickvals"] == [0.5, 2]
    assert {row for row, *_ in bars(chart, "finished")} == {0, 1, 2}
    ((row, base, width),) = bars(chart, "failed")
    assert (row, base[17:], width) == (1, "03.000", 1000)
    assert "5 jobs in 3 rows on 2 nodes; 1 failed." in chart.description
    # Pale from when its row was free, not from when it was submitted.
    assert (0, "05.000", 1000) in [(row, base[17:], width) for row, base, width in bars(chart, "waiting")]


def test_a_running_trial_reaches_to_now(search: Search) -> None:
    running = make_trial(2, None, state=TrialState.RUNNING, error=None, told=None, submitted=at(0), started=at(1))
    _, chart = draw("slots", search, [job(1, 0, 4), running], now=at(21))
    ((_, _, width),) = bars(chart, "running")
    assert width == 20_000
    assert "the nodes of running trials are not known yet" in chart.note
    assert "node not known" in chart.spec["layout"]["yaxis"]["ticktext"]
    _, chart = draw("slots", search, [job(1, 0, 4), running])
    assert bars(chart, "running")[0][2] == 3000, "without a clock: to the last moment that is known"


def test_folds_that_still_run_are_missed_aloud(search: Search) -> None:
    partly = replace(job(2, 0, 5), state=TrialState.RUNNING, values=())
    assert (
        "running folds of trials with ended folds are not shown"
        in draw("slots", search, [job(1, 0, 4), partly])[0].note.lower()
    )
    assert "running folds" not in draw("slots", search, [job(1, 0, 4)])[0].note


def test_a_repeated_job_did_not_wait_all_that_time(search: Search) -> None:
    curve, chart = draw("slots", search, [job(1, 50, 60, attempt=3), job(2, 1, 2)])
    assert max(y for _, y in heights(curve, "waiting")) == 1
    assert len(bars(chart, "waiting")) == 1
    assert "Only the last attempt of 1 repeated job is shown." in curve.note


def test_times_that_are_not_known_are_counted(search: Search) -> None:
    assert draw("slots", search, [make_trial(1, 0.5), make_trial(2, None)]) == []
    lost = replace(job(2, 0, 5), folds=(*job(2, 0, 5).folds, made_fold(1, error="lost")))
    assert "1 job not shown: their times are not known" in draw("slots", search, [job(1, 0, 5), lost])[0].note.lower()


def test_a_crowd_that_waits_does_not_hide_what_runs(search: Search) -> None:
    trials = [job(n, n, n + 1) for n in range(1, 40)]
    curve, _ = draw("slots", search, trials)
    assert curve.spec["layout"]["yaxis"]["range"] == [0, 3]
    assert "Up to 39 ran and waited, beyond the first view" in curve.note
    few, _ = draw("slots", search, trials[:8])
    assert "range" not in few.spec["layout"]["yaxis"]


def test_times_with_and_without_zone_mix(search: Search) -> None:
    naive = job(2, 1, 3)
    naive = replace(naive, submitted=naive.submitted and naive.submitted.replace(tzinfo=None))
    assert len(draw("slots", search, [job(1, 0, 2), naive])) == 2


def test_many_jobs_are_a_curve_of_means(search: Search) -> None:
    trials = on_nodes(make_trials(search, 2000))
    (curve,) = draw("slots", search, trials)
    running = heights(curve, "running")
    assert len(running) == PLACE_LIMIT + 1
    jobs = [fold for trial in trials for fold in trial.folds]
    assert len(jobs) > JOB_LIMIT
    span = max(fold.result.ended for fold in jobs if fold.result.ended) - START.timestamp()
    busy = sum(2.0 for _ in jobs)
    mean = sum(height for _, height in running[:-1]) / PLACE_LIMIT
    assert abs(mean - busy / span) < 0.02 * mean, "the area is the time that jobs ran"
