"""The queue without HTTP."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, select

from hpo_pilot.jobs import JobState
from hpo_pilot.server import attempts, tasks
from hpo_pilot.server.attempts import record_report
from hpo_pilot.server.database import Database, cache_files, jobs
from hpo_pilot.server.database import tasks as tasks_table
from hpo_pilot.server.descriptions import describe_jobs
from hpo_pilot.server.dispatch import JobRequest, acquire
from hpo_pilot.server.tokens import Caller, Role
from tests.task_parameters import make_params

OPERATOR = Caller("boss", Role.OPERATOR)


class Queue:
    """Submits, acquires and reports in one transaction each."""

    def __init__(self, database: Database, clock: Any) -> None:
        self.database = database
        self.clock = clock
        self.me = Caller("me", Role.USER)
        self._names = 0

    def submit(self, n_jobs: int = 1, caller: Caller | None = None, **more: Any) -> int:
        self._names += 1
        name = more.pop("name", f"user.me.t{self._names}/")
        with self.database.writing() as tx:
            code, message = tasks.submit(tx, caller or self.me, make_params(name, n_jobs, **more))
        assert code == 0, message
        return int(message.rsplit("=", 1)[1])

    def acquire(self, n_jobs: int = 1, **more: Any) -> list[dict[str, Any]]:
        with self.database.writing() as tx:
            return acquire(tx, JobRequest(**{"site": "LOCAL", "label": "user", "n_jobs": n_jobs, **more}))

    def report(self, panda_id: int, status: str, attempt_nr: int | None = None, **more: Any) -> str | None:
        report = {"job_id": panda_id, "attempt_nr": attempt_nr, **more}
        with self.database.writing() as tx:
            return record_report(tx, JobState(status), report, None)

    def command(self, task_id: int, name: str, caller: Caller | None = None, **more: Any) -> tuple[int, str]:
        with self.database.writing() as tx:
            return tasks.command(tx, caller or self.me, task_id, name, **more)

    def status(self, task_id: int) -> str:
        with self.database.reading() as tx:
            return str(tx.connection.scalar(select(tasks_table.c.status).where(tasks_table.c.task_id == task_id)))

    def dialog(self, task_id: int) -> str | None:
        with self.database.reading() as tx:
            query = select(tasks_table.c.error_dialog).where(tasks_table.c.task_id == task_id)
            found: str | None = tx.connection.scalar(query)
            return found

    def jobs(self, task_id: int) -> list[tuple[int, int, str]]:
        """(number, attempt, state) of every attempt, oldest first."""
        query = select(jobs.c.number, jobs.c.attempt_nr, jobs.c.status).where(jobs.c.task_id == task_id)
        with self.database.reading() as tx:
            return [tuple(row) for row in tx.connection.execute(query.order_by(jobs.c.panda_id))]  # type: ignore[misc]

    def describe(self, panda_id: int) -> dict[str, Any]:
        with self.database.reading() as tx:
            (found,) = describe_jobs(tx, [panda_id])
        assert found is not None
        return found

    def end_silent_attempts(self, timeout: float = 60) -> float | None:
        with self.database.writing() as tx:
            return attempts.end_silent_attempts(tx, timeout)

    def upload(self, name: str) -> None:
        with self.database.writing() as tx:
            tx.connection.execute(
                insert(cache_files).values(name=name, user_name="me", size=1, created=tx.now, touched=tx.now)
            )
            tasks.sandbox_arrived(tx, name)
