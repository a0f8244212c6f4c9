"""A server of two processes on PostgreSQL: jobs for pilots of both, and one of them killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.postgresql import BASE, new_database
from tests.real.processes import missing
from tests.server.conftest import RunningServer, serving
from tests.task_parameters import make_params

_SECONDS = 600.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    if BASE is None:
        missing("HPO_PILOT_TEST_POSTGRESQL names no PostgreSQL; `make test-real` starts one where it is installed")
    options = ["--processes", "2"]
    with new_database() as url, serving(tmp_path, place=url, heartbeat_timeout=10.0, options=options) as running:
        wait_for(lambda: further(running))
        yield running


def further(server: RunningServer, killed: int = 0) -> list[psutil.Process]:
    """The processes beside the first one, and the killed one, that answer calls."""
    found = []
    for one in psutil.Process(server.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # it was killed just now
            if one.pid != killed and len(one.net_connections("tcp")) and one.num_threads() > 1:
                found.append(one)
    return found


def wait_for(found: Callable[[], Any]) -> None:
    end = time.monotonic() + _SECONDS
    while not found():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_waiting_pilots_of_both_processes_get_jobs_of_one_submission(server: RunningServer) -> None:
    found: list[int] = []

    def wait() -> None:
        headers = {"X-HPO-Pilot-Wait": "30"}
        end = time.monotonic() + _SECONDS
        while not (jobs := server.api("pilot").acquire(headers=headers)) and time.monotonic() < end:
            pass  # the server ends a wait after 15 to 30 s
        found.extend(job["PandaID"] for job in jobs)

    pilots = [threading.Thread(target=wait) for _ in range(16)]
    for pilot in pilots:
        pilot.start()
    (other,) = further(server)
    wait_for(lambda: sum(one.status == "ESTABLISHED" for one in other.net_connections("tcp")))
    server.api("me").submit(make_params("user.me.many/", 16))
    for pilot in pilots:
        pilot.join(_SECONDS)
    assert len(set(found)) == len(found) == 16


def test_a_killed_process_loses_nothing_and_nothing_is_handed_out_twice(
    server: RunningServer, request: pytest.FixtureRequest
) -> None:
    handed: list[int] = []
    over = threading.Event()

    def persist(call: Callable[[Any], Any]) -> Any:
        while not over.is_set():
            try:
                return call(server.api("pilot"))  # a connection of its own: to either process
            except (OSError, AssertionError):
                time.sleep(0.05)
        return None

    def work(worker: int) -> None:
        who = {"harvester_id": "h", "worker_id": worker, "n_jobs": 2}
        while not over.is_set():
            for job in persist(lambda api: api.acquire(**who)) or ():
                handed.append(job["PandaID"])
                for status in ("running", "finished"):
                    persist(lambda api, i=job["PandaID"], s=status: api.update(i, s, meta_data="{}"))  # type: ignore[misc]

    request.addfinalizer(over.set)  # else they would go on for ever after a failure here
    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in workers:
        thread.start()
    tasks = []
    for number in range(6):
        name = f"user.me.chaos{number}/"
        tasks.append(persist(lambda _, n=name: server.api("me").submit(make_params(n, 30, maxAttempt=50))))  # type: ignore[misc]
        if number % 2:
            (other,) = further(server)
            os.kill(other.pid, signal.SIGKILL)
            wait_for(partial(further, server, other.pid))
    user = server.api("me")
    wait_for(lambda: {user.get("task/get_status", task_id=task)["data"] for task in tasks} == {"done"})
    over.set()
    for thread in workers:
        thread.join(_SECONDS)
    assert not [panda_id for panda_id, count in Counter(handed).items() if count > 1]
    for task in tasks:
        jobs = user.get("task/get_job_descriptions", task_id=task)["data"]
        assert Counter(job["jobStatus"] for job in jobs)["finished"] == 30
