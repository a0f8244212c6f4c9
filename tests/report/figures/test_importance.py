from __future__ import annotations

import random
from dataclasses import replace

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator

from hpo_pilot.report.figure import Results
from hpo_pilot.report.importance import LEAST_TRIALS, importances, ped_anova
from hpo_pilot.search import Search, Trial, TrialState
from tests.report.figures.made_up import STOP, draw, make_search, make_trial, make_trials, trace

UNIT = {"type": "real", "low": 0.0, "high": 1.0}
SPACE = {
    "decides": {"type": "real", "low": 1e-5, "high": 1.0, "scale": "log"},
    "helps": {"type": "categorical", "choices": ["a", "b", "c"]},
    "idle": {"type": "integer", "low": 1, "high": 9},
    "only_c": {"type": "real", "low": 0.0, "high": 1.0, "when": {"helps": "c"}},
}


def scanned(count: int, noise: float = 0.0, seed: int = 4) -> tuple[Search, list[Trial]]:
    """Trials whose figure hangs on two of the parameters; one of them has no order."""
    search = make_search(space=SPACE, constraints=[])
    rng = random.Random(seed)
    trials = []
    for number in range(1, count + 1):
        point = search.space.decode([rng.random() for _ in search.space.names])
        unit = search.space.encode(point)[0]
        figure = (unit - 0.3) ** 2 + {"a": 0.3, "b": 0.0, "c": 0.15}[str(point["helps"])] + noise * rng.gauss(0, 1)
        trials.append(make_trial(number, figure, point=point))
    return search, trials


def test_what_decides_comes_first_and_what_is_idle_loses_nothing() -> None:
    search, trials = scanned(200)
    found = importances(Results(search, trials))
    assert found is not None
    by_name = {one.name: one for one in found.parameters}
    assert {one.name for one in found.parameters[:2]} == {"decides", "helps"}
    assert by_name["decides"].value > 0.3 and by_name["helps"].value > 0.3
    for name in ("idle", "only_c"):
        assert abs(by_name[name].value) < 0.05
    assert found.score > 0.8
    assert by_name["decides"].spread > 0
    assert 0.2 < by_name["only_c"].active < 0.5
    assert by_name["decides"].active == 1
    assert found == importances(Results(search, trials)), "the same trials give the same importances"


def test_noise_is_told_from_knowledge() -> None:
    search, trials = scanned(100, noise=50.0)
    figure = draw("importance", search, trials)[0]
    assert "do not rely on this order" in figure.note
    assert "predicts poorly" not in draw("importance", *scanned(200))[0].note


def test_one_far_trial_changes_little() -> None:
    search, trials = scanned(150)
    far = [*trials, make_trial(151, 1e300, point=trials[0].point)]
    found = importances(Results(search, far))
    assert found is not None
    assert found.score > 0.8


def test_few_trials_and_equal_ones_say_nothing() -> None:
    search, trials = scanned(LEAST_TRIALS - 1)
    figure = draw("importance", search, trials)[0]
    assert figure.spec["data"] == []
    assert figure.description == f"Needs {LEAST_TRIALS} finished trials; there are {LEAST_TRIALS - 1} so far."
    same = [make_trial(n, 0.5) for n in range(1, 30)]
    assert draw("importance", search, same)[0].description == "All 29 finished trials have the same loss."


def test_the_figure_has_bars_with_whiskers_the_most_important_on_top() -> None:
    search, trials = scanned(150)
    figure = draw("importance", search, trials)[0]
    (bars,) = figure.spec["data"]
    assert bars["x"] == sorted(bars["x"])
    assert figure.spec["layout"]["yaxis"]["ticktext"][-1] in ("decides", "helps")
    assert all(spread > 0 for spread in bars["error_x"]["array"][-2:])
    assert "shuffled only among trials with a value: only_c" in figure.note
    assert "decides 0." in figure.description


def test_ped_anova_is_that_of_optuna_without_its_chance() -> None:
    """Optuna smooths choices more, so that it gives them less; it has no prior for few trials."""
    search, trials = scanned(600)
    kinds = {"real": FloatDistribution, "integer": IntDistribution}
    spaces = {
        name: CategoricalDistribution(d.choices)
        if d.type == "categorical"
        else kinds[d.type](d.low, d.high, log=d.scale == "log")
        for name, d in search.space_dimensions.items()
    }
    study = optuna.create_study()
    for trial in trials:
        of_trial = {name: spaces[name] for name in trial.point}
        study.add_trial(optuna.create_trial(params=dict(trial.point), distributions=of_trial, value=trial.value))
    theirs = PedAnovaImportanceEvaluator().evaluate(study)
    found = ped_anova(Results(search, trials))
    assert found is not None
    ours = {one.name: one.value for one in found[0]}
    numeric = [name for name in ours if name != "helps"]
    for name in numeric:
        ratios = [each[name] / sum(each[other] for other in numeric) for each in (ours, theirs)]
        assert ratios[0] == pytest.approx(ratios[1], abs=0.02), name
    assert [one.name for one in found[0] if one.beyond_chance] == ["decides", "helps"]
    assert sum(ours.values()) == pytest.approx(1)


def test_what_opens_the_way_to_the_best_is_found_where_all_trials_say_little() -> None:
    """A parameter that only separates bad trials matters to the model, not for the best; a tie is cut nowhere."""
    search = make_search(space={"bad": UNIT, "fine": UNIT}, constraints=[])
    rng = random.Random(5)
    points = [{"bad": rng.random(), "fine": rng.random()} for _ in range(300)]
    trials = [
        make_trial(n, 100.0 * (p["bad"] > 0.8) + round(p["fine"], 1), point=p) for n, p in enumerate(points, start=1)
    ]
    by_best = ped_anova(Results(search, trials))
    assert by_best is not None
    assert by_best[0][0].name == "fine" and by_best[0][0].value > 0.9
    assert {trial.value for trial in by_best[1]} == {0.0, 0.1}
    model, best = draw("importance", search, trials)
    assert "model of all results" in model.note and "loss 0.1 or better" in best.note


def test_trials_stopped_early_count_with_their_projected_values() -> None:
    """Of a search with early stopping few trials finish: they alone would be too few, and the better ones."""
    search = make_search(early_stopping={"method": "asha", "metric": "loss"})
    trials = make_trials(search, 60, fail_every=100)
    by_value = sorted(trials, key=lambda trial: trial.value or 0.0)
    stopped = [
        replace(t, state=TrialState.STOPPED, values=(), stds=(), stop=replace(STOP, projected=t.values))
        for t in by_value[8:]
    ]
    figure = draw("importance", search, [*by_value[:8], *stopped])[0]
    assert figure.spec["data"]
    assert "52 trials stopped early, at the projected final value" in figure.note
    assert importances(Results.of(search, trials, 0)).parameters == (
        importances(Results.of(search, [*by_value[:8], *stopped], 0)).parameters
    )
    planes = draw("contours", search, [*by_value[:8], *stopped])
    ring, best = trace(planes[0], "stopped early"), trace(planes[0], "best")
    assert len(ring["x"]) + len(trace(planes[0], "trial")["x"]) <= 60
    assert best["customdata"] == [by_value[0].number]
    assert "rings: 52 trials stopped early" in planes[0].note.lower()
    (few,) = draw("importance", search, [*by_value[:3], *stopped[:5]])
    assert "so far 3 finished and 5 stopped early" in few.description
