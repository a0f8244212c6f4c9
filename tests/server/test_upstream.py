"""What panda-server's own tests of its API check (`pandaserver/api/v1/tests`), checked here for the calls provided.

They ask for things that are not there (task -1, job -1) and for what any server has.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.server.conftest import Api
from tests.task_parameters import make_params

WEEK = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() - 7 * 86400))


@pytest.fixture
def operator(server: Any) -> Api:
    api: Api = server.api("operator")
    return api


def outcome(reply: dict[str, Any]) -> tuple[bool, Any]:
    assert reply.keys() == {"success", "message", "data"}
    return reply["success"], reply["data"]


@pytest.mark.parametrize(
    ("call", "more"),
    [
        ("retry", {}),
        ("resume", {}),
        ("pause", {}),
        ("kill", {}),
        ("finish", {"soft": False, "broadcast": False}),
        ("reload_input", {}),
    ],
)
def test_commands_to_a_task_that_is_not(operator: Api, call: str, more: dict[str, Any]) -> None:
    assert outcome(operator.post(f"task/{call}", task_id=-1, **more)) == (False, 2)


def test_what_does_not_tell_a_task_that_is_not(operator: Api) -> None:
    assert outcome(operator.get("task/get_job_ids", task_id=-1)) == (True, [])
    assert outcome(operator.get("task/get_job_descriptions", task_id=-1)) == (True, [])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("get_status", "Task not found"),
        ("get_details", "Task not found or error retrieving the details"),
        ("get_datasets_and_files", "No data found for the task"),
        ("get_task_parameters", "Task not found"),
        ("get_detailed_info", "Task not found or error retrieving task info"),
    ],
)
def test_questions_about_a_task_that_is_not(operator: Api, call: str, message: str) -> None:
    assert operator.get(f"task/{call}", task_id=-1) == {"success": False, "message": message, "data": None}


def test_a_task_that_is(operator: Api) -> None:
    task_id = operator.submit(make_params("user.operator.real/", site="REAL", userName="operator"))
    for call in ("pause", "resume", "retry", "kill", "reload_input", "finish"):
        assert outcome(operator.post(f"task/{call}", task_id=task_id)) == (True, 0), call
    info = operator.get("task/get_detailed_info", task_id=task_id)["data"]
    assert info["jediTaskID"] == task_id
    for key in ("status", "nFiles", "nFilesFinished", "nFilesFailed", "pctFinished", "pctFailed", "raw_task_params"):
        assert key in info
    found = operator.get("task/get_tasks_detailed_info_since", filters=json.dumps({"jediTaskID": task_id}))
    assert [task["jediTaskID"] for task in found["data"]] == [task_id]


def test_lists_of_tasks(operator: Api) -> None:
    listed = operator.get("task/get_tasks_modified_since", since=WEEK, dn="test", full=False, min_task_id=1)
    assert outcome(listed) == (True, {})
    for more in ({}, {"filters": '{"prodSourceLabel": "user"}'}, {"filters": '{"status": "finished|done"}'}):
        reply = operator.get("task/get_tasks_detailed_info_since", since=WEEK, **more)
        assert (reply["success"], type(reply["data"])) == (True, list)
    assert operator.get("task/get_tasks_detailed_info_since", filters="not_valid_json")["success"] is False
    assert operator.get("task/get_tasks_detailed_info_since")["success"] is True


def test_jobs_that_are_not(operator: Api) -> None:
    assert outcome(operator.get("job/get_description", job_ids=[-1])) == (True, [None])
    assert outcome(operator.post("job/get_description", job_ids=[-1])) == (True, [None])
    metadata = operator.get("job/get_metadata_for_analysis_jobs", task_id=-1)
    assert metadata == {"success": True, "message": "No metadata found", "data": {}}
    assert outcome(operator.post("job/kill", job_ids=[-1])) == (True, [False])


def test_the_system(operator: Api) -> None:
    assert outcome(operator.get("system/is_alive")) == (True, None)
    assert operator.get("system/get_user_attributes")["data"]["is_production_user"] is True
    for kind in ("analysis", "production", "all"):
        assert outcome(operator.get("metaconfig/get_site_specs", type=kind)) == (True, {})
