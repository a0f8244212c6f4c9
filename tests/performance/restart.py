"""A restart of the embedded server with 10,000 jobs at pilots: how long it is away, and that no job is lost."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from hpo_pilot.server.tokens import Role
from tests.performance.load_server import LoadServer, load_server, two_cores

LIMIT = 5.0  # seconds
_TASKS = 100
_BULK = 1000


def measure(*, quick: bool) -> dict[str, Any]:
    """Killed and started again; ended in order and started again. From the start to the first answers."""
    two_cores()
    count = 10_000  # also when quick: it is the number that the limit is about
    with tempfile.TemporaryDirectory() as folder, load_server(Path(folder)) as server:
        tasks = [server.submit(f"restart{number}", count // _TASKS, campaign=f"c.{number}") for number in range(_TASKS)]
        waiting = server.submit("waiting", 1000, campaign="waiting.1", taskPriority=1)
        active = _take(server, count)
        killed = _again(server, server.kill)
        _check(server, active)
        stopped = _again(server, server.process.stop)
        _check(server, active)
        for start in range(0, count, _BULK):
            _report(server, active[start : start + _BULK], "finished")
        done = [server.call(Role.USER, "task/get_status", task_id=task_id) for task_id in tasks]
        assert done == ["done"] * _TASKS, done
        assert server.call(Role.USER, "task/get_status", task_id=waiting) == "running"
    held = max(killed, stopped) < LIMIT
    print(
        f"restart with {count} jobs at pilots and 1000 waiting: {killed:.2f} s after kill -9, {stopped:.2f} s after an "
        f"orderly end, until pilots and users are served (limit {LIMIT:.0f} s); all {count} jobs then finished: "
        f"{'limit held' if held else 'LIMIT MISSED'}"
    )
    return {"active_jobs": count, "after_kill": killed, "after_stop": stopped, "held": held}


def _take(server: LoadServer, count: int) -> list[int]:
    taken: list[int] = []
    while len(taken) < count:
        jobs = server.call(Role.PILOT, "pilot/acquire_jobs", site_name="LOCAL", n_jobs=min(_BULK, count - len(taken)))
        taken += [job["PandaID"] for job in jobs["jobs"]]
        _report(server, [job["PandaID"] for job in jobs["jobs"]], "running")
    return taken


def _report(server: LoadServer, ids: list[int], status: str) -> None:
    reports = [{"job_id": panda_id, "job_status": status, "attempt_nr": 1} for panda_id in ids]
    commands = {server.call(Role.PILOT, "pilot/update_job", **report)["command"] for report in reports}
    assert commands == {None}, commands


def _again(server: LoadServer, end: Any) -> float:
    """Seconds from the start of a new server until it has answered a user, given out a job and taken a report."""
    end()
    begun = time.perf_counter()
    server.start()
    server.call(Role.USER, "task/get_status", task_id=1)
    (job,) = server.call(Role.PILOT, "pilot/acquire_jobs", site_name="LOCAL", n_jobs=1)["jobs"]
    _report(server, [job["PandaID"]], "running")
    return time.perf_counter() - begun


def _check(server: LoadServer, active: list[int]) -> None:
    """Every job is where it was, and its pilot may go on."""
    for start in range(0, len(active), 200):
        some = active[start : start + 200]
        described = server.call(Role.USER, "job/get_description", job_ids=some)
        states = {(job["jobStatus"], job["attemptNr"]) for job in described}
        assert states == {("running", 1)}, states
    _report(server, active[:_BULK], "running")
