"""What a job's metadata has under hpogrid's keys; read back by hpogrid 1.3.3 itself."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hpogrid.components.hpo_report import HPOReport
from hpogrid.core.defaults import kHPOGridMetadataFormat

from hpo_pilot.jobs.results import parse_reports
from hpo_pilot.runner import hpo_pilot_hpogrid
from tests.runner.test_series import Job

GOOD = """echo '{"status": 0, "loss": 0.5, "size": 7}' > output.json"""
TOLD = {"hyperparameters": ["x", "name", "depth"], "mode": "min"}


def metadata(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "userJobMetadata.json").read_text())
    return read


def test_the_keys_are_hpogrids():
    assert set(hpo_pilot_hpogrid.KEYS) == set(kHPOGridMetadataFormat)


def test_a_finished_point(bench):
    before = time.time()
    told = metadata(bench.run(GOOD, objectives=["loss", "size"], **TOLD).folder)
    ours = told.pop("hpo_pilot")
    assert (told["project_name"], told["metric"], told["mode"]) == ("digits", "loss", "min")
    assert told["best_config"] == {"x": 0.25, "name": "é", "depth": None} and told["best_metric_score"] == 0.5
    (row,) = told["result"].values()
    assert row == told["best_config"] | {
        "loss": 0.5,
        "size": 7,
        "time_s": ours["seconds"],
        "timestamp": row["timestamp"],
    }
    assert before - 1 <= told["start_timestamp"] <= told["start_timestamp"] + told["task_time_s"] <= time.time() + 1
    began = time.strptime(told["start_datetime"], "%m/%d/%Y, %H:%M:%S")
    assert began[:6] == time.gmtime(told["start_timestamp"])[:6]

    assert hpo_pilot_hpogrid.joined([told] * 9)["result"].keys() == set(map(str, range(9)))
    assert hpo_pilot_hpogrid.joined([told] * 1000) == {}  # together they would be too large
    report = HPOReport(told, verbose=False)
    assert report.merge_data() == [{"x": 0.25, "name": "é", "depth": None, "loss": 0.5, "size": 7}]
    (report,) = parse_reports({"user_job_metadata": told | {"hpo_pilot": ours}})
    assert report.values == (0.5, 7) and report.metadata is None  # nothing that the payload said


def test_a_failed_point_has_no_row(bench):
    told = metadata(bench.run("false", **TOLD).folder)
    del told["hpo_pilot"]
    assert told["result"] == {} and told["best_config"] is None and told["best_metric_score"] is None
    report = HPOReport(told, verbose=False)
    assert len(report.data) == 1


@pytest.mark.parametrize(
    ("own", "theirs"), [({"epochs": 3}, {"epochs": 3}), ({"metric": "auc"}, {"metric": "auc"}), ({}, None)]
)
def test_what_the_payload_says_itself(bench, own, theirs):
    files = {"train.py": f"import json\njson.dump({own!r}, open('meta.json', 'w'))\n"}
    command = f"{sys.executable} -I -S train.py; {GOOD}"
    told = metadata(bench.run(command, files=files, file_names={"metadata": "meta.json"}, **TOLD).folder)
    assert ("project_name" in told) == ("metric" not in own)
    (report,) = parse_reports({"user_job_metadata": told})
    assert report.metadata == theirs


def test_too_large_a_point_is_left_out(bench):
    names = [f"{number:06d}" for number in range(8000)]
    told = metadata(bench.run(GOOD, hyperparameters=names, mode="min").folder)
    assert list(told) == ["hpo_pilot"] and "hpogrid" not in told["hpo_pilot"]


@pytest.mark.parametrize(("mode", "best"), [("min", 3), ("max", 6)])
def test_several_points_in_a_job(bench, mode, best):
    job = Job(bench)
    members = job.run(hyperparameters=["x"], mode=mode)
    assert all("report" not in member and "hpogrid" not in member and member["metadata"] is None for member in members)
    told = metadata(job.folder)
    assert told.pop("hpo_pilot")["members"] == members
    assert told["best_config"] == {"x": best} and told["best_metric_score"] == best / 10
    rows = HPOReport(told, verbose=False).merge_data()
    expected = [{"x": trial, "loss": trial / 10} for trial in (3, 4, 5, 6)]
    assert rows == (expected if mode == "min" else expected[::-1])
    began = min(member["started"] for member in members)
    assert told["start_timestamp"] == began
    assert told["task_time_s"] == pytest.approx(max(member["ended"] for member in members) - began)
