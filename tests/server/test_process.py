"""The process of the server: start, end, kill."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import TryAgainError
from hpo_pilot.server import database
from tests.bearer import make_token_folder
from tests.task_parameters import make_params

Refused = Callable[..., tuple[int, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_token_folder(tmp_path / "tokens")
    return tmp_path


def test_kill_9_loses_nothing(own_server: Callable[..., Any]) -> None:
    server = own_server()
    user, pilot = server.api("me"), server.api("pilot")
    done = user.submit(make_params("user.me.done/", 1, site="A"))
    running = user.submit(make_params("user.me.running/", 1, site="B"))
    user.submit(make_params("user.me.waiting/", 2, site="C"))
    (job,) = pilot.acquire(site_name="A")
    pilot.update(job["PandaID"], "finished", meta_data='{"x": 1}')
    (job,) = pilot.acquire(site_name="B")
    pilot.update(job["PandaID"], "running")
    sandbox = {"type": "constant", "value": "-a sources.found.tar.gz"}
    given = make_params("user.me.found/", 1, site="FOUND")
    pending = user.submit(given | {"jobParameters": [*given["jobParameters"], sandbox]})
    cursor = user.get("hpo_pilot/changes", cursor=-1)["data"]["cursor"]
    server.kill()
    cache = server.folder / "files" / "cache"
    (cache / "sources.found.tar.gz").write_bytes(b"x" * 20)  # renamed, but not yet in the database
    (cache / "0123456789ab.part").write_bytes(b"half")
    server.start()
    user, pilot = server.api("me"), server.api("pilot")
    assert user.get("task/get_status", task_id=done)["data"] == "done"
    assert user.get("job/get_metadata_for_analysis_jobs", task_id=done)["data"] == {"1": {"x": 1}}
    found = user.get("hpo_pilot/changes", cursor=cursor)["data"]
    assert found["task_ids"] == [pending], "its sandbox has come; nothing else has changed"
    assert user.get("task/get_status", task_id=pending)["data"] == "running"
    assert not list(cache.glob("*.part"))
    assert pilot.update(job["PandaID"], "finished", attempt_nr=1)["command"] is None
    assert user.get("hpo_pilot/changes", cursor=found["cursor"])["data"]["task_ids"] == [running]
    assert len(pilot.acquire(9, site_name="C")) == 2
    assert user.post("task/submit", task_parameters=make_params("user.me.waiting/"))["data"] == 2


def test_kill_9_at_any_moment(own_server: Callable[..., Any]) -> None:
    """Every job is done exactly once although the server is killed."""
    server = own_server()
    n_jobs = 60
    task_id = server.api("me").submit(make_params("user.me.chaos/", n_jobs, site="CHAOS", maxAttempt=50))
    finished: list[int] = []
    over = threading.Event()

    def keep_trying(call: Callable[[Any], Any]) -> Any:
        while not over.is_set():
            try:
                return call(server.api("pilot"))
            except (OSError, AssertionError):
                time.sleep(0.02)
        return []

    def work(worker: str) -> None:
        who = {"harvester_id": "h", "worker_id": worker}
        while not over.is_set():
            for job in keep_trying(lambda api: api.acquire(site_name="CHAOS", **who)):
                panda_id = job["PandaID"]
                keep_trying(lambda api, i=panda_id: api.update(i, "running"))
                answer = keep_trying(lambda api, i=panda_id: api.update(i, "finished", meta_data="{}"))
                if answer and answer["command"] is None:
                    finished.append(panda_id)

    workers = [threading.Thread(target=work, args=(str(number),)) for number in range(2)]
    for thread in workers:
        thread.start()
    status = None
    deadline = time.monotonic() + 600
    kills = 0
    while status != "done" and time.monotonic() < deadline:
        if kills < 4:
            time.sleep(0.15)
            server.kill()
            server.start()
            kills += 1
        else:
            # Jobs whose answer died with the server are at a worker that does not know of them.
            time.sleep(0.5)
            for number in range(2):
                body = {"harvester_id": "h", "worker_id": str(number), "status": "finished"}
                server.api("pilot").post("pilot/update_worker_status", **body)
        status = server.api("me").get("task/get_status", task_id=task_id)["data"]
    over.set()
    for thread in workers:
        thread.join(600)
    assert status == "done"
    jobs = server.api("me").get("task/get_job_descriptions", task_id=task_id)["data"]
    good = [job for job in jobs if job["jobStatus"] == "finished"]
    assert len(good) == n_jobs
    assert len({job["Files"][0]["lfn"] for job in good}) == n_jobs
    assert len(server.api("me").get("job/get_metadata_for_analysis_jobs", task_id=task_id)["data"]) == n_jobs
    assert set(finished) <= {job["PandaID"] for job in good}


def test_a_job_without_heartbeats_is_lost(own_server: Callable[..., Any]) -> None:
    server = own_server(heartbeat_timeout=5.0)
    user, pilot = server.api("me"), server.api("pilot")
    task_id = user.submit(make_params("user.me.lost/", 1, site="LOST", maxAttempt=2))
    (job,) = pilot.acquire(site_name="LOST")
    reply = pilot.post("pilot/acquire_jobs", headers={"X-HPO-Pilot-Wait": "30"}, site_name="LOST")
    (again,) = reply["data"]["jobs"]
    assert (again["attemptNr"], again["PandaID"] > job["PandaID"]) == (2, True)
    pilot.update(again["PandaID"], "finished")
    assert user.get("task/get_status", task_id=task_id)["data"] == "done"
    described = user.post("job/get_description", job_ids=[job["PandaID"]])["data"][0]
    assert (described["jobStatus"], described["jobDispatcherErrorCode"]) == ("failed", 100)


def test_the_server_ends_although_a_pilot_waits(own_server: Callable[..., Any]) -> None:
    server = own_server()
    waiting = threading.Thread(
        target=server.api("pilot").post,
        args=("pilot/acquire_jobs",),
        kwargs={"headers": {"X-HPO-Pilot-Wait": "30"}, "site_name": "X"},
    )
    waiting.start()
    time.sleep(0.5)
    server.process.process.terminate()
    assert server.process.process.wait(25) == 0  # before the 30 s are over
    waiting.join(600)
    assert server.log.read_text() == ""


def test_a_second_server_waits_for_the_first_and_gives_up(
    own_server: Callable[..., Any], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 9 < database._LOCK_WAIT < 20  # not waited for here
    server = own_server()
    with monkeypatch.context() as patched:
        patched.setattr(database, "_LOCK_WAIT", 1.0)
        code, line = refused(server.folder)
        assert (code, "another hpo-pilot server" in line) == (3, True), line
        assert isinstance(server.place, str) or str(server.process.pid) in line
    first, port = server.process, int(server.url.rsplit(":", 1)[1])
    ending = threading.Timer(1.0, first.stop)
    ending.start()
    server.start()  # the second, on the same port
    ending.join()
    assert int(server.url.rsplit(":", 1)[1]) == port
    assert server.api("me").get("system/is_alive")["success"]


def newer(file: Path) -> None:
    database.Database(file).close()
    with sqlite3.connect(file) as opened:
        opened.execute("UPDATE alembic_version SET version_num = '9999'")


def no_database(file: Path) -> None:
    file.write_bytes(b"this is no database, but a text that is long enough to be looked at" * 20)


@pytest.mark.parametrize(("make", "word"), [(newer, "version 9999"), (no_database, "panda.db")])
def test_an_unusable_database_is_refused(
    folder: Path, refused: Refused, make: Callable[[Path], None], word: str
) -> None:
    make(folder / "panda.db")
    code, line = refused(folder, f"--database={folder / 'panda.db'}")
    assert (code, word in line) == (2, True)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--database=/dev/null/panda.db"], "name a writable folder"),
        (["--database=mysql://host/x"], "give a SQLite file, or postgresql+psycopg://"),
        (["--database=postgresql+psycopg://host:x/y"], "give a SQLite file, or postgresql+psycopg://"),
        (["--database=panda.db", "--processes=2"], "--processes 2 needs PostgreSQL"),
        (["--processes=0"], "--processes"),
        (["--tokens=/nowhere/tokens"], "token folder"),
        (["--heartbeat-timeout=0"], "heartbeat"),
        (["--host=no such host."], "--host"),
        (["--port=70000"], "port"),
        (["--retention-days=nan"], "--retention-days"),
        (["--host=0.0.0.0"], "add --tls-cert"),  # refused
        (["--host="], "add --tls-cert"),
        (["--tls-cert=cert.pem"], "give both, or neither"),
        (["--tls-cert=cert.pem", "--tls-key=key.pem"], "cert.pem"),
        (["--issuers=/nowhere"], "issuers"),
    ],
)
def test_wrong_options_are_refused(folder: Path, refused: Refused, options: list[str], word: str) -> None:
    code, line = refused(folder, *options)
    assert (code, word in line) == (2, True), line


def test_a_taken_port_is_refused(folder: Path, refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, line = refused(folder, "--port", str(taken.getsockname()[1]))
    assert (code, "cannot listen on 127.0.0.1 port" in line) == (TryAgainError.exit_code, True)


def test_a_database_that_fails_after_it_was_opened_is_refused(folder: Path, refused: Refused) -> None:
    path = folder / "panda.db"
    database.Database(str(path)).close()
    with sqlite3.connect(path) as full:
        full.execute("CREATE TRIGGER f BEFORE INSERT ON cache_files BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
    full.close()
    cache = folder / "files" / "cache"
    cache.mkdir(parents=True)
    (cache / "sources.found.tar.gz").write_bytes(b"x" * 20)
    code, line = refused(folder, f"--database={path}")
    assert (code, "disk is full; try again" in line) == (TryAgainError.exit_code, True), line


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_is_refused(folder: Path, refused: Refused) -> None:
    folder.chmod(0o500)
    code, line = refused(folder)
    folder.chmod(0o700)
    assert (code, "writable" in line) == (2, True)
