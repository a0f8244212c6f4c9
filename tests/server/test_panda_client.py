"""The real panda-client against a real server: every call that submitting, watching, killing and collecting needs."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Params = Callable[..., dict[str, Any]]


def since(seconds: float = 60) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() - seconds))


def finish_one(pilot: Any, queue: str, metadata: str = '{"user_job_metadata": {"loss": 0.5}}') -> int:
    (job,) = pilot.acquire(site_name=queue)
    pilot.update(job["PandaID"], "finished", attempt_nr=1, meta_data=metadata, trans_exit_code=0)
    return int(job["PandaID"])


def test_is_alive(client: Any) -> None:
    assert client.hello() == [0, ""]


def test_submit_and_duplicate(client: Any, params: Params) -> None:
    status, (code, message) = client.insertTaskParams(params("user.me.submit/", site="SUBMIT"))
    assert (status, code) == (0, 0)
    prefix, task_id = message.split("jediTaskID=")
    assert prefix == "succeeded. new "
    status, (code, message) = client.insertTaskParams(params("user.me.submit/", site="SUBMIT"), properErrorCode=True)
    assert (status, code) == (0, 2)
    assert message.startswith(f"jediTaskID={task_id} is in the running state for outDS=user.me.submit/. ")
    assert client.killTask(int(task_id))[1][0] is True
    status, (code, message) = client.insertTaskParams(params("user.me.submit/", site="SUBMIT"))
    assert (status, code) == (0, 0), "code 3 arrives as 0"
    assert message.startswith(f"reactivation accepted. jediTaskID={task_id} (currently in aborted state)")
    assert client.getTaskStatus(int(task_id)) == [0, "running"]
    assert client.killTask(int(task_id))[1][0] is True
    own = params("user.me.submit/", site="SUBMIT", campaign="demo.cafecafe")
    assert client.insertTaskParams(own)[1][0] == 2, "hpo-pilot's own names stand for one set of points"


def test_watching_a_task(client: Any, pilot: Any, params: Params) -> None:
    given = params("user.me.watch/", 2, site="WATCH")
    task_id = int(client.insertTaskParams(given)[1][1].split("=")[1])
    assert client.getTaskStatus(task_id) == [0, "running"]
    panda_id = finish_one(pilot, "WATCH")
    status, details = client.getJediTaskDetails({"jediTaskID": task_id}, True, True)
    assert status == 0
    assert details["statistics"] == "finished*1,activated*1"
    assert (details["status"], details["cliParams"]) == ("running", "hpo-pilot run")
    assert details["outDS"] == "user.me.watch_outputs/,user.me.watch.log/"
    _, ids = client.getPandaIDsWithTaskID(task_id)
    assert ids == [panda_id, panda_id + 1] == details["PandaID"]
    assert client.getTaskParamsMap(task_id)[1]["taskName"] == "user.me.watch/"
    _, (success, info) = client.get_task_details_json(task_id)
    assert success
    assert (info["nFiles"], info["nFilesFinished"], info["pctFinished"]) == (2, 1, 50)
    assert info["raw_task_params"]["nEvents"] == 2
    _, listed = client.getJobIDsJediTasksInTimeRange(since())
    assert listed[str(task_id)]["taskName"] == "user.me.watch/"
    assert listed[str(task_id)]["statistics"] == "finished*1,activated*1"
    assert client.getJobIDsJediTasksInTimeRange(since(), minTaskID=task_id)[1].get(str(task_id)) is None
    assert client.getJobIDsJediTasksInTimeRange(since(), dn="you")[1] == {}
    filters = {"jediTaskID": str(task_id), "status": "running|done"}
    _, found = client.get_tasks_detailed_info_since(since(), filters)
    assert [task["jediTaskID"] for task in found] == [task_id]
    assert client.get_tasks_detailed_info_since(None, {"status": "broken", "taskName": "user.me.watch/"}) == [0, []]
    _, datasets = client.get_files_in_datasets(task_id)
    assert datasets[0]["dataset"]["name"] == "seq_number"
    assert [file["status"] for file in datasets[0]["files"]] == ["finished", "ready"]
    _, datasets = client.get_files_in_datasets(task_id, "output")
    assert datasets[0]["files"][0]["lfn"] == f"user.me.{task_id}._000001.outputs.tar.gz"


def test_jobs_and_their_results(client: Any, pilot: Any, params: Params) -> None:
    task_id = int(client.insertTaskParams(params("user.me.jobs/", 2, site="JOBS", maxAttempt=1))[1][1].split("=")[1])
    assert client.getUserJobMetadata(task_id) == [0, {}]
    panda_id = finish_one(pilot, "JOBS")
    (job,) = pilot.acquire(site_name="JOBS")
    failed = {"pilot_error_code": 1305, "pilot_error_diag": "no space", "trans_exit_code": 7, "meta_data": '{"no": 1}'}
    pilot.update(job["PandaID"], "failed", **failed)
    assert client.getUserJobMetadata(task_id) == [0, {str(panda_id): {"user_job_metadata": {"loss": 0.5}}}]
    _, (first, second, unknown) = client.getJobStatus([panda_id, job["PandaID"], 987654])
    assert (first["PandaID"], first["jobStatus"], first["attemptNr"]) == (panda_id, "finished", 1)
    assert (second["jobStatus"], second["pilotErrorCode"], second["transExitCode"]) == ("failed", 1305, "7")
    assert unknown is None
    _, jobs = client.get_job_descriptions(task_id, unsuccessful_only=True)
    assert [(job["pilotErrorDiag"], job["jediTaskID"]) for job in jobs] == [("no space", task_id)]
    assert [job["extendedProdSourceLabel"] for job in client.get_job_descriptions(task_id)[1]] == ["user_normal"] * 2
    assert client.getTaskStatus(task_id) == [0, "finished"]


def test_commands(client: Any, pilot: Any, params: Params) -> None:
    task_id = int(
        client.insertTaskParams(params("user.me.commands/", 3, site="COMMANDS", maxAttempt=1))[1][1].split("=")[1]
    )
    jobs = pilot.acquire(2, site_name="COMMANDS")
    assert client.pauseTask(task_id) == [0, [True, 0]]
    assert client.getTaskStatus(task_id)[1] == "paused"
    assert client.pauseTask(task_id)[1][0] is False
    assert client.resumeTask(task_id)[1][0] is True
    assert client.setDebugMode(jobs[0]["PandaID"], True, False) == [0, None]
    assert pilot.update(jobs[0]["PandaID"], "running")["command"] == "debug"
    assert client.setDebugMode(jobs[0]["PandaID"], False, False) == [0, None]
    ids = [job["PandaID"] for job in jobs]
    assert client.killJobs([*ids, 987654]) == [0, [True, True, False]]
    assert pilot.update(ids[0], "running")["command"] == "tobekilled"
    for panda_id in ids:
        pilot.update(panda_id, "failed")
    assert client.finishTask(task_id, soft=True)[1][0] is True
    assert client.getTaskStatus(task_id)[1] == "failed"
    assert client.retryTask(task_id)[1] == [0, f"command=retry is registered for task ID {task_id}"]
    assert len(pilot.acquire(9, site_name="COMMANDS")) == 3
    assert client.killTask(task_id)[1][0] is True
    assert client.getTaskStatus(task_id)[1] == "aborting"
    _, (success, message) = client.killTask(task_id)
    assert (success, message) == (
        False,
        "Command rejected: the kill command is not accepted if the task is in aborting status",
    )
    _, (code, message) = client.retryTask(task_id)
    assert code == 4
    assert client.killTask(987654)[1] == [False, "jediTaskID=987654 not found"]


def test_unknown_tasks(client: Any) -> None:
    assert client.getTaskStatus(987654) == [255, None]
    assert client.getTaskParamsMap(987654) == [255, None]
    assert client.get_task_details_json(987654) == [0, [False, "Task not found or error retrieving task info"]]
    assert client.getPandaIDsWithTaskID(987654) == [0, []]
    assert client.get_job_descriptions(987654) == [0, []]


def archive(path: Path, content: bytes) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("train.py")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    path.write_bytes(gzip.compress(buffer.getvalue()))
    return path


def test_sandboxes(client: Any, pilot: Any, server: Any, params: Params, tmp_path: Path) -> None:
    """A task waits for its sandbox; a second upload is refused, or found by its checksum where that is asked for."""
    given = params("user.me.sandbox/", 1, site="SANDBOX")
    given["jobParameters"].append({"type": "constant", "value": "-a sources.0123.tar.gz"})
    task_id = int(client.insertTaskParams(given)[1][1].split("=")[1])
    assert client.getTaskStatus(task_id)[1] == "pending"
    path = archive(client.folder / "sources.0123.tar.gz", b"print(1)")
    assert client.putFile(path.name) == [0, "True"]
    assert client.getTaskStatus(task_id)[1] == "running"
    assert client.get_task_details_json(task_id)[1][1]["errorDialog"] is None
    assert client.putFile(path.name) == [0, "ERROR: cannot overwrite file"]
    renamed = client.folder / "sources.4567.tar.gz"
    renamed.write_bytes(path.read_bytes())
    assert client.putFile(renamed.name, reuseSandbox=True) == [0, "NewFileName:sources.0123.tar.gz"]
    assert client.putFile(renamed.name, useCacheSrv=True) == [0, "True"]
    other = archive(client.folder / "sources.89.tar.gz", b"print(2)")
    assert client.putFile(other.name, reuseSandbox=True) == [0, "True"]
    copy = tmp_path / "copy"
    assert client.getFile("sources.0123.tar.gz", output_path=str(copy)) == [0, True]
    assert copy.read_bytes() == path.read_bytes()
    got = pilot.session.get(f"{server.url}/cache/sources.0123.tar.gz", timeout=10)
    assert got.content == path.read_bytes()
    odd = client.folder / ".hidden"
    odd.write_bytes(b"x")
    assert client.putFile(odd.name)[1].startswith("ERROR: cannot write file")


def test_a_sandbox_sent_by_its_path_is_not_the_tasks(client: Any, params: Params, tmp_path: Path) -> None:
    """panda-server 1.0.4 registers the whole path; JEDI looks for the plain name, and the task waits for good."""
    given = params("user.me.path/", 1, site="PATH")
    given["jobParameters"].append({"type": "constant", "value": "-a sources.aaaa.tar.gz"})
    path = archive(tmp_path / "sources.aaaa.tar.gz", b"print(3)")
    assert client.putFile(str(path)) == [0, "True"]
    task_id = int(client.insertTaskParams(given)[1][1].split("=")[1])
    details = client.get_task_details_json(task_id)[1][1]
    assert details["status"] == "pending"
    assert details["errorDialog"].startswith("user sandbox file unavailable")
    assert client.putFile(str(path)) == [0, "ERROR: cannot overwrite file"]
    again = tmp_path / "sources.bbbb.tar.gz"
    again.write_bytes(path.read_bytes())
    assert client.putFile(str(again), reuseSandbox=True) == [0, f"NewFileName:{path}"]
    assert client.getTaskStatus(task_id)[1] == "pending"
