"""BigPanDA's JSON from a real server, also read by hpogrid 1.3.3's own code."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest
import requests

from tests.panda_environment import panda_environment
from tests.server.conftest import RunningServer, send
from tests.server.monitor import FAILED, Monitor, finished
from tests.task_parameters import make_params


@pytest.fixture(scope="module")
def monitor(server: RunningServer) -> Iterator[Monitor]:
    yield Monitor(server)


@pytest.fixture(scope="module")
def scan(monitor: Monitor) -> tuple[int, list[int]]:
    metrics = {"job_metrics": "nGPU=2 hpoStep=1 hpoValue=0.5"}
    ends = [finished(0.5, 0.1) | metrics, finished(-0.25, 0.2), finished(None, 0.3), FAILED, {}]
    return monitor.run("user.me.demo.cafecafe.g1.scan/", ends, coreCount=4, cliParams="hpo-pilot demo")


def test_a_task(monitor: Monitor, scan: tuple[int, list[int]]) -> None:
    task_id, _ = scan
    (task,) = monitor.get("/tasks/", json=1, jeditaskid=task_id, extra="jobstatecount,metastruct")
    assert (task["jeditaskid"], task["taskname"]) == (task_id, "user.me.demo.cafecafe.g1.scan/")
    assert (task["status"], task["superstatus"]) == ("running", "running")
    assert (task["username"], task["tasktype"]) == ("me", "anal")
    assert (task["processingtype"], task["prodsourcelabel"], task["framework"]) == ("hpo-pilot", "user", "jedi")
    assert (task["corecount"], task["site"], task["transpath"]) == (4, "SCAN", "runGen-00-00-02")
    totals = {
        **{"nfiles": 5, "nfilesfinished": 3, "nfilesfailed": 1, "nfilesmissing": 0},
        **{"pctfinished": 60.0, "pctfailed": 20.0},
    }
    assert task["dsinfo"] == totals and totals.items() <= task.items()
    for name in ("creationdate", "modificationtime", "starttime", "statechangetime"):
        time.strptime(task[name], "%Y-%m-%d %H:%M:%S")
    assert task["endtime"] is None and task["errordialog"] == ""
    counts = task["job_state_count"]
    assert (counts["finished"], counts["failed"], counts["running"], counts["activated"]) == (3, 1, 1, 0)
    assert len(task["jobs_metadata"]) == 3

    one = monitor.get(f"/task/{task_id}/", json="")
    assert one["task"]["jeditaskid"] == task_id and one["taskparams"]["cliParams"] == "hpo-pilot demo"
    assert [dataset["type"] for dataset in one["datasets"]] == ["pseudo_input", "output", "log"]
    assert one["datasets"][0]["nfilesfinished"] == 3
    for path in (f"/task/{task_id}", f"/task/?jeditaskid={task_id}"):
        assert monitor.get(path)["task"]["taskname"] == one["task"]["taskname"]
    assert "no task 987654321" in monitor.get("/task/987654321/", code=404)["error"]
    assert "one jeditaskid" in monitor.get("/task/", code=400)["error"]


def test_filters_of_tasks(monitor: Monitor, scan: tuple[int, list[int]]) -> None:
    first, _ = scan
    second, _ = monitor.run(
        "user.me.which.0badcafe.g1.which/", [finished(0.1, 0.1)], processingType="prun", workingGroup="G"
    )
    third, _ = monitor.run("user.me.which.0badcafe.g2.which/", [FAILED])

    def found(**params: Any) -> list[int]:
        return [task["jeditaskid"] for task in monitor.get("/tasks/", **params) if task["jeditaskid"] >= first]

    assert found(taskname="user.me.which.*") == [third, second]
    assert found(taskname="user.me.*.g1.*") == [second, first] == found(taskname="*.g1.which/|*.g1.scan*")
    assert found(taskname="user.me.which.*", status="done") == [second]
    assert (
        found(taskname="user.me.which.*", status="!done") == [third] == found(taskname="*which*", superstatus="failed")
    )
    assert found(superstatus="running|submitting", taskname="*scan*") == [first]
    assert found(username="m*", taskname="*which*", limit=1) == [third]
    assert found(jeditaskid=f"{first},{third}") == [third, first]
    assert found(days=1, taskname="*which*") == [third, second] and not found(days=0)
    assert found(username="you") == []
    for wrong in ({"limit": "many"}, {"days": "-1"}, {"jeditaskid": "1;2"}, {"status": ",".join("abc" * 500)}):
        assert next(iter(wrong)) in monitor.get("/tasks/", code=400, **wrong)["error"] or "status" in wrong


def test_names_of_fields_are_those_of_bigpanda(monitor: Monitor, scan: tuple[int, list[int]]) -> None:
    """The names of panda-bigmon-core 1.1.7."""
    task_id, panda_ids = scan
    (task,) = monitor.get("/tasks/", jeditaskid=task_id)
    one = monitor.get(f"/task/{task_id}/")
    assert one["datasets"][:1] == task.pop("datasets") and "datasets" not in one["task"]
    (listed,) = monitor.get("/jobs/", pandaid=panda_ids[0])["jobs"]
    own = {"resource_type", "rescuetime", "memory_leak", "memory_leak_core", "memory_leak_x2"}
    for record in (task, one["task"], listed, monitor.get("/job", pandaid=panda_ids[0])["job"]):
        assert record["resourcetype"] == "MCORE" and "memoryleakx2" in record and not own & record.keys()
    assert {"memoryleakcore", "resquetime"} <= task.keys() and "memoryleak" in listed
    assert (task["owner"], task["category"], task["duration_days"]) == ("me", "user analysis", 0.0)
    group, _ = monitor.run("user.me.group.group/", [FAILED], workingGroup="G")
    (task,) = monitor.get("/tasks/", jeditaskid=group)
    assert (task["owner"], task["username"], task["category"]) == ("G", "me", "group analysis")
    broken = monitor.me.submit(make_params("user.me.broken.names/", 1, nEvents="some"))
    (task,) = monitor.get("/tasks/", jeditaskid=broken)
    assert (task["datasets"], task["resourcetype"], task["duration_days"]) == ([], None, 0.0)


@pytest.mark.parametrize(
    ("path", "wrong", "known"),
    [
        ("/tasks/", {"processingtype": "hpo-pilot"}, "taskname"),
        ("/task/1/", {"taskname": "x"}, "jeditaskid"),
        ("/jobs/", {"jeditaskid": 1, "computingsite": "SCAN"}, "jobstatus"),
        ("/job", {"pandaid": 1, "jobname": "x"}, "pandaid"),
    ],
)
def test_an_unknown_filter_is_refused(monitor: Monitor, path: str, wrong: dict[str, Any], known: str) -> None:
    message = monitor.get(path, code=400, **wrong)["error"]
    assert f"no filter {list(wrong)[-1]}; it has" in message and known in message


def test_names_of_filters_may_have_capitals(monitor: Monitor, scan: tuple[int, list[int]]) -> None:
    task_id, _ = scan
    sent = {"json": 1, "datasets": True, "sync": 1, "timestamp": 2, "JediTaskID": task_id}  # pbook 1.5, hpogrid 1.3
    assert [task["jeditaskid"] for task in monitor.get("/tasks/", **sent)] == [task_id]


def test_jobs_of_a_task(monitor: Monitor, scan: tuple[int, list[int]]) -> None:
    task_id, panda_ids = scan
    answer = monitor.get("/jobs/", json=1, jeditaskid=task_id)
    jobs = sorted(answer["jobs"], key=lambda job: -job["pandaid"])
    assert [job["pandaid"] for job in jobs] == panda_ids[::-1]
    first, failed, running = jobs[-1], jobs[1], jobs[0]
    assert (first["jobstatus"], first["jeditaskid"], first["computingsite"]) == ("finished", task_id, "SCAN")
    assert first["jobmetrics"] == "nGPU=2 hpoStep=1 hpoValue=0.5" and first["attemptnr"] == 1
    assert (first["produsername"], first["processingtype"], first["corecount"]) == ("me", "hpo-pilot", 4)
    assert first["jobname"].startswith("user.me.demo.cafecafe.g1.scan/") and "metastruct" not in first
    assert first["starttime"] == "2026-01-31 12:00:00" and first["endtime"] and first["durationsec"] > 0
    assert first["transformation"] == "runGen-00-00-02" and not {"jobparameters", "metadata"} & first.keys()
    assert (failed["piloterrorcode"], failed["exeerrorcode"], failed["transexitcode"]) == (1305, 65, "65")
    assert failed["exeerrordiag"] == "the node had no memory left" and "metastruct" not in failed
    expected = (
        "executor:65 the node had no memory left pilot:1305 Failed to execute payload "
        "transform:65 Unknown transformation exit code 65 "
    )
    assert (failed["errorinfo"], failed["transformerrordiag"]) == (expected, "Unknown transformation exit code 65")
    assert failed["error_category"] == "Runtime Failures and Resource Violations"
    assert failed["error_desc"].startswith("pilot:1305 - The payload") and failed["error_desc"].endswith(" <br>")
    assert running["endtime"] is None and running["errorinfo"] == running["error_desc"] == ""
    assert (running["error_category"], running["meancorecount"], failed["meancorecount"]) == (None, None, 3.5)

    summary = {
        entry["field"]: {one["kname"]: one["kvalue"] for one in entry["list"]} for entry in answer["selectionsummary"]
    }
    assert summary["jobstatus"] == {"finished": 3, "failed": 1, "running": 1}
    assert summary["processingtype"] == {"hpo-pilot": 5} and summary["computingsite"] == {"SCAN": 5}
    errors = {error["error"]: error for error in answer["errsByCount"]}
    assert set(errors) == {"pilot:1305", "executor:65", "transform:65"}
    assert errors["pilot:1305"]["diag"] == "Failed to execute payload" and errors["pilot:1305"]["count"] == 1
    assert errors["pilot:1305"]["cat"] == {"name": "Runtime Failures and Resource Violations", "id": 2}
    assert errors["pilot:1305"]["desc"].startswith("The payload")
    assert (errors["executor:65"]["codename"], errors["executor:65"]["codeval"]) == ("exeerrorcode", 65)
    assert errors["executor:65"]["cat"] == {"name": "Uncategorized", "id": 0} and errors["executor:65"]["desc"] == ""

    def found(**params: Any) -> list[int]:
        return [job["pandaid"] for job in monitor.get("/jobs/", jeditaskid=task_id, **params)["jobs"]]

    assert set(found(jobstatus="failed|running")) == {panda_ids[3], panda_ids[4]}
    assert len(found(limit=2)) == 2 and found(limit=0) == []
    assert found(jobstatus="!finished|!running") == [panda_ids[3]]
    (job,) = monitor.get("/jobs/", pandaid=panda_ids[0], extra="metastruct")["jobs"]
    assert job["metastruct"] == monitor.get("/job", pandaid=panda_ids[0])["job"]["metastruct"]
    assert not found(days=0)


def test_only_the_last_attempt_is_listed_unless_asked(monitor: Monitor) -> None:
    task_id, (first,) = monitor.run("user.me.again.again/", [FAILED], maxAttempt=2)
    (kept,) = monitor.get("/jobs", jeditaskid=task_id)["jobs"]
    assert kept["attemptnr"] == 2 and kept["jobstatus"] == "activated"
    every = monitor.get("/jobs", jeditaskid=task_id, mode="nodrop")["jobs"]
    assert {job["pandaid"] for job in every} == {kept["pandaid"], first}
    assert [job["pandaid"] for job in monitor.get("/jobs/", pandaid=first)["jobs"]] == [first]


def test_a_job(monitor: Monitor, scan: tuple[int, list[int]]) -> None:
    task_id, panda_ids = scan
    outputs = f"user.me.{task_id}._000001.outputs.tar.gz"
    send(monitor.server, "PUT", f"/storage/{outputs}", "token-of-operator", data=b"packed").raise_for_status()
    answer = monitor.get("/job", pandaid=panda_ids[0], json="")
    files = {file["type"]: file for file in answer["files"]}
    assert files["output"]["lfn"] == outputs and files["output"]["fsize"] == 6 and files["output"]["scope"] == "user.me"
    assert files["pseudo_input"]["lfn"] == "1" and len(answer["dsfiles"]) == 2
    ids = {dataset["datasetname"]: dataset["datasetid"] for dataset in monitor.get(f"/task/{task_id}/")["datasets"]}
    assert all(file["datasetid"] == ids[file["datasetname"]] for file in answer["files"])
    job = answer["job"]
    assert job["pandaid"] == panda_ids[0] and "runner%20--number%201" in job["jobparameters"]
    assert job["metastruct"]["user_job_metadata"]["best_metric_score"] == 0.5
    assert job["metastruct"]["hpo_pilot"]["value"] == 0.5 and job["metastruct"]["exitCode"] == 0
    assert monitor.get(f"/job/{panda_ids[0]}/")["job"] == job | {"durationsec": job["durationsec"]}
    assert "no job 987654321" in monitor.get("/job", code=404, pandaid=987654321)["error"]
    for too_long in ("9" * 19, "9" * 20, "9" * 5000):  # Python reads 4300 digits
        assert "must be whole numbers" in monitor.get("/job", code=400, pandaid=too_long)["error"]


def test_metadata_of_payloads_are_unchanged(monitor: Monitor) -> None:
    task_id, _ = monitor.run("user.me.own.own/", [finished(0.5, 0.5, epochs=3), {"meta_data": "{broken"}])
    (task,) = monitor.get("/tasks/", jeditaskid=task_id, extra="metastruct")
    (metadata,) = task["jobs_metadata"].values()
    assert metadata["user_job_metadata"]["epochs"] == 3 and metadata["user_job_metadata"]["hpo_pilot"]


def test_access(monitor: Monitor, server: RunningServer) -> None:
    file = server.folder / "files" / "bigmon.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key = file.read_text()

    def status(path: str, **headers: str) -> int:
        return requests.get(server.url + path, headers=headers, timeout=600).status_code

    assert status("/tasks/") == status("/job?pandaid=1") == 401
    assert status("/tasks/", Authorization="Bearer nonsense") == 401
    assert status("/tasks/", Authorization=str(monitor.pilot.session.headers["Authorization"])) == 403
    assert status(f"/bigmon/{key}/tasks/") == status(f"/bigmon/{key}/jobs") == 200
    for wrong in (key[:-1], f"{key}x", "x" * 43, "%00", "é"):
        assert status(f"/bigmon/{wrong}/tasks/") == 404
    answer = requests.get(f"{server.url}/bigmon/{key}/tasks/", timeout=600)
    assert answer.headers["Cache-Control"] == "no-store" and answer.headers["Referrer-Policy"] == "no-referrer"
    assert requests.post(f"{server.url}/bigmon/{key}/tasks/", timeout=600).status_code == 405
    assert key not in server.log.read_text()


def read_by_hpogrid(monitor: Monitor, tmp_path: Path, project: str, task_names: str) -> dict[str, Any]:
    key = (monitor.server.folder / "files" / "bigmon.key").read_text()
    arguments = [f"{monitor.url}/bigmon/{key}", certifi.where(), project, task_names]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("hpogrid_reader.py"), *arguments],
        env=panda_environment(monitor.url, tmp_path / "none", None),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read: dict[str, Any] = json.loads(done.stdout)
    return read


def test_the_report_of_hpogrid(monitor: Monitor, tmp_path: Path) -> None:
    first, one = monitor.run(
        "user.me.grid.deadbeef.g1.one/", [finished(0.75, 0.5), finished(-0.5, 0.7), finished(None, 1)]
    )
    second, two = monitor.run("user.me.grid.deadbeef.g2.two/", [finished(0.5, 0.25)])
    read = read_by_hpogrid(monitor, tmp_path, "demo", "user.me.grid.*")
    report = read["report"]
    assert report["jobs"] == {
        "user.me.grid.deadbeef.g2.two/": [str(panda_id) for panda_id in two],
        "user.me.grid.deadbeef.g1.one/": [str(panda_id) for panda_id in one],
    }
    assert report["attributes"] == {"project_name": "demo", "hyperparameters": ["x"], "metric": "loss", "mode": "min"}
    assert report["rows"] == [{"x": 0.7, "loss": -0.5}, {"x": 0.25, "loss": 0.5}, {"x": 0.5, "loss": 0.75}]
    assert report["json"] == report["rows"] and report["csv"] == ",x,loss"
    assert report["columns"][0] == {"jeditaskid": second, "status": "done", "site": "TWO"}
    assert "user.me.grid.deadbeef.g1.one/" in report["shown"] and "100.0%" in report["shown"]

    rows = [(row["x"], row["loss"], row["site"], row["taskid"]) for row in read["grid"]]
    assert rows == [(0.25, 0.5, "TWO", second), (0.5, 0.75, "ONE", first)]
