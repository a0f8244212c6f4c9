"""Jobs that a pilot gives back, and every way in which it may come too late."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_pilot.server.dispatch import give_back
from hpo_pilot.server.tokens import PilotIdentity
from tests.server.conftest import Api
from tests.server.queue_driver import Queue
from tests.task_parameters import make_params

ME = {"harvester_id": "h", "worker_id": "w"}


def take(queue: Queue, count: int = 1, **more: Any) -> list[tuple[int, int]]:
    return [(job["PandaID"], job["attemptNr"]) for job in queue.acquire(count, **(ME | more))]


def give(queue: Queue, *attempts: tuple[int, int], harvester_id: str = "h", worker_id: str = "w") -> list[int]:
    with queue.database.writing() as tx:
        return give_back(tx, PilotIdentity("pilot"), attempts, harvester_id, worker_id)


def test_no_attempt_is_used_up(queue: Queue) -> None:
    task = queue.submit(1, maxAttempt=2)
    for attempt in range(1, 6):
        ((panda_id, number),) = take(queue)
        assert number == attempt
        if attempt % 2:
            queue.report(panda_id, "running")
        assert give(queue, (panda_id, attempt)) == [panda_id]
    assert [attempt[1:] for attempt in queue.jobs(task)] == [(n, "closed") for n in range(1, 6)] + [(6, "activated")]
    assert queue.status(task) == "running"
    # The two that it may have are still to come.
    for number in (6, 7):
        ((panda_id, attempt),) = take(queue)
        assert attempt == number
        queue.report(panda_id, "failed")
    assert queue.acquire() == []
    assert queue.status(task) == "failed"


def test_another_worker_takes_it_at_once(queue: Queue) -> None:
    queue.submit(3)
    mine = take(queue, 3)
    assert queue.acquire(worker_id="other") == []
    assert give(queue, *mine[:2]) == [mine[0][0], mine[1][0]]
    assert [number for _, number in take(queue, 3, worker_id="other")] == [2, 2]
    described = queue.describe(mine[0][0])
    assert (described["jobStatus"], described["jobSubStatus"]) == ("closed", "toreassign")
    assert "given back by worker w of h" in described["taskBufferErrorDiag"]


def test_late_reports_of_the_old_attempt_change_nothing(queue: Queue) -> None:
    task = queue.submit(1)
    ((panda_id, attempt),) = take(queue)
    give(queue, (panda_id, attempt))
    assert queue.report(panda_id, "running", attempt) == "tobekilled"
    for status in ("finished", "failed"):
        assert queue.report(panda_id, status, attempt) == "alreadydone"
    assert [job[1:] for job in queue.jobs(task)] == [(1, "closed"), (2, "activated")]
    ((again, number),) = take(queue, worker_id="other")
    assert again != panda_id
    assert number == 2
    queue.report(again, "finished", 2)
    assert queue.status(task) == "done"


def test_a_repeated_call_says_the_same_and_makes_no_second_attempt(queue: Queue) -> None:
    task = queue.submit(1)
    (held,) = take(queue)
    assert give(queue, held, held) == [held[0]]
    assert give(queue, held) == [held[0]]
    assert len(queue.jobs(task)) == 2
    take(queue)
    assert give(queue, held) == [held[0]], "its next attempt is another job"
    assert [job[1:] for job in queue.jobs(task)] == [(1, "closed"), (2, "sent")]


def test_what_is_not_this_workers_stays(queue: Queue) -> None:
    task = queue.submit(4)
    held = take(queue, 3)
    before = queue.jobs(task)
    assert give(queue, *held, worker_id="other") == []
    assert give(queue, *held, harvester_id="other") == []
    assert give(queue, (held[0][0], 2), (held[1][0], 0), (10**9, 1), (-1, 1)) == [], "wrong attempt, unknown job"
    waiting = held[2][0] + 1
    assert give(queue, (waiting, 1), harvester_id="", worker_id="") == [], "nobody has it"
    assert queue.jobs(task) == before


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_a_job_that_has_ended_stays_so(queue: Queue, status: str) -> None:
    task = queue.submit(1, maxAttempt=1)
    (held,) = take(queue)
    queue.report(held[0], status)
    assert give(queue, held) == []
    assert [job[2] for job in queue.jobs(task)] == [status]


def test_a_lost_job_is_not_given_back_twice(queue: Queue) -> None:
    task = queue.submit(1)
    (held,) = take(queue)
    queue.clock.now += 61
    queue.lose_silent(60)
    assert give(queue, held) == []
    assert [job[1:] for job in queue.jobs(task)] == [(1, "failed"), (2, "activated")]


@pytest.mark.parametrize(
    ("command", "state", "job"), [("kill", "aborted", "cancelled"), ("finish", "failed", "cancelled")]
)
def test_a_killed_job_does_not_come_back(queue: Queue, command: str, state: str, job: str) -> None:
    task = queue.submit(1)
    (held,) = take(queue)
    queue.command(task, command)
    assert give(queue, held) == []
    assert queue.report(held[0], "failed", 1) is None, "the pilot reports on it instead"
    assert [found[1:] for found in queue.jobs(task)] == [(1, job)]
    assert queue.status(task) == state


def test_a_finishing_task_starts_no_new_attempts(queue: Queue) -> None:
    """Softly: its running jobs may end, and this one cannot."""
    task = queue.submit(1)
    (held,) = take(queue)
    queue.command(task, "finish", soft=True)
    assert give(queue, held) == []
    queue.report(held[0], "failed")
    assert queue.status(task) == "failed"


def test_a_paused_tasks_job_waits_aside(queue: Queue) -> None:
    task = queue.submit(1)
    (held,) = take(queue)
    queue.command(task, "pause")
    assert give(queue, held) == [held[0]]
    assert queue.acquire() == []
    queue.command(task, "resume")
    assert [number for _, number in take(queue)] == [2]


def test_the_call(user: Api, pilot: Api) -> None:
    task = user.submit(make_params("user.me.given_back/", 2, site="GIVEN"))
    jobs = pilot.acquire(2, site_name="GIVEN", harvester_id="h", worker_id=7)
    pairs = [[job["PandaID"], job["attemptNr"]] for job in jobs]
    cursor = user.get("hpo_pilot/changes", cursor=-1)["data"]["cursor"]
    reply = pilot.post("hpo_pilot/give_back", jobs=pairs, harvester_id="h", worker_id=7)
    assert reply["data"] == {"given_back": [pair[0] for pair in pairs]}
    assert user.get("hpo_pilot/changes", cursor=cursor, outcomes=True)["data"]["task_ids"] == [task]
    assert pilot.post("hpo_pilot/give_back", jobs=pairs, harvester_id="h", worker_id="8")["data"] == {"given_back": []}
    for wrong in ([[1]], [[1, 2, 3]], [["1", 2]], [[True, 1]], [[1, 1]] * 1001):
        assert pilot.post("hpo_pilot/give_back", jobs=wrong)["success"] is False
    assert user.session.post(f"{user.url}/api/v1/hpo_pilot/give_back", json={"jobs": []}, timeout=9).status_code != 200
    assert [job["attemptNr"] for job in pilot.acquire(9, site_name="GIVEN")] == [2, 2]
