"""Tasks: registered, made into jobs, and how they end."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from hpo_pilot.server import tasks
from hpo_pilot.server.database import jobs as jobs_table
from hpo_pilot.server.database import tasks as tasks_table
from hpo_pilot.server.descriptions import metadata_of_finished
from hpo_pilot.server.tokens import Caller, Role
from tests.server.queue_driver import OPERATOR, Queue
from tests.task_parameters import make_params


def test_a_task_runs_to_its_end(queue: Queue) -> None:
    task_id = queue.submit(2)
    assert queue.status(task_id) == "running"
    first, second = queue.acquire()[0], queue.acquire()[0]
    assert queue.acquire() == []
    assert (first["attemptNr"], first["taskID"], first["logFile"]) == (
        1,
        task_id,
        f"user.me.t1.log.{task_id}.000001.log.tgz",
    )
    for job in (first, second):
        for status in ("starting", "running", "transferring", "holding"):
            assert queue.report(job["PandaID"], status, 1) is None
            assert queue.describe(job["PandaID"])["jobStatus"] == status
        assert queue.report(job["PandaID"], "finished", 1, meta_data='{"user_job_metadata": {"x": 0.0}}') is None
    assert queue.status(task_id) == "done"
    with queue.database.reading() as tx:
        assert metadata_of_finished(tx, task_id) == {
            job["PandaID"]: {"user_job_metadata": {"x": 0.0}} for job in (first, second)
        }


@pytest.mark.parametrize(
    ("asked", "state"),
    [
        ({}, "finished"),
        ({"useExhausted": True}, "exhausted"),
        ({"useExhausted": True, "goal": 50}, "finished"),
        ({"failGoalUnreached": True, "goal": 60}, "failed"),
        ({"failGoalUnreached": True, "goal": "odd"}, "failed"),
    ],
)
def test_a_task_with_a_finished_and_a_failed_job(queue: Queue, asked: dict[str, Any], state: str) -> None:
    task_id = queue.submit(2, maxAttempt=1, **asked)
    one, two = queue.acquire(2)
    queue.report(one["PandaID"], "finished")
    queue.report(two["PandaID"], "failed")
    assert queue.status(task_id) == state
    if state == "exhausted":
        assert queue.command(task_id, "retry")[0] == 4, "only an operator may"
        assert queue.command(task_id, "retry", OPERATOR)[0] == 0
        assert (queue.status(task_id), queue.dialog(task_id)) == ("running", None)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"jobParameters": "none"}, "jobParameters"),
        *(
            ({"architecture": architecture}, "architecture")
            for architecture in ("&nvidia:unknown=1", "&nvidia:vram>=much", '{"gpu_spec": 1}', '{"cpu_specs": 1}', "{")
        ),
    ],
)
def test_invalid_parameters_break_the_task(queue: Queue, wrong: dict[str, Any], word: str) -> None:
    task_id = queue.submit(1, **wrong)
    assert queue.status(task_id) == "broken" and word in str(queue.dialog(task_id))
    assert queue.command(task_id, "kill")[0] == 4
    for missing in ("taskName", "vo", "prodSourceLabel"):
        with queue.database.writing() as tx:
            assert tasks.submit(tx, queue.me, make_params() | {missing: None})[0] == 4


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"buildSpec": {"x": 1}}, "submit with --noBuild"),
        ({"mergeSpec": {"x": 1}}, "submit without --mergeOutput"),
        ({"nEventsPerWorker": 5}, "no event service"),
        ({"hpoWorkflow": True}, "`hpo-pilot import phpo -- phpo ...` makes a search of the same command"),
        ({"useSecrets": True}, "submit without --useSecrets"),
    ],
)
def test_parameters_of_missing_features_are_refused(queue: Queue, wrong: dict[str, Any], remedy: str) -> None:
    code, message = resubmit(queue, "user.me.lacks/", **wrong)
    assert code == 4 and f"{next(iter(wrong))}: the embedded PanDA server" in message and remedy in message
    assert resubmit(queue, "user.me.lacks/")[0] == 0, "a task was left under that name"


def resubmit(queue: Queue, name: str, n_jobs: int = 1, **more: Any) -> tuple[int, str]:
    with queue.database.writing() as tx:
        return tasks.submit(tx, queue.me, make_params(name, n_jobs, **more))


def end_as(queue: Queue, state: str, **more: Any) -> int:
    """A task of one job that has come to this state."""
    given: dict[str, Any] = {"nEvents": "?"} if state == "broken" else {"maxAttempt": 1}
    task_id = queue.submit(1, name="user.me.same/", **given, **more)
    if state == "aborted":
        queue.command(task_id, "kill")
    elif state in ("done", "failed"):
        queue.report(queue.acquire()[0]["PandaID"], "finished" if state == "done" else "failed")
    assert queue.status(task_id) == state
    return task_id


@pytest.mark.parametrize(
    ("state", "more"),
    [
        *((state, {"campaign": "demo.cafe"}) for state in ("running", "done", "failed", "aborted", "broken")),
        ("running", {}),
        ("broken", {}),
    ],
)
def test_a_name_is_taken_by_tasks_of_hpo_pilot_and_active_tasks(queue: Queue, state: str, more: dict[str, str]) -> None:
    """The task is not started again, there is no second one, and the message has its id."""
    task_id = end_as(queue, state)
    code, message = resubmit(queue, "user.me.same/", **more)
    assert code == 2
    advice = "You can re-submit the task" if state in ("running", "broken") else "You cannot submit duplicated tasks"
    assert message.startswith(f"jediTaskID={task_id} is in the {state} state for outDS=user.me.same/. {advice}")
    assert len(queue.acquire()) == (state == "running")


@pytest.mark.parametrize(("state", "n_again"), [("done", 0), ("failed", 1), ("aborted", 1)])
def test_a_resubmitted_task_runs_again(queue: Queue, state: str, n_again: int) -> None:
    task_id = end_as(queue, state)
    assert resubmit(queue, "user.me.same/") == (
        3,
        f"reactivation accepted. jediTaskID={task_id} (currently in {state} state) will be re-executed "
        "with old and/or new input",
    )
    again = queue.acquire(9)
    assert [job["taskID"] for job in again] == [task_id] * n_again
    assert queue.status(task_id) == ("running" if n_again else "done")


def test_a_resubmission_with_more_events_adds_jobs(queue: Queue) -> None:
    task_id = end_as(queue, "done")
    assert resubmit(queue, "user.me.same/", 3, site="LOCAL", coreCount=2, jobParameters="changes nothing")[0] == 3
    assert queue.status(task_id) == "running"
    jobs = queue.acquire(9)
    assert [(job["attemptNr"], job["coreCount"]) for job in jobs] == [(1, 2), (1, 2)]
    assert 'number%203"' in jobs[1]["jobPars"]
    for job in jobs:
        queue.report(job["PandaID"], "finished")
    assert queue.status(task_id) == "done"
    assert resubmit(queue, "user.me.same/", 2)[0] == 3, "fewer events take nothing away"
    assert queue.status(task_id) == "done"


def test_names_are_unique_by_user_and_only_if_asked(queue: Queue) -> None:
    """Another user's task, or one that does not ask to be unique, may bear the same name."""
    task_id = end_as(queue, "done")
    bare = {"jobParameters": [{"type": "constant", "value": "x"}], "log": None}
    assert queue.submit(1, caller=Caller("you", Role.USER), name="user.me.same/", **bare) > task_id
    assert queue.submit(1, name="user.me.same/", uniqueTaskName=False) > task_id


def test_a_parent_is_found_by_name(queue: Queue) -> None:
    parent = queue.submit(1, name="user.me.parent/")
    child = queue.submit(1, parentTaskName="user.me.parent/")
    with queue.database.reading() as tx:
        query = select(tasks_table.c.parent_id).where(tasks_table.c.task_id == child)
        assert tx.connection.scalar(query) == parent
    assert resubmit(queue, "user.me.orphan/", parentTaskName="none") == (
        11,
        'failed to find parent with user="me" name=none',
    )


def test_a_task_waits_for_its_sandbox(queue: Queue) -> None:
    more = {"jobParameters": [{"type": "constant", "value": "-a sources.ab.tar.gz"}]}
    first, second = queue.submit(2, **more), queue.submit(1, **more)
    assert queue.status(first) == "pending"
    assert queue.acquire() == []
    queue.upload("sources.ab.tar.gz")
    assert queue.status(first) == queue.status(second) == "running"
    assert len(queue.acquire(9)) == 3
    assert queue.status(queue.submit(1, **more)) == "running"


def test_the_number_of_new_jobs_is_limited(queue: Queue) -> None:
    most = tasks.MOST_NEW_JOBS
    assert queue.status(queue.submit(most)) == "running"
    task_id = queue.submit(most + 1)
    assert queue.status(task_id) == "broken"
    with queue.database.reading() as tx:
        assert "split the task" in tx.connection.scalar(
            select(tasks_table.c.error_dialog).where(tasks_table.c.task_id == task_id)
        )
        made = select(func.count(), func.max(jobs_table.c.number)).select_from(jobs_table)
        assert tuple(tx.connection.execute(made).one()) == (most, most)
