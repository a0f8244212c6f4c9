"""The boosted-trees payload with every library that it can use, and through the real command."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.end_to_end.conftest import Scan
from tests.payloads.conftest import PAYLOADS, modules_of
from tests.real.processes import missing, write_search

POINTS = {
    "sklearn": {"leaves": 8, "leaf_events": 20},
    "xgboost": {"depth": 4, "leaf_weight": 1.0, "rows": 0.8},
    "lightgbm": {"leaves": 8, "leaf_events": 20, "rows": 0.8},
}


@pytest.fixture
def of() -> Iterator[Callable[[str], ModuleType]]:
    with modules_of(PAYLOADS / "bdt") as load:
        yield load


def need(*packages: str) -> None:
    absent = [package for package in packages if importlib.util.find_spec(package) is None]
    if absent:
        missing(f"{' and '.join(absent)}: pip install '.[bdt]'")


@pytest.mark.parametrize("model", POINTS)
def test_each_library_learns_stops_repeats_itself_and_reads_its_model_again(
    of: Any, tmp_path: Path, model: str
) -> None:
    need({"sklearn": "sklearn"}.get(model, model))
    point = {"learning_rate": 0.2, "l2": 1.0, "columns": 0.8, "model": model, "patience": 10, **POINTS[model]}
    events = of("collisions").collisions(4000, 1)
    found = []
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        (tmp_path / name).mkdir()
        point = {**of("train").DEFAULTS, **point}
        found.append(of("train").train(point, events, 0, 2, seed, tmp_path / name)["metrics"])
    figures = [{key: one[key] for key in ("auc", "ams", "loss", "rounds")} for one in found]
    assert figures[0] == figures[1] != figures[2]
    assert found[0]["auc"] > 0.88
    assert found[0]["rounds"] < 200
    lines = [json.loads(line) for line in (tmp_path / "first" / "progress.jsonl").read_text().splitlines()]
    assert min(line["loss"] for line in lines) == pytest.approx(found[0]["valid_loss"], rel=1e-5)

    test = of("train").split(events, 0, 2)["test"]
    with np.load(tmp_path / "first" / "scores.npz") as scores:
        margins = read_again(model, tmp_path / "first" / "model", test.features, found[0]["rounds"])
        assert margins == pytest.approx(scores["margins"], rel=1e-4, abs=1e-5)


def read_again(model: str, folder: Path, features: Any, rounds: int) -> Any:
    """Margins by the model in a folder, as a user of that library reads it."""
    if model == "xgboost":
        import xgboost

        booster = xgboost.Booster(model_file=folder / "model.json")
        return booster.predict(xgboost.DMatrix(features), output_margin=True, iteration_range=(0, rounds))
    if model == "lightgbm":
        import lightgbm

        booster = lightgbm.Booster(model_file=folder / "model.txt")
        return booster.predict(features, raw_score=True, num_iteration=rounds)
    import joblib

    return list(joblib.load(folder / "model.joblib").staged_decision_function(features))[rounds - 1]


@pytest.mark.parametrize("ending", ["parquet", "root", "csv"])
def test_files_give_the_figures_of_the_events_that_they_hold(of: Any, tmp_path: Path, ending: str) -> None:
    need("uproot" if ending == "root" else "pyarrow")
    events = of("collisions").collisions(1000, 1)
    columns = {name: np.nan_to_num(events.features[:, i], nan=-999.0) for i, name in enumerate(events.names)}
    columns |= {"Weight": events.weights, "Label": events.labels, "EventId": np.arange(1000)}
    file = tmp_path / f"events.{ending}"
    if ending == "root":
        import uproot

        with uproot.recreate(file) as root:
            root["events"] = columns
            root["other"] = {"x": np.arange(3)}
    else:
        import pyarrow.csv
        import pyarrow.parquet

        columns["Label"] = np.where(events.labels == 1, "s", "b")
        table = pyarrow.table(columns)
        (pyarrow.parquet.write_table if ending == "parquet" else pyarrow.csv.write_csv)(table, file)
    files = of("event_files")
    signal, tree = ("1", "events") if ending == "root" else ("s", "")
    read = files.read_events([file], files.Columns("Label", signal, "Weight", ("EventId",), -999.0, tree))
    assert sorted(read.names) == sorted(events.names)  # ROOT has an order of its own
    assert (read.labels == events.labels).all()
    assert read.weights == pytest.approx(events.weights)
    order = [read.names.index(name) for name in events.names]
    assert read.features[:, order] == pytest.approx(events.features, nan_ok=True)

    error = of("boosting").TrainingError
    with pytest.raises(error, match="has no column 'wieght'"):
        files.read_events([file], files.Columns("Label", signal, "wieght", tree=tree))
    if ending == "root":
        with pytest.raises(error, match="name it with --tree; it has events, other"):
            files.read_events([file], files.Columns("Label"))
        with pytest.raises(error, match="no tree 'evnts'; it has events, other"):
            files.read_events([file], files.Columns("Label", tree="evnts"))
    else:
        with pytest.raises(error, match="column 'Label' is no column of numbers"):
            files.read_events([file], files.Columns("EventId", "7"))
    file.write_bytes(b"no such thing\n")
    if ending != "csv":
        with pytest.raises(error, match="cannot be read"):
            files.read_events([file], files.Columns())


def test_a_search_over_a_users_file_from_the_command_to_the_best_point(tmp_path: Path, of: Any) -> None:
    need("pyarrow")
    import pyarrow.parquet

    scan = Scan(tmp_path)  # with a server and pilots of its own
    events = of("collisions").collisions(2000, 1)
    columns = {name: events.features[:, i] for i, name in enumerate(events.names)}
    pyarrow.parquet.write_table(
        pyarrow.table({**columns, "w": events.weights, "kind": events.labels}), scan.root / "events.parquet"
    )

    def edit(document: Any) -> None:
        document["space"]["learning_rate"] = {"type": "real", "low": 0.1, "high": 0.5}
        document["payload"] |= {
            "command": f"{sys.executable} train.py --label kind --weight w",
            "inputs": [str(scan.root / "events.parquet")],
            "outputs": ["model", "scores.npz"],
        }

    budget = {"trials": 4, "parallel": 2}
    write_search(scan, PAYLOADS / "bdt" / "search-front.yaml", edit, budget=budget, folds=2, confirm=None)
    scan("run", str(scan.file), timeout=600)
    trials = scan.trials()
    assert [trial["state"] for trial in trials] == ["finished"] * 4
    for trial in trials:
        assert 0.7 < trial["value"][0] < 1
        assert trial["value"][1] > 0
        assert len(trial["folds"]) == 2
        assert trial["folds"][0]["metrics"]["events"] == 2000
    front = scan.json("best", "demo")
    assert front
    scan("fetch", str(front[0]["number"]), "demo", "-o", str(scan.root / "out"))
    assert list((scan.root / "out").rglob("cut.json"))


def test_it_needs_scikit_learn_alone(tmp_path: Path) -> None:
    """None of the other libraries is imported where no point and no file asks for them."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(('xgboost', 'lightgbm', 'uproot')));"
    (tmp_path / "input.json").write_text(
        json.dumps({"learning_rate": 0.2, "l2": 1, "columns": 1, "events": 1000, "rounds": 3, **POINTS["sklearn"]})
    )
    code = f"{blocked} sys.path.insert(0, {str(PAYLOADS / 'bdt')!r}); import train; train.main([])"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HPO_PILOT_")}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=600)
    assert json.loads((tmp_path / "output.json").read_text())["status"] == 0
