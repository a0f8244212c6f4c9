"""The boosted-trees payload: its events, its figures of merit, its training, and its searches."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tests.payloads.conftest import PAYLOADS

PAYLOAD = PAYLOADS / "bdt"
POINT = {"learning_rate": 0.2, "leaves": 8, "leaf_events": 20, "l2": 1.0, "columns": 0.8}
DIFFER = {"seconds", "memory_mb"}  # between equal trainings


@pytest.fixture(scope="module")
def sample(of: Any) -> Any:
    return of("collisions").collisions(4000, 1)


@pytest.fixture
def trained(of: Any, sample: Any, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Trains in this process; returns the metrics."""

    def training(events: Any = None, fold: int = 0, folds: int = 2, seed: int = 0, **point: Any) -> dict[str, Any]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        whole = {**of("train").DEFAULTS, **POINT, "rounds": 30, **point}
        result = of("train").train(whole, sample if events is None else events, fold, folds, seed, folder)
        assert result["status"] == 0
        return {name: value for name, value in result["metrics"].items() if name not in DIFFER}

    return training


def run(folder: Path, point: Any, *arguments: str, **environment: str) -> dict[str, Any]:
    """The verdict of `python train.py`."""
    shutil.copytree(PAYLOAD, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    (folder / "input.json").write_text(json.dumps(point))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HPO_PILOT_")}
    command = [sys.executable, "train.py", *arguments]
    ended = subprocess.run(
        command, cwd=folder, env={**inherited, **environment}, timeout=600, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
    verdict: dict[str, Any] = json.loads((folder / "output.json").read_text())
    return verdict


# --- events -----------------------------------------------------------------------------------------------------------


def test_the_events_are_those_of_the_selection_and_weigh_what_is_expected(of: Any, sample: Any) -> None:
    made = {name: sample.features[:, i] for i, name in enumerate(sample.names)}
    assert made["lepton_pt"].min() > 26
    assert made["tau_pt"].min() > 20
    assert max(np.abs(made["tau_eta"]).max(), np.abs(made["lepton_eta"]).max()) < 2.5
    for jets, missing in ((0, True), (2, False)):
        assert (np.isnan(made["jets_mass"][made["jets"] == jets]) == missing).all()
    assert (np.isnan(made["jet1_pt"]) == (made["jets"] == 0)).all()
    for label, expected in ((1, of("collisions").SIGNAL_YIELD), (0, of("collisions").BACKGROUND_YIELD)):
        assert sample.weights[sample.labels == label].sum() == pytest.approx(expected)
    assert not np.isinf(sample.features).any()


def test_masses_come_out_where_physics_has_them(of: Any) -> None:
    """The collinear mass of a boson's decay peaks at its mass; a W ends at its transverse mass."""
    processes, detector = of("processes"), of("detector")
    rng = np.random.default_rng(3)

    def column(process: str, name: str, resolved: bool = True) -> Any:
        decay = processes.PROCESSES[process](20_000, rng)
        seen = detector.detected(decay, rng) if resolved else decay
        return detector.features_of(seen)[:, detector.FEATURES.index(name)]

    for process, mass in (("higgs", 125.0), ("z", 91.188)):
        exact = column(process, "mass_collinear", resolved=False)
        assert np.nanmedian(exact) == pytest.approx(mass, rel=0.005), "neutrinos along what is seen, nothing smeared"
        counts, edges = np.histogram(column(process, "mass_collinear"), 30, (50, 200))
        assert edges[counts.argmax()] == pytest.approx(mass, abs=15)
    assert column("w", "mass_transverse", resolved=False).max() == pytest.approx(80.37, rel=0.01)
    assert column("higgs", "mass_visible", resolved=False).max() < 125.001


def test_a_decay_conserves_momentum_and_mass(of: Any) -> None:
    processes = of("processes")
    rng = np.random.default_rng(4)
    mass = np.full(1000, 172.6)
    energy, momentum = processes._boson(mass, 50.0, 1.0, rng)
    quark, boson = processes._two_body(mass, energy, momentum, rng, remnant=80.37)
    assert quark + boson == pytest.approx(momentum)
    total = np.linalg.norm(quark, axis=1) + np.sqrt(80.37**2 + (boson**2).sum(axis=1))
    assert total == pytest.approx(energy)


# --- figures of merit -------------------------------------------------------------------------------------------------


def test_the_auc_is_scikit_learns_where_that_has_one(of: Any) -> None:
    rng = np.random.default_rng(5)
    labels, weights = rng.integers(0, 2, 500), rng.exponential(size=500)
    scores = np.round(labels + rng.normal(size=500), 1)  # with ties
    auc = of("figures").auc
    assert auc(scores, labels, weights) == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))
    # An event that weighs minus one undoes its double: a figure that scikit-learn refuses to give.
    twice = [np.concatenate([array, array[:50], array[:50]]) for array in (scores, labels, weights)]
    twice[2][550:] *= -1
    assert auc(*twice) == pytest.approx(auc(scores, labels, weights))


def test_the_significance_is_the_challenges(of: Any) -> None:
    figures = of("figures")
    s, b = 50.0, 90.0
    assert figures.ams(s, b) == pytest.approx(math.sqrt(2 * ((s + b + 10) * math.log(1 + s / (b + 10)) - s)))
    assert figures.ams(1e-3, 1e6) == pytest.approx(1e-3 / 1e3, rel=1e-3)  # s / √b where s is small
    assert figures.ams(10.0, -5.0) == figures.ams(10.0, 0.0)
    scores, labels = np.array([0.1, 0.2, 0.3, 0.9]), np.array([0, 1, 0, 1])
    weights = np.array([1000.0, 5.0, 1000.0, 30.0])
    cut, best = figures.best_cut(scores, labels, weights)
    assert (cut, best) == (0.9, pytest.approx(float(figures.ams(30.0, 0.0))))
    assert figures.ams_above(0.3, scores, labels, weights) == pytest.approx(float(figures.ams(30.0, 1000.0)))


def test_kolmogorov_smirnov_tells_equal_from_unequal(of: Any) -> None:
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(6)
    first, second = rng.normal(size=800), rng.normal(size=600)
    test = of("figures").kolmogorov_smirnov
    distance, probability = test(first, second, (np.full(800, 3.0), np.full(600, 0.5)))
    reference = ks_2samp(first, second, method="asymp")
    assert distance == pytest.approx(reference.statistic)
    assert probability == pytest.approx(reference.pvalue, rel=0.25)
    assert test(first, second + 0.5, (np.ones(800), np.ones(600)))[1] < 1e-6
    # Weights turn one distribution into another: half of the events above zero make the negative side twice as heavy.
    weights = np.where(first < 0, 2.0, 1.0)
    assert test(first, first, (weights, np.ones(800)))[0] == pytest.approx(1 / 6, abs=0.02)


# --- training ---------------------------------------------------------------------------------------------------------


def test_a_good_point_is_better_than_a_bad_one_in_every_figure(trained: Any) -> None:
    good, bad = trained(), trained(leaves=2, learning_rate=0.01, columns=0.2, rounds=3)
    assert good["auc"] > bad["auc"] + 0.05
    assert good["ams"] > 1.3 * bad["ams"]
    assert good["loss"] < bad["loss"] - 0.1


def test_shuffled_labels_give_no_better_than_chance(of: Any, trained: Any, sample: Any) -> None:
    order = np.random.default_rng(7).permutation(len(sample.labels))
    shuffled = of("collisions").Events(sample.features, sample.names, sample.labels[order], np.ones(len(sample.labels)))
    found = trained(shuffled)
    n = len(sample.labels) / 2 / 2  # events of a class in a test part of one half
    sigma = math.sqrt((2 * n + 1) / (12 * n * n))  # of the rank sum of two equal distributions
    assert abs(found["auc"] - 0.5) < 4 * sigma
    assert found["train_auc"] > 0.5 + 8 * sigma, "it learnt its events by heart: the check below must see that"
    assert max(found["ks_signal_p"], found["ks_background_p"]) < 1e-3


def test_a_tame_training_is_not_called_overtrained(trained: Any) -> None:
    found = trained(leaves=3, learning_rate=0.1, leaf_events=200, rounds=20)
    assert min(found["ks_signal_p"], found["ks_background_p"]) > 0.01
    assert found["train_auc"] == pytest.approx(found["auc"], abs=0.02)


def test_equal_seeds_and_folds_give_equal_results_and_others_do_not(trained: Any) -> None:
    first = trained(rounds=5)
    assert trained(rounds=5) == first
    assert trained(rounds=5, seed=1) != first
    assert trained(rounds=5, fold=1)["auc"] != first["auc"]


def test_it_stops_when_the_validation_part_no_longer_gains(trained: Any, tmp_path: Path) -> None:
    found = trained(learning_rate=1.0, leaves=60, leaf_events=1, rounds=200, patience=5)
    lines = [json.loads(line) for line in (tmp_path / "0" / "progress.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines]
    assert [line["step"] for line in lines] == list(range(1, found["rounds"] + 6))
    assert losses.index(min(losses)) + 1 == found["rounds"]
    assert found["valid_loss"] == pytest.approx(min(losses)), "the trees of the best round are those that count"


def test_the_weight_of_signal_changes_the_odds_and_the_loss_takes_it_out(trained: Any) -> None:
    plain, heavy = trained(leaves=3), trained(leaves=3, signal_weight=5.0)
    assert heavy["loss"] == pytest.approx(plain["loss"], abs=0.05)
    assert heavy["loss"] != plain["loss"]


def test_negative_weights_are_those_of_the_figures_of_merit(of: Any, trained: Any, sample: Any) -> None:
    weights = sample.weights * np.where(np.arange(len(sample.weights)) % 10 == 0, -1.0, 1.0)
    found = trained(of("collisions").Events(sample.features, sample.names, sample.labels, weights))
    assert 0.8 < found["auc"] < 1.0


def test_rounded_features_give_the_very_trees_of_the_whole_ones(of: Any) -> None:
    """Each value is replaced by the nearest quantile: a cut between two quantiles parts the same events."""
    rng = np.random.default_rng(8)
    features = rng.normal(size=(3000, 2))
    features[::7, 0] = np.nan
    rounded = of("boosting")._coarse(features)
    assert (np.isnan(rounded) == np.isnan(features)).all()
    for column, whole in zip(rounded.T, features.T, strict=True):
        levels = np.unique(column[~np.isnan(column)])
        assert len(levels) <= 255
        for cut in (levels[1:] + levels[:-1]) / 2:
            assert ((column <= cut) == (whole <= cut)).all()


# --- a user's own events ----------------------------------------------------------------------------------------------


def test_events_of_a_csv_file_are_read_as_they_are_described(of: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    file = tmp_path / "events.csv"
    file.write_text("EventId,mass,Weight,Label\n1,125,0.5,s\n2,-999,2,b\n")
    files = of("event_files")
    events = files.read_events([file], files.Columns("Label", "s", "Weight", ("EventId",), -999.0))
    assert events.names == ("mass",)
    assert events.labels.tolist() == [1, 0]
    assert events.weights.tolist() == [0.5, 2.0]
    assert events.features[0, 0] == 125
    assert np.isnan(events.features[1, 0])


@pytest.mark.parametrize(("ending", "package"), [("root", "uproot"), ("parquet", "pyarrow"), ("csv", "pyarrow")])
def test_a_reader_that_is_not_there_is_named(
    of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, package: str
) -> None:
    for module in (package, "pyarrow.parquet", "pyarrow.csv"):
        monkeypatch.setitem(sys.modules, module, None)
    file = tmp_path / f"events.{ending}"
    file.touch()
    with pytest.raises(of("boosting").TrainingError, match=f"`pip install {package}`"):
        of("event_files").read_events([file], of("event_files").Columns())


def test_files_that_are_none_are_refused(of: Any, tmp_path: Path) -> None:
    files, error = of("event_files"), of("boosting").TrainingError
    with pytest.raises(error, match="there is no file"):
        files.read_events([tmp_path / "gone.parquet"], files.Columns())
    with pytest.raises(error, match=r"is none of .root, .parquet"):
        files.read_events([tmp_path / "events.h5"], files.Columns())


# --- events that cannot be used ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"labels": 0}, "only 0 signal events"),
        ({"weights": np.nan}, "no finite numbers"),
        ({"weights": -1.0}, "the weights of the signal add up to -"),
        ({"features": np.inf}, "some features are infinite"),
    ],
)
def test_events_that_teach_nothing_are_refused(of: Any, sample: Any, change: dict[str, Any], reason: str) -> None:
    fields = {name: getattr(sample, name) for name in ("features", "labels", "weights")}
    changed = {name: np.full_like(array, change[name]) if name in change else array for name, array in fields.items()}
    with pytest.raises(of("boosting").TrainingError, match=reason):
        of("train").check(of("collisions").Events(names=sample.names, **changed))


@pytest.mark.parametrize(("fold", "folds", "reason"), [(2, 2, "no fold 2 of 2"), (0, 1000, "too few events")])
def test_a_fold_that_cannot_be_is_refused(of: Any, sample: Any, fold: int, folds: int, reason: str) -> None:
    with pytest.raises(of("boosting").TrainingError, match=reason):
        of("train").split(sample, fold, folds)


def test_every_event_is_tested_once_and_never_learnt_beside(of: Any, sample: Any) -> None:
    marked = of("collisions").Events(
        np.arange(len(sample.labels), dtype=float)[:, None], ("number",), sample.labels, sample.weights
    )
    tested = []
    for fold in range(3):
        parts = of("train").split(marked, fold, 3)
        numbers = [set(part.features[:, 0]) for part in parts.values()]
        assert sum(map(len, numbers)) == len(sample.labels) == len(set.union(*numbers))
        tested += list(parts["test"].features[:, 0])
        for part in parts.values():
            assert part.weights[part.labels == 1].sum() == pytest.approx(sample.weights[sample.labels == 1].sum())
    assert sorted(tested) == list(range(len(sample.labels)))


def test_a_library_that_is_not_there_is_a_failed_trial(of: Any, trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, point in (("xgboost", {"depth": 3, "leaf_weight": 1, "rows": 1}), ("lightgbm", {"rows": 1})):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(of("boosting").TrainingError, match=f"`pip install {name}`, or take {name} out"):
            trained(model=name, **point)


@pytest.mark.parametrize(("model", "equal"), [("sklearn", 1e-9), ("xgboost", 0.1), ("lightgbm", 0.1)])
def test_a_level_adds_trees_to_those_of_the_level_below(
    of: Any, sample: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, equal: float
) -> None:
    if model != "sklearn":
        pytest.importorskip(model)
    more = {} if model == "sklearn" else {"depth": 3, "leaf_weight": 1.0, "rows": 0.9}
    names = of("boosting").FAMILIES[model].parameters | {"rounds", "patience", "signal_weight"}
    point = {name: value for name, value in {**of("train").DEFAULTS, **POINT, **more}.items() if name in names}

    def lines(folder: str, rounds: int) -> list[dict[str, float]]:
        (tmp_path / folder).mkdir(exist_ok=True)
        shutil.rmtree(tmp_path / folder / "model", ignore_errors=True)
        of("train").train({**point, "model": model, "rounds": rounds}, sample, 0, 2, 0, tmp_path / folder)
        return [json.loads(line) for line in (tmp_path / folder / "progress.jsonl").read_text().splitlines()]

    monkeypatch.setenv("HPO_PILOT_LEVEL", "10")
    low, grown = lines("levels", 10), []
    new = of("boosting").FAMILIES[model].grow
    monkeypatch.setattr(
        of("boosting").FAMILIES[model], "grow", lambda *given: (grown.append(1) or one for one in new(*given))
    )
    high, again, whole = lines("levels", 30), lines("levels", 30), lines("whole", 30)
    assert len(grown) == 20 + 0 + 30 and high[:10] == low and again == high
    assert [line["loss"] for line in high] == pytest.approx([line["loss"] for line in whole], rel=equal)
    assert [line["step"] for line in high] == list(range(1, 31))


# --- as a job, and its searches ---------------------------------------------------------------------------------------


def test_a_job_writes_what_the_readme_says(tmp_path: Path) -> None:
    point = {**POINT, "events": 1000, "rounds": 5}
    verdict = run(tmp_path, point, HPO_PILOT_FOLD="1", HPO_PILOT_FOLDS="2")
    assert verdict["status"] == 0
    assert verdict["loss"] == verdict["metrics"]["loss"]
    readme = (PAYLOAD / "README.md").read_text()
    assert [name for name in verdict["metrics"] if f"`{name}`" not in readme] == []
    assert json.loads((tmp_path / "model" / "cut.json").read_text())["rounds"] == verdict["metrics"]["rounds"]
    assert (tmp_path / "model" / "model.joblib").stat().st_size > 0
    with np.load(tmp_path / "scores.npz") as scores:
        assert len(scores["margins"]) == len(scores["labels"]) == len(scores["weights"]) == 500


def test_a_job_that_cannot_train_says_why(of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "input.json").write_text(json.dumps(POINT))
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    of("train").main(["--data", "gone.root"])
    verdict = json.loads((tmp_path / "output.json").read_text())
    assert verdict == {"status": 1, "loss": None, "message": "there is no file gone.root"}
    assert not (tmp_path / "model").exists(), "an earlier run's model must not pass for this one's"
