"""Collects the reports of pilots on single jobs, so that those that come together share a transaction."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy.exc import OperationalError

from hpo_pilot.jobs import JobState
from hpo_pilot.server.attempts import Report, write_reports
from hpo_pilot.server.database import Database


class Reports:
    """Records reports on single jobs. Those that wait for the database go into one transaction.

    While several come at a time, heartbeats of running jobs wait for each other: one more costs little.
    """

    most = 32  #: reports of a transaction
    pause = 0.05  #: seconds that a heartbeat waits for others
    remembered = 100_000  #: running jobs; reports on others do not wait

    def __init__(self, database: Database) -> None:
        """Takes the database in which they are recorded."""
        self._database = database
        self._due: deque[tuple[Report, asyncio.Future[str | None]]] = deque()
        self._running: set[int] = set()
        self._are_many, self._now = False, asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    async def record(self, report: Report) -> str | None:
        """Records a report, as `attempts.record_report`."""
        future = asyncio.get_running_loop().create_future()
        self._due.append((report, future))
        is_heartbeat = report.status is JobState.RUNNING and report.panda_id in self._running
        if not is_heartbeat or len(self._due) >= self.most:
            self._now.set()
        self._work = self._work or asyncio.create_task(self._record_due())
        answer: str | None = await future
        return answer

    async def _record_due(self) -> None:
        while self._due:
            if self._are_many:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._now.wait(), self.pause)
            some = [self._due.popleft() for _ in range(min(self.most, len(self._due)))]
            self._are_many = len(some) > 1
            if not self._due:
                self._now.clear()
            await self._record(some)
        self._work = None

    async def _record(self, some: Sequence[tuple[Report, asyncio.Future[str | None]]]) -> None:
        reports = [report for report, _ in some]
        answers: Sequence[str | Exception | None]
        try:
            answers = await write_reports(self._database, reports)
        except Exception as error:  # noqa: BLE001  # the callers get it
            if len(some) > 1 and not isinstance(error, OperationalError):
                for one in some:  # one of them is to blame
                    await self._record([one])
                return
            answers = [error] * len(some)
        for (report, future), answer in zip(some, answers, strict=True):
            if len(self._running) >= self.remembered:
                self._running.clear()  # among them are jobs that ended without a report here
            is_running = report.status is JobState.RUNNING and answer is None
            (self._running.add if is_running else self._running.discard)(report.panda_id)
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
