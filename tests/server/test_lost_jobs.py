"""Jobs whose pilot is silent or gone."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from hpo_pilot.server import attempts
from hpo_pilot.server.pilot_calls import LegacyRequest, job_request
from hpo_pilot.server.tokens import PilotIdentity
from tests.server.queue_driver import Queue


def test_silent_jobs_are_lost(queue: Queue) -> None:
    task_id = queue.submit(2, maxAttempt=2)
    assert queue.lose_silent() is None
    one, two = queue.acquire(2)
    queue.clock.now += 40
    queue.report(one["PandaID"], "running")
    assert queue.lose_silent() == pytest.approx(20)
    queue.clock.now += 30
    assert queue.lose_silent() == pytest.approx(30)
    assert queue.jobs(task_id) == [(1, 1, "running"), (2, 1, "failed"), (2, 2, "activated")]
    described = queue.describe(two["PandaID"])
    assert described["jobDispatcherErrorCode"] == 100
    assert described["jobDispatcherErrorDiag"].startswith("lost heartbeat : ")


def test_a_restart_gives_every_job_a_fresh_grace_period(queue: Queue) -> None:
    queue.submit(1)
    queue.acquire()
    queue.clock.now += 3600
    with queue.database.writing() as tx:
        attempts.give_grace(tx)
    assert queue.lose_silent() == pytest.approx(60)


def test_a_worker_that_ended_takes_its_jobs_along(queue: Queue) -> None:
    task_id = queue.submit(3, maxAttempt=2)
    queue.acquire(harvester_id="h", worker_id="1")
    queue.acquire(harvester_id="h", worker_id="2")
    with queue.database.writing() as tx:
        attempts.update_worker(tx, PilotIdentity("pilot"), "h", "1", "started", None)
        attempts.update_worker(tx, PilotIdentity("pilot"), "h", "1", "finished", "node")
    assert queue.jobs(task_id) == [(1, 1, "failed"), (2, 1, "sent"), (3, 1, "activated"), (1, 2, "activated")]
    assert queue.describe(1)["jobDispatcherErrorDiag"] == "lost heartbeat : worker 1 of h finished"


def test_a_lost_job_that_was_to_be_killed_is_cancelled(queue: Queue) -> None:
    task_id = queue.submit(1)
    queue.acquire()
    queue.command(task_id, "kill")
    queue.clock.now += 61
    queue.lose_silent()
    assert (queue.status(task_id), queue.jobs(task_id)) == ("aborted", [(1, 1, "cancelled")])


def test_a_released_pilot_may_be_silent_for_longer(queue: Queue) -> None:
    """A Pilot 3 reports every half hour by default."""
    request = LegacyRequest(Mock(), {"siteName": "LOCAL"}, as_json=True)
    patience = job_request(request, 0).patience
    assert patience > 3 * 1800
    queue.submit(2)
    theirs, ours = queue.acquire(patience=patience)[0], queue.acquire()[0]
    queue.clock.now += 100
    assert queue.lose_silent() == pytest.approx(patience - 40)
    assert queue.describe(ours["PandaID"])["jobStatus"] == "failed"
    queue.report(theirs["PandaID"], "running")
    queue.clock.now += patience + 50
    assert queue.lose_silent() == pytest.approx(10)
    queue.clock.now += 11
    queue.lose_silent()
    assert queue.describe(theirs["PandaID"])["jobStatus"] == "failed"
