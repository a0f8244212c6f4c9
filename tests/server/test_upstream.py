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
FILTERED = "task/get_tasks_detailed_info_since"


@pytest.fixture
def operator(server: Any) -> Api:
    api: Api = server.api("operator")
    return api


@pytest.mark.parametrize("call", ["retry", "resume", "pause", "kill", "finish", "reload_input"])
def test_commands_to_a_task_that_is_not(operator: Api, call: str) -> None:
    more = {"soft": False, "broadcast": False} if call == "finish" else {}
    reply = operator.post(f"task/{call}", task_id=-1, **more)
    assert (reply.keys(), reply["success"], reply["data"]) == ({"success", "message", "data"}, False, 2)


@pytest.mark.parametrize(
    ("call", "success", "message", "data"),
    [
        ("task/get_status", False, "Task not found", None),
        ("task/get_details", False, "Task not found or error retrieving the details", None),
        ("task/get_datasets_and_files", False, "No data found for the task", None),
        ("task/get_task_parameters", False, "Task not found", None),
        ("task/get_detailed_info", False, "Task not found or error retrieving task info", None),
        ("task/get_job_ids", True, "", []),
        ("task/get_job_descriptions", True, "", []),
        ("job/get_metadata_for_analysis_jobs", True, "No metadata found", {}),
    ],
)
def test_questions_about_a_task_that_is_not(operator: Api, call: str, success: bool, message: str, data: Any) -> None:
    assert operator.get(call, task_id=-1) == {"success": success, "message": message, "data": data}


def test_jobs_that_are_not(operator: Api) -> None:
    assert operator.get("job/get_description", job_ids=[-1])["data"] == [None]
    assert operator.post("job/get_description", job_ids=[-1])["data"] == [None]
    assert operator.post("job/kill", job_ids=[-1])["data"] == [False]


def test_a_task_that_is(operator: Api) -> None:
    task_id = operator.submit(make_params("user.operator.real/", site="REAL", userName="operator"))
    for call in ("pause", "resume", "retry", "kill", "reload_input", "finish"):
        reply = operator.post(f"task/{call}", task_id=task_id)
        assert (reply["success"], reply["data"]) == (True, 0), call
    info = operator.get("task/get_detailed_info", task_id=task_id)["data"]
    keys = {"status", "nFiles", "nFilesFinished", "nFilesFailed", "pctFinished", "pctFailed", "raw_task_params"}
    assert info["jediTaskID"] == task_id and keys <= info.keys()
    found = operator.get(FILTERED, filters=json.dumps({"jediTaskID": task_id}))
    assert [task["jediTaskID"] for task in found["data"]] == [task_id]


def test_lists_of_tasks(operator: Api) -> None:
    listed = operator.get("task/get_tasks_modified_since", since=WEEK, dn="test", full=False, min_task_id=1)
    assert (listed["success"], listed["data"]) == (True, {})
    for filters in (None, '{"prodSourceLabel": "user"}', '{"status": "finished|done"}'):
        reply = operator.get(FILTERED, since=WEEK, **({"filters": filters} if filters else {}))
        assert (reply["success"], type(reply["data"])) == (True, list), filters
    assert operator.get(FILTERED, filters="not_valid_json")["success"] is False
    assert operator.get(FILTERED)["success"] is True


def test_the_system(operator: Api) -> None:
    assert operator.get("system/is_alive")["data"] is None
    assert operator.get("system/get_user_attributes")["data"]["is_production_user"] is True
    for kind in ("analysis", "production", "all"):
        reply = operator.get("metaconfig/get_site_specs", type=kind)
        assert (reply["success"], reply["data"]) == (True, {}), kind
