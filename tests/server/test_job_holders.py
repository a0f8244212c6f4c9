"""A pilot cannot change the jobs of another pilot."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from hpo_pilot.jobs import JobState
from hpo_pilot.server.attempts import record_report
from hpo_pilot.server.database import Database
from hpo_pilot.server.tokens import PilotIdentity, Role
from tests.bearer import token
from tests.server.conftest import Api, RunningServer, send
from tests.server.queue_driver import Queue
from tests.task_parameters import make_params

KEY = "the-key-of-a-pilot-0123456789abcdefghijklmno"
WORKER = {"harvester_id": "site-farm", "worker_id": "7"}
_names = itertools.count()


class Pilot(Api):
    """A pilot with a token; a key and a node are optional."""

    def __init__(self, server: RunningServer, name: str, key: str = "", node: str = "") -> None:
        super().__init__(server.url, token(name, Role.PILOT))
        self.node = {"node": node} if node else {}
        if key:
            self.session.headers["X-HPO-Pilot-Key"] = key

    def legacy(self, function: str, **arguments: Any) -> Any:
        return super().legacy(function, **arguments, **self.node)

    def take(self, site: str) -> int:
        (job,) = self.acquire(site_name=site, **WORKER)
        return int(job["PandaID"])

    def put(self, name: str) -> int:
        return self.session.put(f"{self.url}/storage/{name}", data=b"planted", timeout=600).status_code


def submit_one(server: RunningServer) -> str:
    """A queue with one job of a task, which has an output."""
    name = f"SITE{next(_names)}"
    server.api("me").submit(make_params(f"user.me.{name}/", 1, site=name, maxAttempt=3))
    return name


@pytest.fixture
def site(server: RunningServer) -> str:
    return submit_one(server)


def described(server: RunningServer, panda_id: int) -> dict[str, Any]:
    (found,) = server.api("me").post("job/get_description", job_ids=[panda_id])["data"]
    return dict(found)


def attacks(server: RunningServer, panda_id: int) -> dict[str, Callable[[Pilot], Any]]:
    """All calls of pilots that change a job or its files."""
    job = described(server, panda_id)
    task = job["jediTaskID"]
    output = next(file["lfn"] for file in job["Files"] if file["type"] == "output")
    log = next(file["lfn"] for file in job["Files"] if file["type"] == "log")
    forged = {"job_id": panda_id, "attempt_nr": 1, "meta_data": '{"user_job_metadata": {"loss": -1e9}}'}
    old = {"jobId": panda_id, "state": "finished", "attemptNr": 1, "metaData": "{}"}
    worker = {"workerID": WORKER["worker_id"], "harvesterID": WORKER["harvester_id"]}
    checkpoint = {"file": (f"{task}_1", b"planted")}
    upload = f"{server.url}/api/v1/file_server/upload_hpo_checkpoint"
    return {
        "finished": lambda pilot: pilot.post("pilot/update_job", job_status="finished", **forged),
        "failed": lambda pilot: pilot.post("pilot/update_job", job_status="failed", **forged),
        "without an attempt": lambda pilot: pilot.post("pilot/update_job", job_id=panda_id, job_status="failed"),
        "heartbeat": lambda pilot: pilot.post("pilot/update_job", job_status="running", stdout="lies", **forged),
        "in a list": lambda pilot: pilot.post(
            "pilot/update_jobs_bulk", job_list=[forged | {"job_status": "finished"}, forged | {"job_status": "running"}]
        ),
        "legacy": lambda pilot: pilot.legacy("updateJob", **old),
        "given back": lambda pilot: pilot.post("hpo_pilot/give_back", jobs=[[panda_id, 1]], **WORKER),
        "worker gone": lambda pilot: pilot.post("pilot/update_worker_status", status="finished", **WORKER),
        "legacy worker": lambda pilot: pilot.legacy("updateWorkerPilotStatus", status="failed", site="S", **worker),
        "output": lambda pilot: pilot.put(output),
        "log": lambda pilot: pilot.put(log),
        "checkpoint": lambda pilot: pilot.session.post(upload, files=checkpoint, timeout=600).json(),
        "no checkpoint": lambda pilot: pilot.post("file_server/delete_hpo_checkpoint", task_id=str(task), sub_id="1"),
    }


#: A pilot that has a job, and another that would end it: by its token's name, its key and its node.
OTHERS = {
    "second token": (("pilot", "", ""), ("other", "", "")),
    "second token, our pilot": (("pilot", KEY, ""), ("other", "", "")),
    "same token, our pilot": (("pilot", KEY, ""), ("pilot", "", "")),
    "same token, another key": (("pilot", KEY, ""), ("pilot", KEY[::-1], "")),
    "guessed": (("pilot", KEY, ""), ("pilot", KEY[:-1], "")),
    "the name of the key": (("pilot", KEY, ""), ("pilot", "X-HPO-Pilot-Key", "")),
}


@pytest.mark.parametrize("who", OTHERS)
def test_another_pilot_changes_nothing(server: RunningServer, site: str, who: str) -> None:
    mine, theirs = (Pilot(server, *one) for one in OTHERS[who])
    panda_id = mine.take(site)
    mine.post("pilot/update_job", job_id=panda_id, job_status="running", attempt_nr=1)
    before = described(server, panda_id)
    files = sorted(path.name for path in (server.folder / "files").rglob("*") if path.is_file())
    for name, attack in attacks(server, panda_id).items():
        answer = attack(theirs)
        assert described(server, panda_id) == before, (name, answer)
        assert not isinstance(answer, int) or answer in (403, 409), (name, answer)
    assert sorted(path.name for path in (server.folder / "files").rglob("*") if path.is_file()) == files
    refused = attacks(server, panda_id)["finished"](theirs)
    assert (refused["success"], refused["data"]["StatusCode"]) == (False, 70)
    assert "another pilot" in refused["message"]
    # Its own pilot is not disturbed.
    report = {"job_id": panda_id, "job_status": "finished", "attempt_nr": 1}
    assert mine.post("pilot/update_job", **report) == {
        "success": True,
        "message": "",
        "data": {"StatusCode": 0, "command": None},
    }
    assert described(server, panda_id)["jobStatus"] == "finished"
    # Nor is what it sent repeated with effect, by whomsoever.
    for replaying in (mine, theirs):
        replaying.post("pilot/update_job", **report | {"job_status": "failed"})
    assert described(server, panda_id)["jobStatus"] == "finished"


def test_the_jobs_own_pilot_can_make_each_of_these_calls(server: RunningServer) -> None:
    """So the calls above are refused because of the pilot."""
    for name in attacks(server, Pilot(server, "pilot", KEY).take(submit_one(server))):
        mine = Pilot(server, "pilot", KEY)
        panda_id = mine.take(submit_one(server))
        before = described(server, panda_id)
        answer = attacks(server, panda_id)[name](mine)
        if name in ("output", "log"):
            assert answer == 200
        elif name == "checkpoint":
            assert answer["success"] is True
            assert attacks(server, panda_id)["no checkpoint"](mine)["success"]
        elif name != "no checkpoint":
            assert described(server, panda_id) != before, (name, answer)


def test_token_and_node_identify_a_pilot3(server: RunningServer, site: str) -> None:
    mine = Pilot(server, "pilot", node="slot1@wn7")
    panda_id = mine.legacy("getJob", siteName=site, prodSourceLabel="user")["PandaID"]
    report = {"jobId": panda_id, "attemptNr": 1}
    for other in (Pilot(server, "other", node="slot1@wn7"), Pilot(server, "pilot", node="slot1@wn8")):
        answer = other.legacy("updateJob", state="finished", **report)
        assert (answer["StatusCode"], answer["command"]) == (70, "tobekilled")
        assert described(server, panda_id)["jobStatus"] == "sent"
    assert mine.legacy("updateJob", state="running", **report) == {"StatusCode": 0, "command": "NULL"}
    assert mine.legacy("updateJob", state="finished", **report)["StatusCode"] == 0
    assert described(server, panda_id)["jobStatus"] == "finished"


def test_a_pilot_with_a_new_token_and_its_old_key_may_report(server: RunningServer, site: str) -> None:
    """A restarted pilot sends the reports that it kept."""
    panda_id = Pilot(server, "pilot", KEY).take(site)
    after = Pilot(server, "pilot-renamed", KEY)
    assert after.post("pilot/update_job", job_id=panda_id, job_status="finished", attempt_nr=1)["success"] is True
    assert described(server, panda_id)["jobStatus"] == "finished"


def test_an_operator_may_report_for_every_pilot(server: RunningServer, site: str) -> None:
    panda_id = Pilot(server, "pilot", KEY).take(site)
    assert server.api("operator").update(panda_id, "failed")["command"] is None


def test_every_pilot_may_report_on_a_job_without_a_holder(queue: Queue, database: Database) -> None:
    """Older versions did not record the holder."""
    queue.submit(1)
    (job,) = queue.acquire()
    with database.writing() as tx:
        assert record_report(tx, JobState.FINISHED, {"job_id": job["PandaID"]}, PilotIdentity("pilot")) is None
    assert queue.describe(job["PandaID"])["jobStatus"] == "finished"


def test_keys_are_neither_stored_nor_logged(server: RunningServer, site: str) -> None:
    mine = Pilot(server, "pilot", KEY)
    mine.post("pilot/update_job", job_id=mine.take(site), job_status="finished", attempt_nr=1)
    shown = mine.session.get(f"{server.url}/api/v1/system/get_user_attributes", timeout=600)
    assert shown.ok and KEY not in shown.text
    for path in (server.log, *server.folder.glob("panda.db*")):
        assert KEY.encode() not in path.read_bytes(), path


def test_an_upload_that_ends_after_its_job_is_refused(server: RunningServer, site: str) -> None:
    """The job is lost during the upload."""
    mine = Pilot(server, "pilot", KEY)
    panda_id = mine.take(site)
    output = next(file["lfn"] for file in described(server, panda_id)["Files"] if file["type"] == "output")

    def slowly() -> Any:
        yield b"half"
        mine.post("pilot/update_worker_status", status="finished", **WORKER)
        yield b"the rest"

    answer = mine.session.put(f"{server.url}/storage/{output}", data=slowly(), timeout=600)
    assert answer.status_code == 409
    assert send(server, "GET", f"/storage/{output}", "token-of-me").status_code == 404
