"""How fast the embedded server answers BigPanDA's readers: a task of 10,000 jobs, and 1,000 tasks."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
from sqlalchemy import insert, select, update

from hpo_pilot.jobs import JobNeeds, JobState, Member, TaskSpec
from hpo_pilot.panda.task_parameters import encode_points
from hpo_pilot.server import tasks as queue
from hpo_pilot.server.database import Database, job_documents, jobs, tasks
from hpo_pilot.server.tokens import Caller, Role
from tests.bearer import make_token_folder, token
from tests.server_process import ServerProcess
from tests.task_parameters import bare_params

_REPEATS = 5


def measure(*, quick: bool) -> dict[str, Any]:
    """Times of the calls that scripts and pages make, in milliseconds; quick: a tenth of the tasks and jobs."""
    n_jobs, n_tasks = (1_000, 100) if quick else (10_000, 1_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large = _fill(folder, n_jobs, n_tasks)
        server = ServerProcess(
            database=f"sqlite:///{folder}/panda.db", files=folder / "files", tokens=make_token_folder(folder / "tokens")
        )
        try:
            calls = {
                f"tasks: {n_tasks}": ("/tasks/", {"limit": n_tasks}),
                "tasks: 100 with metadata": ("/tasks/", {"limit": 100, "extra": "metastruct,jobstatecount"}),
                f"jobs of a task: {n_jobs}": ("/jobs/", {"jeditaskid": large, "limit": n_jobs}),
                "jobs of a task: 100": ("/jobs/", {"jeditaskid": large, "limit": 100}),
                "one job": ("/job", {"pandaid": 1}),
                "the board's first page of 100": ("/api/v1/hpo_pilot/job_list", {"limit": 100}),
                "the board's page of a search": ("/api/v1/hpo_pilot/job_list", {"limit": 100, "search": "cafecafe"}),
            }
            return {what: _timed(server.url, what, *call) for what, call in calls.items()}
        finally:
            server.stop()


def _timed(url: str, what: str, path: str, params: dict[str, Any]) -> dict[str, float]:
    headers = {"Authorization": f"Bearer {token('me', Role.USER)}"}
    seconds, size, waited = [], 0, []
    with requests.Session() as session:
        for _ in range(_REPEATS):
            begun = time.perf_counter()
            with session.get(url + path, params=params, headers=headers, timeout=120, stream=True) as answer:
                answer.raise_for_status()
                waited.append(time.perf_counter() - begun)
                content = answer.content
            seconds.append(time.perf_counter() - begun)
            size = len(content)
            json.loads(content)
    took = statistics.median(seconds) * 1000
    print(
        f"{what:38} {took:7.0f} ms ({statistics.median(waited) * 1000:4.0f} ms to the first byte), {size / 1e6:6.2f} MB"
    )
    return {"milliseconds": took, "bytes": size}


def _fill(folder: Path, n_jobs: int, n_tasks: int) -> int:
    """A database of tasks of ten jobs, and one of many, most of them finished; the id of the latter."""
    database = Database(f"sqlite:///{folder}/panda.db")
    me = Caller("me", Role.USER)
    try:
        for number in range(n_tasks):
            count = n_jobs if number == 0 else 10
            with database.writing() as tx:
                queue.submit(tx, me, _params(folder, number, count))
        with database.writing() as tx:
            large = int(tx.connection.scalar(select(tasks.c.task_id).order_by(tasks.c.task_id).limit(1)) or 0)
            ended = {"status": JobState.FINISHED.value, "site": "LOCAL", "node": "node1", "started": tx.now - 60}
            tx.connection.execute(
                update(jobs).where(jobs.c.panda_id % 10 != 0).values(**ended, ended=tx.now, heartbeat=tx.now)
            )
            tx.connection.execute(
                update(jobs)
                .where(jobs.c.panda_id % 10 == 0)
                .values(status=JobState.FAILED.value, pilot_error_code=1305, pilot_error_diag="it broke", ended=tx.now)
            )
            report = json.dumps({"user_job_metadata": {"hpo_pilot": {"value": 0.5, "progress": [[0, 0.5]] * 20}}})
            finished = select(jobs.c.panda_id).where(jobs.c.status == JobState.FINISHED.value)
            rows = [{"panda_id": panda_id, "meta_data": report} for panda_id in tx.connection.scalars(finished)]
            tx.connection.execute(insert(job_documents), rows)
            tx.connection.execute(update(tasks).values(n_finished=9, n_failed=1, status="finished", ended=tx.now))
    finally:
        database.close()
    return large


def _params(folder: Path, number: int, n_jobs: int) -> dict[str, Any]:
    spec = TaskSpec(
        name=f"user.me.demo.cafecafe.g{number}/",
        search="demo",
        uid="cafecafe",
        generation=number,
        folds=1,
        points={trial: {"x": trial / 7, "y": trial % 3} for trial in range(min(n_jobs, 500))},
        jobs=tuple((Member(trial % 500, 0, trial),) for trial in range(n_jobs)),
        sandbox=folder / "none",
        needs=JobNeeds(),
        container=None,
        has_outputs=False,
        queue="LOCAL",
    )
    arguments = quote(f"python3 hpo_pilot_runner.py --task {encode_points(spec)} --number ")
    return bare_params(spec.name, n_jobs, arguments) | {"campaign": "demo.cafecafe"}
