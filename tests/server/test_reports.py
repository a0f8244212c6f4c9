"""Reports of pilots that come together."""

from __future__ import annotations

import asyncio
from typing import Any

from hpo_pilot.jobs import JobState
from hpo_pilot.server.attempts import Report
from hpo_pilot.server.metrics import REGISTRY
from hpo_pilot.server.reports import Reports
from tests.server.queue_driver import Queue


def ended_attempts() -> list[float]:
    name = "hpo_pilot_server_job_attempts_ended_total"
    return [REGISTRY.get_sample_value(name, {"state": state}) or 0.0 for state in ("finished", "failed")]


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
        bad = Report(JobState.RUNNING, {"job_id": ids[3], "core_count": []}, None)
        last = [Report(JobState(state), {"job_id": ids[n]}, None) for n, state in ((1, "finished"), (2, "failed"))]
        every = await asyncio.gather(*map(reports.record, [*last, bad]), return_exceptions=True)
        assert every[:2] == [None] * 2 and isinstance(every[2], TypeError)

    ended = ended_attempts()
    asyncio.run(scenario())
    assert [after - before for after, before in zip(ended_attempts(), ended, strict=True)] == [1, 1]
    assert [state for _, _, state in queue.jobs(task_id)] == ["finished", "finished", "failed", *["running"] * 5]
