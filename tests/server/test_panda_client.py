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
