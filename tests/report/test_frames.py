from __future__ import annotations

import math
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.operations.notebook import reports_of
from hpo_pilot.report.exports import as_csv
from hpo_pilot.report.frames import folds_frame, intermediate_frame, pandas, trials_frame
from hpo_pilot.report.trial_documents import trial_document, trial_of
from hpo_pilot.search import EarlyStop, Trial, TrialState
from hpo_pilot.search.trials import Price
from tests.made import made_fold
from tests.report.figures.made_up import START, make_search, make_trial, make_trials, on_nodes

PRICE = Price(0, 1)


def documents(trials: list[Trial]) -> list[Any]:
    return [trial_document(trial, PRICE, logs=False) for trial in trials]


def test_columns_have_the_types_of_what_they_hold_also_in_a_parquet_file(tmp_path: Path) -> None:
    search = make_search()
    frame = trials_frame(search, documents(make_trials(search, 48)))
    assert frame.index.name == "number" and frame.index.tolist() == list(range(1, 49))
    types = {name: str(kind) for name, kind in frame.dtypes.items()}
    assert {name: types[name] for name in search.space.names} == {
        "learning_rate": "Float64", "layers": "Int64", "width": "Int64", "alpha": "Float64",
        "solver": "category", "batch": "category", "momentum": "Float64",
    }  # fmt: skip
    assert frame["batch"].cat.ordered and not frame["solver"].cat.ordered
    assert types["started"] == types["submitted"] == "datetime64[us, UTC]"
    assert frame["started"].iloc[0] == START + timedelta(seconds=4)
    assert frame["momentum"].isna().sum() == (frame["solver"] == "adam").sum() > 0
    assert frame["value"].isna().sum() == 4 == (frame["state"] == "failed").sum()
    assert frame.loc[11, "error"].startswith("the payload ended")
    assert (frame["batch"] > 64).any()
    assert frame["job_seconds"].tolist() == [0.0 if lost else pytest.approx(6.3) for lost in frame["value"].isna()]
    frame.to_parquet(tmp_path / "trials.parquet")
    pd.testing.assert_series_equal(pd.read_parquet(tmp_path / "trials.parquet")["value"], frame["value"])


def test_no_trial_has_the_same_columns() -> None:
    search = make_search()
    empty = trials_frame(search, [])
    full = trials_frame(search, documents(make_trials(search, 3)))
    assert empty.dtypes.to_dict() == full.dtypes.to_dict()
    assert len(empty) == 0
    assert list(folds_frame(search, []).index.names) == ["number", "fold"]
    assert intermediate_frame([]).dtypes["value"] == "float64"


def test_names_that_are_taken_and_choices_that_look_alike() -> None:
    space = {
        "state": {"type": "categorical", "choices": [1, True, "1", None]},
        "loss": {"type": "integer", "low": 1, "high": 3},
    }
    search = make_search(space=space, constraints=[])
    trials = [make_trial(n, 0.1, point={"state": x, "loss": 2}) for n, x in enumerate([1, True, "1", None], 1)]
    frame = trials_frame(search, documents(trials))
    assert frame["state"].tolist() == ["finished"] * 4
    assert [type(value) for value in frame["point.state"]] == [int, bool, str, type(None)]
    assert frame["loss"].tolist() == [2] * 4


def test_columns_are_named_as_in_the_exports() -> None:
    """Also those of parameters whose names are taken in one of the tables."""
    space = {name: {"type": "integer", "low": 1, "high": 3} for name in ("x", "seed", "told", "seconds", "panda_ids")}
    search = make_search(space=space, constraints=[])
    trials = [make_trial(n, 0.1, point=dict.fromkeys(space, 2), folds=(made_fold(0, 0.1),)) for n in (1, 2)]
    frame = trials_frame(search, documents(trials))
    head = next(as_csv(search, trials)).strip().split(",")
    only_there = {"number", "panda_ids", *(name for name in head if name.startswith("fold_"))}
    assert set(head) - set(frame) == only_there and frame.index.name == "number"
    assert {"x", "point.seed", "point.told", "point.seconds", "point.panda_ids"} < {*head}
    only_here = {"seconds", "stopped_step", "stopped_value", "projected", "retries"}
    assert set(frame) - set(head) <= only_here


def test_several_objectives_have_a_column_each() -> None:
    search = make_search(objective=[{"metric": "loss"}, {"metric": "speed", "goal": "maximize"}])
    trials = [make_trial(1, 0.5, values=(0.5, 3.0), stds=(0.1, 0.2)), make_trial(2, None)]
    frame = trials_frame(search, documents(trials))
    assert frame["value_speed"].iloc[0] == 3.0 and frame["std_speed"].iloc[0] == 0.2
    assert frame["value_loss"].isna().tolist() == [False, True]


def test_folds_with_their_metrics() -> None:
    search = make_search()
    metrics = {"accuracy": 0.5, "note": "ä", "best": True, "loss": 7.0, "bad": math.nan, "far": 10**400}
    fold = made_fold(1, 0.4, metrics=metrics, node="n1", panda_id=7, seconds=2.0)
    frame = folds_frame(search, documents([make_trial(3, 0.5, folds=(made_fold(0, 0.6), fold))]))
    assert (frame.loc[(3, 1), "value"], frame.loc[(3, 1), "metrics.loss"]) == (0.4, 7.0)
    assert frame.loc[(3, 1), "metrics.accuracy"] == 0.5
    assert all(frame[f"metrics.{name}"].isna().all() for name in ("bad", "far", "note", "best"))
    assert frame.loc[(3, 1), "panda_id"] == 7


def test_intermediate_values() -> None:
    found: list[Any] = [{"number": 4, "folds": [{"fold": 0, "values": [(1, 0.5), (2, None)]}]}]
    frame = intermediate_frame(found)
    assert frame.iloc[0].to_dict() == {"number": 4, "fold": 0, "step": 1, "value": 0.5}
    assert math.isnan(frame["value"].iloc[1])


def test_trials_survive_their_documents() -> None:
    """Figures of documents are those of the store's trials."""
    stop = EarlyStop(0, "", 9, 0.9, (0.7,))
    trials = on_nodes(make_trials(make_search(), 12))
    trials.append(make_trial(13, None, state=TrialState.STOPPED, stop=stop, error="stopped early"))
    trials.append(make_trial(14, 0.5, values=(0.5, 3.0), stds=(0.1, 0.2), confirms=2))
    again = [trial_of(document) for document in documents(trials)]
    for one, other in zip(trials, again, strict=True):
        times = [
            abs((a - b).total_seconds()) for a, b in ((one.started, other.started), (one.ended, other.ended)) if a and b
        ]
        assert max(times, default=0) < 0.001
        for name in ("number", "point", "state", "values", "stds", "told", "stop", "confirms"):
            assert getattr(one, name) == getattr(other, name)
        assert [(f.number, f.values, f.result.node, f.attempt) for f in one.folds] == [
            (f.number, f.values, f.result.node, f.attempt) for f in other.folds
        ]
    reports: list[Any] = [{"number": 4, "folds": [{"fold": 0, "values": [(1, 0.5), (2, None)]}]}]
    assert reports_of(reports) == {4: {0: [(1, 0.5), (2, math.inf)]}}


def test_without_pandas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"pip install 'hpo-pilot\[notebook\]'"):
        pandas()
    monkeypatch.undo()
    assert pandas() is pd
