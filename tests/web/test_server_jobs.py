"""Jobs, pilots and queues of a real server in a process of its own."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobState, TaskSpec
from hpo_pilot.panda.server import ADDRESS_FILE, PandaServer, read_address, remove_address, write_address
from hpo_pilot.panda.task_parameters import encode_points
from hpo_pilot.server.tokens import Role
from hpo_pilot.web.server_jobs import LOG_MOST, NoJobError, NoServerError, PilotState, ServerJobs
from tests.archives import archive_of
from tests.bearer import token
from tests.server.conftest import RunningServer, send
from tests.task_parameters import bare_params

#: What every report of the runner has.
IDENTITY = {"uid": "cafecafe", "generation": 1, "number": 1, "attempt": 1}


class Site(RunningServer):
    """A server on a work folder, and a pilot's calls."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self.tokens / "user.token").write_text(token("me", Role.USER))
        write_address(folder, PandaServer(self.url, None, "me"))
        self.pilot = self.api("pilot")
        self.pilot.session.headers["User-Agent"] = "hpo-pilot/9.9"

    def submit(self, name: str, task: TaskSpec | None = None, n_jobs: int = 2, **more: Any) -> int:
        points = f"python3 hpo_pilot_runner.py --task {encode_points(task)} --number " if task else "run "
        return self.api("me").submit(bare_params(name, n_jobs, quote(points)) | more)

    def acquire(self, queue: str, n_jobs: int = 1, **more: Any) -> list[dict[str, Any]]:
        return self.pilot.acquire(n_jobs, site_name=queue, node="slot1@node7", **more)

    def keep(self, name: str, content: bytes) -> None:
        send(self, "PUT", f"/storage/{name}", "token-of-operator", data=content).raise_for_status()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    running = Site(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


@pytest.fixture
def server_jobs(site: Site) -> ServerJobs:
    return ServerJobs(site.folder)


def test_jobs_of_a_search(site: Site, server_jobs: ServerJobs, task: TaskSpec) -> None:
    task_id = site.submit("user.me.demo.cafecafe.g1/", task, 4, site="ONE", campaign="demo.cafecafe", nGPU=2)
    (given,) = site.acquire("ONE", harvester_id="h", worker_id=7, target_architecture={"gpus": [{}, {}]})
    metrics = "hpoStep=3 hpoValue=0.25 hpoPast=1:0.5,2:nan"
    site.pilot.update(given["PandaID"], "running", job_metrics=metrics, node="node7", job_sub_status="fun")

    page = server_jobs.jobs(search="demo")
    assert [job.number for job in page.jobs] == [4, 3, 2, 1] and page.before is None
    assert page.counts == {JobState.ACTIVATED: 3, JobState.RUNNING: 1}
    assert server_jobs.jobs(search="cafecafe").jobs == page.jobs
    assert not server_jobs.jobs(search="afecafe").jobs and not server_jobs.jobs(search="dem").jobs

    job = page.jobs[-1]
    assert (job.panda_id, job.task_id, job.task) == (given["PandaID"], task_id, "user.me.demo.cafecafe.g1/")
    assert (job.search, job.members) == ("demo", ((1, 0),))
    assert (job.queue, job.node, job.pilot, job.sub_state) == ("ONE", "node7", "h/7", "fun")
    assert (job.attempt, job.attempts, job.nodes, job.gpus, job.cores) == (1, 3, 1, 2, 1)
    assert (job.progress[-1], job.memory_mb, job.seconds) == ((3, 0.25), 2000, 600.0)
    assert job.started and job.heard and not job.ended and not job.error and not job.has_log
    assert abs(job.heard.timestamp() - time.time()) < 30

    assert [one.number for one in server_jobs.jobs(search="cafecafe", state=JobState.RUNNING).jobs] == [1]
    assert server_jobs.jobs(search="cafecafe", state=JobState.FAILED).counts == page.counts
    first = server_jobs.jobs(search="cafecafe", limit=3)
    assert [one.number for one in server_jobs.jobs(search="cafecafe", limit=3, before=first.before).jobs] == [1]
    assert len(server_jobs.jobs(queue="ONE").jobs) == 4 and not server_jobs.jobs(queue="NOWHERE").jobs

    view = server_jobs.job(job.panda_id)
    assert view.job == job == view.attempts[0] and view.job.job_metrics == metrics
    assert view.job.progress[0] == (1, 0.5) and len(view.job.progress) == 3
    with pytest.raises(NoJobError, match="no job 123456789"):
        server_jobs.job(123456789)


def test_files_errors_and_attempts_of_a_failed_job(site: Site, server_jobs: ServerJobs) -> None:
    site.submit("user.me.other/", n_jobs=1, site="TWO")
    (given,) = site.acquire("TWO")
    site.keep(given["logFile"], archive_of({"payload.log": b"before\x1b[31m\nit broke", "core.bin": b"\0"}))
    errors = {"pilot_error_code": 1305, "pilot_error_diag": "it broke", "exe_error_code": 3, "exe_error_diag": "why"}
    site.pilot.update(given["PandaID"], "failed", max_rss=12345.0, **errors)
    (again,) = site.acquire("TWO")

    view = server_jobs.job(given["PandaID"])
    assert view.job.state is JobState.FAILED and view.job.has_log and view.measures["maxRSS"] == 12345
    assert view.job.error == "exe error 3: why; pilot error 1305: it broke"
    assert (view.job.search, view.job.members, view.job.pilot) == (None, (), "node7 at TWO")
    assert [one.attempt for one in view.attempts] == [1, 2]
    (log,) = (file for file in view.files if file.kind == "log")
    assert log.name == given["logFile"] and log.size
    shown = server_jobs.log(given["PandaID"])
    assert shown.is_whole and shown.text == "==> payload.log <==\nbefore\N{REPLACEMENT CHARACTER}[31m\nit broke\n"
    assert server_jobs.log(given["PandaID"], LOG_MOST).text == shown.text
    assert server_jobs.log(given["PandaID"], 5).text == "roke\n" and not server_jobs.log(given["PandaID"], 5).is_whole

    # The second attempt's log takes the place of the first one's: it is nobody else's.
    assert not server_jobs.job(again["PandaID"]).job.has_log and server_jobs.log(again["PandaID"]).text == ""
    time.sleep(0.6)
    site.keep(again["logFile"], archive_of({"payload.log": b"second"}))
    site.pilot.update(again["PandaID"], "finished")
    assert "second" in server_jobs.log(again["PandaID"]).text
    assert server_jobs.log(given["PandaID"]).text == "" and not server_jobs.job(given["PandaID"]).job.has_log


def test_the_log_tail_of_a_finished_job(site: Site, server_jobs: ServerJobs) -> None:
    site.submit("user.me.said/", n_jobs=1, site="THREE")
    (given,) = site.acquire("THREE")
    verdict = {**IDENTITY, "trial": 3, "fold": 0, "status": 1, "log_tail": "Traceback: x"}
    report = {"user_job_metadata": {"hpo_pilot": verdict}}
    site.pilot.update(given["PandaID"], "finished", meta_data=json.dumps(report))
    assert server_jobs.job(given["PandaID"]).job.has_log
    assert server_jobs.log(given["PandaID"]).text == "==> payload.log of trial 3, fold 0 <==\nTraceback: x\n"


def test_pilots_and_queues(site: Site, server_jobs: ServerJobs) -> None:
    site.submit("user.me.pilots/", n_jobs=3, site="FOUR")
    jobs = site.acquire("FOUR", n_jobs=2, harvester_id="farm", worker_id=1)
    released = {"User-Agent": "pilot/3.7.0.36 (Python 3)"}
    idle_one = {"site_name": "FIVE", "node": "slot2@idle", "n_jobs": 4, "prod_source_label": "user"}
    assert "No jobs" in site.pilot.post("pilot/acquire_jobs", headers=released, **idle_one)["message"]

    pilots = {pilot.key: pilot for pilot in server_jobs.pilots()}
    farm, idle = pilots["farm/1"], pilots["idle at FIVE"]
    assert (farm.state, farm.queue, farm.host, farm.slots) == (PilotState.BUSY, "FOUR", "node7", 2)
    assert farm.jobs == tuple(job["PandaID"] for job in jobs) and (farm.kind, farm.version) == ("hpo-pilot", "9.9")
    assert (idle.state, idle.kind, idle.version, idle.slots, idle.jobs) == (
        *(PilotState.WAITING, "Pilot 3", "3.7.0.36"),
        *(4, ()),
    )
    queues = {queue.name: queue for queue in server_jobs.queues()}
    assert (queues["FOUR"].waiting, queues["FOUR"].running, queues["FOUR"].pilots, queues["FOUR"].slots) == (1, 2, 1, 2)
    assert (queues["FIVE"].waiting, queues["FIVE"].pilots, queues["FIVE"].slots) == (0, 1, 4)

    for job in jobs:
        site.pilot.update(job["PandaID"], "finished")
    gone = site.pilot.post("pilot/update_worker_status", worker_id=1, harvester_id="farm", status="finished")
    assert gone["success"]
    assert {pilot.key: pilot for pilot in server_jobs.pilots()}["farm/1"].state is PilotState.ENDED


def test_the_address_of_the_server_is_read_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server_jobs = ServerJobs(tmp_path)
    assert server_jobs.url is None
    with pytest.raises(NoServerError, match="no embedded PanDA server runs"):
        server_jobs.jobs()
    server = PandaServer("http://127.0.0.1:9", None, "me", authorities=tmp_path / "ca")
    write_address(tmp_path, server)
    assert stat.S_IMODE((tmp_path / ADDRESS_FILE).stat().st_mode) == 0o600
    assert (tmp_path / ADDRESS_FILE).read_text().splitlines()[0] == server_jobs.url == server.url
    found = read_address(tmp_path)
    assert found and found.token_file == tmp_path / "tokens" / "user.token" and found.authorities == tmp_path / "ca"

    lines = (tmp_path / ADDRESS_FILE).read_text().splitlines()
    for wrong in (
        [*lines[:3], "999999999", lines[4]],  # its process has ended
        [*lines[:4], "1.0"],  # another has its number
        [lines[0], "", "elsewhere.example", *lines[3:]],  # this machine's port is another's
        lines[:2],
    ):
        (tmp_path / ADDRESS_FILE).write_text("\n".join(wrong) + "\n")
        assert read_address(tmp_path) is None
    far = ["https://elsewhere.example:1", "", "elsewhere.example", *lines[3:]]
    (tmp_path / ADDRESS_FILE).write_text("\n".join(far) + "\n")
    assert read_address(tmp_path) is not None
    monkeypatch.setattr(os, "getpid", lambda: 1)
    remove_address(tmp_path)
    assert (tmp_path / ADDRESS_FILE).exists()  # another's
    monkeypatch.undo()
    remove_address(tmp_path)
    assert not (tmp_path / ADDRESS_FILE).exists() and read_address(tmp_path) is None


def test_a_server_of_somebody_else(site: Site, tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "user.token").write_text("e30.e30.e30")
    write_address(tmp_path, PandaServer(site.url, None, "me"))
    with pytest.raises(NoServerError, match="refuses the token"):
        ServerJobs(tmp_path).pilots()
    write_address(tmp_path, PandaServer("http://127.0.0.1:9", None, "me"))
    with pytest.raises(NoServerError, match="does not answer"):
        ServerJobs(tmp_path).queues()
    (tmp_path / "tokens" / "user.token").unlink()
    with pytest.raises(TryAgainError, match="cannot read the token file"):
        ServerJobs(tmp_path).jobs()


def test_a_finished_job_whose_payload_failed(site: Site, server_jobs: ServerJobs) -> None:
    site.submit("user.me.verdicts/", n_jobs=4, site="SIX")
    given = [job["PandaID"] for job in site.acquire("SIX", n_jobs=4)]

    def verdict(trial: int, status: int, message: str = "") -> dict[str, Any]:
        return {**IDENTITY, "trial": trial, "fold": 0, "status": status, "message": message, "log_tail": ""}

    reports: list[Any] = [
        {"hpo_pilot": verdict(1, 1, "exit code 3\nno data")},
        {
            "hpo_pilot": {
                **IDENTITY,
                "members": [verdict(1, 1), verdict(2, 0), verdict(3, 1, "no result"), verdict(4, 2, "late")],
            }
        },
        {"hpo_pilot": verdict(1, 0, "outputs were not kept"), "mine": {"status": 1}},
        ["somebody's", {"status": 1}],
    ]
    for panda_id, report in zip(given, reports, strict=True):
        site.pilot.update(panda_id, "finished", meta_data=json.dumps({"user_job_metadata": report}))
    listed = {job.panda_id: (job.state, job.error, job.payload_error) for job in server_jobs.jobs(queue="SIX").jobs}
    said = [
        "exit code 3 no data",
        "trial 1, fold 0: the payload failed without a reason; trial 3, fold 0: no result",
        "",
        "",
    ]
    assert [listed[panda_id] for panda_id in given] == [(JobState.FINISHED, "", text) for text in said]
    assert server_jobs.job(given[0]).job.payload_error == said[0]


def test_a_log_that_would_fill_the_memory_is_not_read(site: Site, server_jobs: ServerJobs) -> None:
    """The extended header of a member is kept in memory, and gigabytes of zeros pack to megabytes."""
    site.submit("user.me.bomb/", n_jobs=1, site="BOMB")
    (given,) = site.acquire("BOMB")
    site.keep(given["logFile"], archive_of({f"{'0' * 2_000_000}.log": b"text"}))
    site.pilot.update(given["PandaID"], "finished")
    assert "cannot be read" in server_jobs.log(given["PandaID"]).text


def test_jobs_and_logs_of_a_server_that_has_ended(tmp_path: Path, task: TaskSpec) -> None:
    site, server_jobs = Site(tmp_path), ServerJobs(tmp_path)
    try:
        (tmp_path / "panda-files").symlink_to(tmp_path / "files")  # their names in a work folder
        stopped = site.submit("user.me.demo.cafecafe.g1/", task, 1, site="ONE", campaign="demo.cafecafe")
        (killed,) = site.acquire("ONE")
        assert site.api("me").post("task/kill", task_id=stopped)["success"]
        site.pilot.update(killed["PandaID"], "failed", pilot_error_code=1144)
        site.submit("user.me.other/", n_jobs=1, site="TWO")
        (given,) = site.acquire("TWO")
        site.keep(given["logFile"], archive_of({"payload.log": b"epoch 1\n"}))
        site.pilot.update(given["PandaID"], "failed")
        seen, log = server_jobs.jobs(search="demo"), server_jobs.log(given["PandaID"])
        everything = server_jobs.jobs()
        assert everything.counts[JobState.CANCELLED] == 1  # a trial that was stopped early has not failed
        assert seen.is_live and log.text == "==> payload.log <==\nepoch 1\n"
    finally:
        site.stop()
    for _ in ("its address is left, as a killed server leaves it", "it is gone"):
        left = server_jobs.jobs(search="demo")
        assert (left.jobs, left.counts, left.is_live) == (seen.jobs, seen.counts, False)
        assert server_jobs.jobs().counts == everything.counts
        assert server_jobs.job(given["PandaID"]).job.has_log and server_jobs.log(given["PandaID"]) == log
        with pytest.raises(NoJobError):
            server_jobs.job(99_999)
        with pytest.raises(NoServerError):
            server_jobs.pilots()
        (tmp_path / ADDRESS_FILE).unlink(missing_ok=True)
    (tmp_path / "panda.db").write_bytes(b"no database")
    with pytest.raises(NoServerError):
        server_jobs.jobs()
