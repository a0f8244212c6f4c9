"""Reports of pilots that come together."""

from __future__ import annotations

import asyncio
from typing import Any

from hpo_pilot.jobs import JobState
from hpo_pilot.server.attempts import Report
from hpo_pilot.server.reports import Reports
from tests.server.queue_driver import Queue


def test_reports_that_come_together_share_a_transaction_and_only_a_bad_one_fails(queue: Queue) -> None:
    task_id = queue.submit(8, maxAttempt=1)
    ids = [job["PandaID"] for job in queue.acquire(8)]
    queue.report(ids[0], "finished")
    before = queue.database.change

    async def scenario() -> None:
        reports = Reports(queue.database)

        async def record(*states: str, **more: Any) -> list[Any]:
            some = zip(ids[: len(states)], states, strict=True)
            made = [Report(JobState(state), {"job_id": panda_id, **more}, None) for panda_id, state in some]
            return await asyncio.gather(*map(reports.record, made), return_exceptions=True)

        for more in ({}, {"node": "n"}):  # that they run, then heartbeats
            assert await record(*["running"] * 8, **more) == ["tobekilled", *[None] * 7]
        assert queue.database.is_postgresql or queue.database.change == before + 1
        bad = Report(JobState.RUNNING, {"job_id": ids[1], "core_count": []}, None)
        done = record("finished", "finished", "failed")
        both = await asyncio.gather(reports.record(bad), done, return_exceptions=True)
        assert isinstance(both[0], TypeError) and both[1] == [None] * 3

    asyncio.run(scenario())
    assert [state for _, _, state in queue.jobs(task_id)] == ["finished", "finished", "failed", *["running"] * 5]
