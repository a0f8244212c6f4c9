"""What panda-server's own tests of its API check (`pandaserver/api/v1/tests`), checked here.

They ask for things that are not (task -1, job -1) and for what any server has. A few of theirs cannot pass anywhere,
such as those that forget a required argument and expect a success; of those the refusal is checked.
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
    ("call", "more", "data"),
    [
        ("retry", {}, 2),
        ("enable_jumbo_jobs", {"jumbo_jobs_total": 1}, 2),
        ("increase_attempts", {}, None),
        ("increase_attempts", {"increase": 1}, 1),
        ("resume", {}, 2),
        ("release", {}, 2),
        ("reassign", {"site": "CERN"}, 2),
        ("pause", {}, 2),
        ("kill", {}, 2),
        ("finish", {"soft": False, "broadcast": False}, 2),
        ("avalanche", {}, 2),
        ("reload_input", {}, 2),
        ("change_attribute", {"attribute_name": "coreCount", "value": 8}, None),
        ("change_attribute", {"attribute_name": "name", "value": 8}, None),
        ("change_modification_time", {"positive_hour_offset": 1}, None),
        ("change_modification_time", {"hour_offset": 1}, None),
        ("change_priority", {"priority": 1}, None),
        ("change_split_rule", {"attribute_name": "AI", "value": 1}, None),
        ("change_split_rule", {"attribute_name": "AI", "value": "1"}, None),
        ("change_split_rule", {"attribute_name": "XX", "value": "1"}, 2),
    ],
)
def test_commands_to_a_task_that_is_not(operator: Api, call: str, more: dict[str, Any], data: Any) -> None:
    assert outcome(operator.post(f"task/{call}", task_id=-1, **more)) == (False, data)


def test_what_does_not_tell_a_task_that_is_not(operator: Api) -> None:
    assert outcome(operator.post("task/reactivate", task_id=-1)) == (True, 0)
    assert outcome(operator.post("task/kill_unfinished_jobs", task_id=-1)) == (True, [])
    assert outcome(operator.get("task/get_job_ids", task_id=-1)) == (True, [])
    assert outcome(operator.get("task/get_job_descriptions", task_id=-1)) == (True, [])
    reply = operator.post("task/reassign_global_share", task_id_list=[-1], share="Test", reassign_running_jobs=False)
    assert outcome(reply) == (False, 1)
    for call in ("enable_job_cloning", "disable_job_cloning"):
        assert outcome(operator.post(f"task/{call}", jedi_task_id=-1)) == (False, None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("get_status", "Task not found"),
        ("get_details", "Task not found or error retrieving the details"),
        ("get_datasets_and_files", "No data found for the task"),
        ("get_task_parameters", "Task not found"),
        ("get_detailed_info", "Task not found or error retrieving task info"),
        ("get_parent_detailed_info", "Child task not found"),
    ],
)
def test_questions_about_a_task_that_is_not(operator: Api, call: str, message: str) -> None:
    assert operator.get(f"task/{call}", task_id=-1) == {"success": False, "message": message, "data": None}


def test_a_task_that_is(operator: Api) -> None:
    task_id = operator.submit(make_params("user.operator.real/", site="REAL", userName="operator"))
    commands: list[tuple[str, dict[str, Any], Any]] = [
        ("pause", {}, 0),
        ("resume", {}, 0),
        ("release", {}, 0),
        ("reassign", {"site": "CERN"}, 0),
        ("increase_attempts", {"increase": 1}, 0),
        ("change_attribute", {"attribute_name": "coreCount", "value": 8}, None),
        ("change_modification_time", {"hour_offset": -1}, None),
        ("change_priority", {"priority": 1}, None),
        ("change_split_rule", {"attribute_name": "AI", "value": "1"}, None),
        ("kill_unfinished_jobs", {}, [True, True, True]),
        ("retry", {}, 0),
        ("finish", {}, 0),
        ("reload_input", {}, 0),
        ("kill", {}, 0),
        ("reactivate", {}, 0),
    ]
    for call, more, data in commands:
        assert outcome(operator.post(f"task/{call}", task_id=task_id, **more)) == (True, data), call
    info = operator.get("task/get_detailed_info", task_id=task_id)["data"]
    assert (info["jediTaskID"], info["currentPriority"], info["coreCount"]) == (task_id, 1, 8)
    assert "allowIncompleteInDS=1" in info["splitRule"]
    for key in ("status", "nFiles", "nFilesFinished", "nFilesFailed", "pctFinished", "pctFailed", "raw_task_params"):
        assert key in info
    assert operator.get("task/get_parent_detailed_info", task_id=task_id)["message"] == "No parent task found"
    found = operator.get("task/get_tasks_detailed_info_since", filters=json.dumps({"jediTaskID": task_id}))
    assert [task["jediTaskID"] for task in found["data"]] == [task_id]
    assert outcome(operator.get("task/get_jumbo_job_datasets", from_offset=1)) == (True, {})
    assert outcome(operator.post("task/enable_jumbo_jobs", task_id=task_id, jumbo_jobs_total=1)) == (False, 1)
    assert outcome(operator.post("task/disable_job_cloning", jedi_task_id=task_id)) == (True, None)


def test_lists_of_tasks(operator: Api) -> None:
    listed = operator.get("task/get_tasks_modified_since", since=WEEK, dn="test", full=False, min_task_id=1)
    assert outcome(listed) == (True, {})
    for more in ({}, {"filters": '{"prodSourceLabel": "user"}'}, {"filters": '{"status": "finished|done"}'}):
        reply = operator.get("task/get_tasks_detailed_info_since", since=WEEK, **more)
        assert (reply["success"], type(reply["data"])) == (True, list)
    assert operator.get("task/get_tasks_detailed_info_since", filters="not_valid_json")["success"] is False
    assert operator.get("task/get_tasks_detailed_info_since")["success"] is True


def test_jobs_that_are_not(operator: Api) -> None:
    assert outcome(operator.get("job/get_status", job_ids=[-1]))[0]
    for call in ("get_description", "get_description_incl_archive"):
        assert outcome(operator.get(f"job/{call}", job_ids=[-1])) == (True, [None])
        assert outcome(operator.post(f"job/{call}", job_ids=[-1])) == (True, [None])
    metadata = operator.get("job/get_metadata_for_analysis_jobs", task_id=-1)
    assert metadata == {"success": True, "message": "No metadata found", "data": {}}
    assert outcome(operator.post("job/kill", job_ids=[-1])) == (True, [False])
    assert outcome(operator.post("job/reassign", job_ids=[-1])) == (True, None)
    assert operator.post("job/set_command", job_id=-1, command="x")["message"] == "no active job with PandaID=-1"


def test_the_script_of_a_job(operator: Api, server: Any) -> None:
    url = f"{server.url}/api/v1/job/generate_offline_execution_script"
    assert operator.session.get(url, params={"job_id": -1}, timeout=10).text.startswith("ERROR: Cannot get PandaID=-1")
    parameters = make_params("user.operator.script/", 1, site="SCRIPT")
    task_id = operator.submit(parameters)
    (panda_id,) = operator.get("task/get_job_ids", task_id=task_id)["data"]
    answer = operator.session.get(url, params={"job_id": panda_id}, timeout=10)
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.startswith("#!/bin/bash\n")
    assert "./runGen-00-00-02 -j" in answer.text
    as_json = operator.session.get(url, params={"job_id": panda_id}, headers={"Accept": "application/json"}, timeout=10)
    assert as_json.json() == answer.text


def test_the_system(operator: Api) -> None:
    assert outcome(operator.get("system/is_alive")) == (True, None)
    data = operator.get("system/get_attributes", test_key_string="test_value", test_key_int=12345)["data"]
    assert data["parameters"] == {"test_key_string": "test_value", "test_key_int": "12345"}
    assert operator.get("system/get_user_attributes")["data"]["is_production_user"] is True
    assert operator.get("system/get_voms_attributes")["success"] is True


def test_credentials(operator: Api) -> None:
    assert operator.post("creds/set_user_secrets", key="test_key", value="test_value") == {
        "success": True,
        "message": "OK",
        "data": None,
    }
    assert operator.get("creds/get_user_secrets", keys="test_key")["data"] == '{"test_key": "test_value"}'
    refused = {
        "get_key_pair": ({"public_key_name": "a", "private_key_name": "b"}, "not authorized with 'k'"),
        "get_proxy": ({"role": "atlas", "dn": "atlpilo2"}, "not in authorized users with 'p'"),
        "get_access_token": ({"client_name": "pilot_server"}, "to get access token"),
        "get_token_key": ({"client_name": "pilot_server"}, "not authorized with 't'"),
    }
    for call, (arguments, message) in refused.items():
        reply = operator.get(f"creds/{call}", **arguments)
        assert (reply["success"], reply["data"]) == (False, None)
        assert message in reply["message"]


def test_statistics(operator: Api, server: Any) -> None:
    pilot = server.api("pilot")
    operator.submit(make_params("user.operator.count/", 4, site="COUNT", coreCount=4))
    one, two = pilot.acquire(2, site_name="COUNT")
    pilot.update(one["PandaID"], "finished")
    pilot.update(two["PandaID"], "running")
    active = {"assigned": 0, "activated": 2, "running": 1}
    assert operator.get("statistics/active_job_stats_by_site")["data"]["COUNT"] == active
    detailed = operator.get("statistics/active_job_detailed_stats_by_site")["data"]["COUNT"]
    assert detailed == {"MCORE": {"user": active}}
    known = {**active, "finished": 1, "failed": 0}
    by_type = operator.get("statistics/job_stats_by_site_and_resource_type", time_window=12 * 60)
    assert by_type["data"]["COUNT"] == {"MCORE": known}
    by_share = operator.get("statistics/job_stats_by_site_share_and_resource_type", time_window=12 * 60)
    assert by_share["data"]["COUNT"] == {"user": {"MCORE": known}}
    assert operator.get("statistics/job_stats_by_cloud", type="analysis")["data"]["LOCAL"]["finished"] == 1
    assert operator.get("statistics/job_stats_by_cloud")["data"] == {}
    assert operator.get("statistics/production_job_stats_by_cloud_and_processing_type")["success"] is True
    assert operator.get("statistics/job_stats_by_cloud", type="odd")["success"] is False
    assert operator.get("statistics/job_stats_by_site_and_resource_type", time_window=-1)["success"] is False
    for call, name in (("get_wn_metrics_by_site", "site"), ("get_wn_metrics_by_queue", "panda_queue")):
        assert operator.get(f"statistics/{call}", **{name: "x"})["data"] == {}
        assert operator.get(f"statistics/{call}", **{name: "x"}, days=9)["success"] is False
        assert operator.get(f"statistics/{call}", **{name: "x"}, key="odd")["success"] is False


def test_what_this_server_does_not_have(operator: Api, user: Api) -> None:
    for call in ("change_staging_destination", "change_staging_source", "force_to_staging", "retire_unused"):
        for prefix in ("", "submit_"):
            path = f"data_carousel/{prefix}{call}"
            assert operator.post(path)["message"] == "either request_id or dataset must be provided"
            assert "no data carousel" in operator.post(path, dataset="scope:name")["message"]
            assert user.post(path, request_id=1)["message"] == "production or pilot role required"
    assert "no iDDS" in operator.post("idds/relay_idds_command", command_name="get_requests")["message"]
    wrong = [("odd", None, "odd is unsupported"), ("abort", "{}", "request_id is missing")]
    for command, kwargs, message in wrong:
        arguments = {"command_name": command, "kwargs": kwargs}
        assert operator.post("idds/execute_idds_workflow_command", **arguments)["message"] == message
    grep = {"pattern": "ERROR", "log_filename": "panda-server.log", "service_name": "server"}
    assert operator.post("async_process/submit_grep_request", **grep)["message"] == "'operator' is not authorized"
    assert operator.get("async_process/get_result", request_id="x")["message"] == "request_id 'x' not found"
    sleep = {"service_name": "server", "message": "hello"}
    reply = operator.post("async_process/submit_sleep_echo_request", **sleep)
    assert reply["message"] == "no alive machines found for service 'server'"
    assert outcome(operator.get("metaconfig/get_banned_users")) == (True, {})
    for kind in ("analysis", "production", "all"):
        assert outcome(operator.get("metaconfig/get_site_specs", type=kind)) == (True, {})
    assert {kind["resource_name"] for kind in operator.get("metaconfig/get_resource_types")["data"]} >= {"SCORE"}


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("task/change_priority", {"task_id": 1, "priority": 1}),
        ("task/change_attribute", {"task_id": 1, "attribute_name": "coreCount", "value": 1}),
        ("task/change_split_rule", {"task_id": 1, "attribute_name": "AI", "value": "1"}),
        ("task/change_modification_time", {"task_id": 1, "hour_offset": 1}),
        ("task/reassign_global_share", {"task_id_list": [1], "share": "x", "reassign_running_jobs": True}),
        ("task/enable_jumbo_jobs", {"task_id": 1, "jumbo_jobs_total": 1}),
        ("job/set_command", {"job_id": 1, "command": "x"}),
        ("event/update_event_ranges", {"event_ranges": "[]"}),
        ("file_server/register_cache_file", {"user_name": "a", "file_name": "b", "file_size": 1, "checksum": "1"}),
    ],
)
def test_what_wants_a_production_role(user: Api, call: str, arguments: dict[str, Any]) -> None:
    refused = {"success": False, "message": "production or pilot role required", "data": None}
    assert user.post(call, **arguments) == refused
