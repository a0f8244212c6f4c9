"""The Parquet export, read back with pandas."""

from __future__ import annotations

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.report import parquet
from tests.report.exports.made import every_kind, finished, search_of, subject_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trials.parquet"


def test_a_row_a_trial_with_types(path):
    said = parquet.write(subject_of(search_of(), every_kind()), path)
    frame = pd.read_parquet(path)
    assert "16 trials" in said and str(path) in said
    assert list(frame["number"]) == list(range(1, 17))
    states = {"finished": 11, "failed": 1, "stopped": 2, "running": 1, "pending": 1}
    assert dict(frame["state"].value_counts()) == states
    schema = pq.read_schema(path)
    kinds = {field.name: str(field.type) for field in schema}
    assert [kinds[name] for name in ("learning_rate", "layers", "batch")] == ["double", "int64", "int64"]
    assert kinds["solver"] == "string"
    assert kinds["odd"] == "string" and kinds["ended"] == "timestamp[ms, tz=UTC]"
    first = frame.iloc[0]
    assert (first["value"], first["std"], first["fold_0"], first["fold_1"]) == (1.5, 0.7, 1.0, 2.0)
    assert first["point.value"] == 3  # a parameter that is called as a column is
    assert first["ended"] == pd.Timestamp("2026-01-05T09:30:03.500Z")
    assert list(first["panda_ids"]) == [1000, 1001]
    assert first["metrics.accuracy"] == pytest.approx(0.55)
    assert first["gpu_hours"] == 0.0
    assert frame["momentum"].notna().sum() == 9  # where sgd is
    assert list(frame["odd"][:5]) == ["true", '"1"', "null", "1.5", "1"]
    assert frame.iloc[10]["error"] == "fold 0: exit status 1 \\udcff"
    assert (frame.iloc[11]["stopped_step"], frame.iloc[11]["projected"]) == (4, 0.8)
    told = json.loads(schema.metadata[parquet.METADATA_KEY])
    assert told["definition"] == search_of().to_dict()
    assert told["search"]["name"] == "digits" and told["version"]


def test_several_objectives(path):
    search = search_of(objective=[{"metric": "loss"}, {"metric": "latency", "goal": "maximize"}])
    parquet.write(subject_of(search, [finished(2, objectives=2)]), path)
    row = pd.read_parquet(path).iloc[0]
    figures = [row[name] for name in ("value_loss", "value_latency", "std_latency", "fold_1_latency")]
    assert figures == [1.0, 10.0, 7.0, 15.0]


def test_the_same_search_again_and_no_other_file(path):
    parquet.write(subject_of(search_of(), []), path)
    assert len(pd.read_parquet(path)) == 0
    parquet.write(subject_of(search_of(), every_kind()), path)
    assert len(pd.read_parquet(path)) == 16
    with pytest.raises(InputError, match="not an export of search 'other'"):
        parquet.write(subject_of(search_of(search="other"), every_kind()), path)
    assert len(pd.read_parquet(path)) == 16
    path.write_text("number,state\n")
    with pytest.raises(InputError, match="exists"):
        parquet.write(subject_of(search_of(), every_kind()), path)
    assert path.read_text() == "number,state\n"


def test_a_failure_leaves_what_was_there(path, monkeypatch):
    parquet.write(subject_of(search_of(), every_kind()[:2]), path)

    def fails(table, place):
        place.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet.pq, "write_table", fails)
    with pytest.raises(OSError, match="No space"):
        parquet.write(subject_of(search_of(), every_kind()), path)
    assert len(pd.read_parquet(path)) == 2
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
