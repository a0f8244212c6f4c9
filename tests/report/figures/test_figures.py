"""What the figures show; that plotly takes them is checked by plotly's own validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import plotly.graph_objects as go
import pytest

from hpo_pilot.report.axes import FARTHEST, choice_labels, merit_axis, parameter_axis, round_ticks
from hpo_pilot.report.figure import FAILURE_LIMIT, POINT_LIMIT, PeerSearch, Results
from hpo_pilot.report.parameter_figures import SLICE_POINT_LIMIT
from hpo_pilot.report.result_figures import PEER_LIMIT, ComparedSearch, comparison_figures
from hpo_pilot.search import EarlyStop, Search, Trial, TrialState
from hpo_pilot.search.ranking import TimedResult, figures_of_merit, without_far
from tests.made import made_fold
from tests.report.figures.made_up import (
    ROWS,
    START,
    TWO,
    draw,
    make_search,
    make_trial,
    make_trials,
    several_trials,
    trace,
)

ASHA = {"method": "asha", "metric": "loss"}
RINGS = "stopped early: its probable value"


def test_convergence_shows_trials_best_and_failures(search: Search, trials: list[Trial]) -> None:
    figure = draw("convergence", search, trials)[0]
    finished = [trial for trial in trials if trial.state is TrialState.FINISHED]
    marks = trace(figure, "trial")
    assert marks["x"] == [trial.told for trial in finished]
    assert marks["error_y"]["array"] == pytest.approx([trial.std for trial in finished])
    steps = trace(figure, "best so far")
    assert steps["y"] == sorted(steps["y"], reverse=True)
    assert steps["y"][-1] == pytest.approx(min(trial.value or 9 for trial in finished))
    assert trace(figure, "failed trial")["x"] == [11, 22, 33, 44]


def test_by_date_the_same_results_are_where_they_ended(search: Search, trials: list[Trial]) -> None:
    by_order, by_date = draw("convergence", search, trials)[0], draw("timeline", search, trials)[0]
    marks = trace(by_date, "trial")
    ended = {trial.number: trial.ended for trial in trials}
    assert marks["x"] == [round(ended[number].timestamp() * 1000) for number in marks["customdata"]]
    assert marks["x"] == sorted(marks["x"]) and set(marks["customdata"]) == set(trace(by_order, "trial")["customdata"])
    assert trace(by_date, "best so far")["y"][-1] == trace(by_order, "best so far")["y"][-1]
    assert by_date.spec["layout"]["xaxis"]["type"] == "date"
    untimed = [replace(trial, ended=None) for trial in trials]
    assert trace(draw("timeline", search, untimed)[0], "trial")["x"] == []
    two = several_trials(*ROWS)
    assert [figure.key for figure in draw("timeline", make_search(objective=TWO), two)] == ["timeline-0", "timeline-1"]


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_the_distribution_is_the_share_of_trials_that_are_at_least_as_good(goal: str) -> None:
    search = make_search(objective={"goal": goal})
    trials = [make_trial(n, float(n)) for n in range(1, 1001)]
    (figure,) = draw("distribution", search, [*trials, make_trial(1001, None)])
    whole, first, second = figure.spec["data"]
    assert len(whole["x"]) <= 401 and whole["y"][-1] == first["y"][-1] == 100
    for value, share in zip(whole["x"], whole["y"], strict=True):
        assert share == pytest.approx((value if goal == "minimize" else 1001 - value) / 10)
    assert (max(first["x"]), min(second["x"])) == (500, 501)
    (few,) = draw("distribution", search, trials[:3])
    assert [each["name"] for each in few.spec["data"]] == ["all results"]


def test_convergence_has_peers_that_ask_the_same_as_thin_lines(search: Search, trials: list[Trial]) -> None:
    peers = [
        PeerSearch("other <b>", make_search(seed=8), make_trials(search, 30, seed=2)),
        PeerSearch("another question", make_search(objective={"goal": "maximize"}), make_trials(search, 30, seed=3)),
        PeerSearch("nothing yet", make_search(), []),
        PeerSearch("latest", make_search(), make_trials(search, 20, seed=4)),
    ]
    figure = draw("convergence", search, trials, peers=peers)[0]
    lines = [each for each in figure.spec["data"] if each.get("legendgroup") == "peers"]
    assert [line["x"][-1] for line in lines] == [30, 20]
    assert "other &lt;b&gt;: best" in lines[0]["hovertemplate"]
    assert [line["showlegend"] for line in lines] == [True, False], "one entry for all"
    assert "Other searches of the same space reached a loss of: other <b> 0." in figure.description
    low, high = figure.spec["layout"]["yaxis"]["range"]
    assert all(low < line["y"][-1] < high for line in lines)
    many = draw("convergence", search, trials, peers=[peers[0]] * 9)[0]
    assert f"latest {PEER_LIMIT} of 9 searches" in many.note


def test_few_results_get_a_tick_each_unless_the_axis_is_long(search: Search, trials: list[Trial]) -> None:
    few = [make_trial(number, 3.0 + number / 10, told=number) for number in (1, 2)]
    assert draw("convergence", search, few)[0].spec["layout"]["xaxis"]["dtick"] == 1
    better = PeerSearch("long", make_search(), make_trials(search, 300, seed=4))
    figure = draw("convergence", search, few, peers=[better])[0]
    (line,) = (each for each in figure.spec["data"] if each.get("legendgroup") == "peers")
    low, high = figure.spec["layout"]["yaxis"]["range"]
    assert low < line["y"][-1] < high, "the other search's best value is in the picture"
    assert figure.spec["layout"]["xaxis"]["range"][1] < 60 and "up to 300 results, beyond the first view" in figure.note
    late = [replace(few[0], told=300)]
    for long in (figure, draw("convergence", search, late)[0]):
        assert "dtick" not in long.spec["layout"]["xaxis"]


def test_convergence_marks_confirmation_runs(search: Search, trials: list[Trial]) -> None:
    repeat = replace(trials[0], number=49, told=49, confirms=1)
    figure = draw("convergence", search, [*trials, repeat])[0]
    assert trace(figure, "confirmation run")["x"] == [49]
    slices = draw("slices", search, [*trials, repeat])
    assert len(trace(slices[0], "trial")["x"]) == 44, "it is no result of its own"
    assert trace(figure, "best so far")["x"][-1] == 48


def test_every_parameter_has_a_figure(search: Search, trials: list[Trial]) -> None:
    figures = {figure.title: figure for figure in draw("slices", search, trials)}
    assert tuple(figures) == search.space.names
    assert figures["learning_rate"].spec["layout"]["xaxis"]["type"] == "log"
    assert "type" not in figures["momentum"].spec["layout"]["xaxis"]
    assert trace(figures["solver"], "trial")["type"] == "box"
    assert figures["batch"].spec["layout"]["xaxis"]["categoryarray"] == ["32", "64", "128", "256"]


def test_a_parameter_that_is_not_active_is_left_out_and_said_so(search: Search, trials: list[Trial]) -> None:
    figure = draw("slices", search, trials)[-1]
    active = [t for t in trials if t.state is TrialState.FINISHED and t.point["solver"] == "sgd"]
    assert len(trace(figure, "trial")["x"]) == len(active)
    assert f"Not active in {44 - len(active)} trials" in figure.note


def test_folds_of_the_best(search: Search, trials: list[Trial]) -> None:
    figure = draw("folds", search, trials)[0]
    assert len(trace(figure, "fold")["x"]) == 20 * 3
    assert len(trace(figure, "mean ± standard deviation")["x"]) == 20


def test_without_folds_there_is_no_fold_figure(search: Search) -> None:
    assert draw("folds", search, [make_trial(1, 0.5, folds=(made_fold(fold=0, value=0.5),))]) == []
    assert draw("folds", search, []) == []


def test_many_trials_are_thinned_and_the_best_stays(search: Search) -> None:
    trials = make_trials(search, 4000)
    best = min((trial for trial in trials if trial.value is not None), key=lambda trial: trial.value or 0)
    overview = draw("convergence", search, trials)[0]
    assert len(trace(overview, "trial")["x"]) == POINT_LIMIT
    assert best.told in trace(overview, "trial")["x"]
    assert overview.note.startswith("Shows 1,500 of 3,637 trials")
    crosses = trace(overview, "failed trial")["x"]
    assert len(crosses) == FAILURE_LIMIT
    assert crosses[-1] > 3900
    figures = draw("slices", search, trials)
    assert sum(len(trace(figure, "trial")["x"]) for figure in figures) <= SLICE_POINT_LIMIT


def test_log_scale_where_figures_span_orders_of_magnitude(search: Search) -> None:
    axis = merit_axis(search, [0.01, 0.5, 3.0]).layout
    assert axis["type"] == "log"
    assert axis["range"][0] < -2 < math.log10(3) < axis["range"][1]
    assert "0.01" in axis["ticktext"]


@pytest.mark.parametrize("figures", [[-0.5, 0.01, 30.0], [0.0, 1.0, 50.0], [0.5, 0.5, 0.5], [0.0, 0.0], [-3.0]])
def test_linear_scale_where_a_log_scale_cannot_be(search: Search, figures: list[float]) -> None:
    axis = merit_axis(search, figures).layout
    assert "type" not in axis
    low, high = axis["range"]
    assert low < min(figures) <= max(figures) < high


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_far_worse_figures_do_not_hide_the_differences_among_good_ones(goal: str) -> None:
    search = make_search(objective={"goal": goal})
    sign = search.objective.sign
    axis = merit_axis(search, [sign * value for value in (*range(-10, 10), 900, 1000)])
    assert axis.outside == 2
    assert max(abs(end) for end in axis.layout["range"]) < 20
    best = merit_axis(search, [sign * value for value in (*range(-10, 10), -1000)])
    assert best.outside == 0, "unusually good is never hidden"


@pytest.mark.parametrize("far", [1e308, -1e308])
def test_figures_near_the_largest_float_are_drawn_where_plotly_can(far) -> None:
    figures = [far, -far, *(far * share / 9 for share in range(8))]
    trials = [make_trial(number, figure) for number, figure in enumerate(figures, 1)]
    (convergence,) = draw("convergence", make_search(), trials)
    assert max(map(abs, trace(convergence, "trial")["y"])) == FARTHEST
    assert "beyond ±1e304 are drawn there" in convergence.note
    assert all(abs(end) < 1.8e304 for end in convergence.spec["layout"]["yaxis"]["range"])


def test_far_costs_are_found_at_any_size() -> None:
    costs = [*range(10), 500, 600]
    for size in (1.0, 1e305, 5e-324):
        scaled = [cost * size for cost in costs]
        assert len(without_far(scaled)) == 10
        assert len(without_far([cost - 1.7e308 if size > 1 else cost for cost in scaled])) == 10


def test_stopped_trials_are_rings_at_their_probable_values() -> None:
    search = make_search(objective=[{"metric": "loss"}, {"metric": "speed"}], early_stopping=ASHA)
    stops = [EarlyStop(1, "", 9, 0.9, (0.5, 7.0)), EarlyStop(1, "", 9, None)]
    stopped = [make_trial(n, None, state=TrialState.STOPPED, stop=stop) for n, stop in enumerate(stops, 3)]
    trials = [make_trial(1, 0.2, values=(0.2, 1.0)), make_trial(2, 0.3, values=(0.3, 2.0)), *stopped]
    figures = draw("slices", search, trials)
    losses, speeds = figures[: len(figures) // 2], figures[len(figures) // 2 :]
    ring = trace(losses[0], RINGS)
    assert (ring["x"], ring["y"]) == ([0.001], [0.5])
    assert "trial 3, stopped at step 9" in ring["text"][0]
    assert losses[0].note == "Not shown: 1 stopped trial without a projected value."
    assert RINGS not in {each["name"] for each in speeds[0].spec["data"]}, "it does not decide: its figure is made up"
    assert speeds[0].note == "Not shown: 2 stopped trials without a projected value."
    seen = Results.of(search, trials, 0)
    figure = draw("convergence", seen.search, seen.trials)[0]
    assert (trace(figure, RINGS)["x"], trace(figure, RINGS)["y"]) == ([3], [0.5])
    assert figure.note.startswith("Rings: 1 trial stopped early, each at its probable final value; not shown: 1")
    assert "2 trials stopped early not shown" in draw("front", search, trials)[0].note


def test_a_value_outside_the_domain_widens_the_axis(search: Search) -> None:
    trials = [make_trial(n, 0.1, point={"learning_rate": rate}) for n, rate in enumerate([1e-6, 0.5], 1)]
    low, high = parameter_axis(search, "learning_rate", trials).layout["range"]
    assert low < -6 < math.log10(0.5) < high


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-3.0, 1e6), (1e-9, 3e-9), (5.0, 5.0), (-1e304, 1e304), (1e9, 1e9 + 1e-7)]
)
def test_round_ticks_are_few_and_lie_within(low: float, high: float) -> None:
    ticks = round_ticks(low, high)
    assert 1 <= len(ticks) <= 7
    assert ticks == sorted(ticks)
    assert low - 1e-6 * abs(low) <= ticks[0] <= ticks[-1] <= high + 1e-6 * abs(high)


def test_choices_that_look_alike_stay_different() -> None:
    assert choice_labels(["adam", None, True]) == ["adam", "null", "true"]
    labels = choice_labels([1, "1", True, "true"])
    assert len(set(labels)) == 4
    assert labels[0] == "1"


def test_choices_of_mixed_types_find_their_place() -> None:
    search = make_search(space={"x": {"type": "categorical", "choices": [1, True, "1", None, 1.5]}}, constraints=[])
    trials = [make_trial(n, 0.1 * n, point={"x": x}) for n, x in enumerate([1, True, "1", None, 1.5], 1)]
    (figure,) = draw("slices", search, trials)
    assert len(set(trace(figure, "trial")["x"])) == 5


def compared(name: str, search: Search, trials: Sequence[Trial]) -> ComparedSearch:
    """The search with all results, as the store has them."""
    results, seconds = [], 0.0
    for trial in trials:
        seconds += trial.spent.seconds
        passed = (trial.ended - START).total_seconds() if trial.ended else 0.0
        results.append(TimedResult(trial.told or 0, trial.number, figures_of_merit(search, trial), passed, seconds))
    return ComparedSearch(name, search, results)


def test_a_comparison_draws_the_best_so_far_over_results_time_and_cost() -> None:
    search = make_search(folds=1)
    fold = {seconds: {"folds": (made_fold(0, 0.1, seconds=seconds),)} for seconds in (360.0, 3600.0)}
    slow = [make_trial(n, value, **fold[3600.0]) for n, value in enumerate((0.5, 0.7, 0.2), 1)]
    quick = [make_trial(n, value, **fold[360.0]) for n, value in enumerate((None, 0.4), 1)]
    slow = [replace(trial, ended=START + timedelta(hours=trial.number), submitted=START) for trial in slow]
    quick = [replace(trial, ended=START + timedelta(hours=trial.number / 2), submitted=START) for trial in quick]
    figures = comparison_figures([compared("slow", search, slow), compared("quick", search, quick)])
    assert [figure.title for figure in figures] == ["Over trials", "Over time", "Over cost"]
    assert figures[0].description == "Best loss over results of 2 searches; reached: slow 0.2, quick 0.4."
    for figure, xs in zip(figures, ([1, 3], [1.0, 3.0], [1.0, 3.0]), strict=True):
        go.Figure(figure.spec)
        line = trace(figure, "slow")
        assert (line["x"], line["y"], line["customdata"], line["meta"]) == (xs, [0.5, 0.2], [1, 3], "slow")
    assert [trace(figure, "quick")["x"] for figure in figures] == [[2], [1.0], [pytest.approx(0.2)]]
    assert comparison_figures([ComparedSearch("none", search, [])]) == []


def test_a_comparison_of_fronts_has_one_reference_point() -> None:
    search = make_search(objective=TWO)
    trials = several_trials(*ROWS)
    both = comparison_figures([compared("one", search, trials), compared("two", search, trials[:3])])
    one, two = (trace(both[0], name) for name in ("one", "two"))
    assert one["y"][0] == two["y"][0]
    assert max(two["y"]) <= max(one["y"])
