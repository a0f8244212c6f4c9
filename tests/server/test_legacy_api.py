"""The legacy API of pilots, as Pilot 3 and curl call it: forms in, forms or JSON out."""

from __future__ import annotations

import gzip
import json
from typing import Any
from urllib.parse import parse_qs, parse_qsl

import pytest

from hpo_pilot.server.pilot_calls import LEGACY
from tests.server.conftest import Api, send
from tests.task_parameters import make_params


def form(pilot: Api, function: str, **arguments: Any) -> str:
    """The answer as text, to somebody who does not accept JSON."""
    answer = pilot.session.post(f"{pilot.url}/server/panda/{function}", data=arguments, timeout=600)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    return answer.text


GET_JOB = {"computingElement": "CE", "prodSourceLabel": "user", "diskSpace": 1000, "workingGroup": "", "node": "wn1"}
GET_JOB |= {"cpu": "2400.5", "mem": "4000.0"}


def test_a_job_of_a_pilot3(user: Any, pilot: Api) -> None:
    task_id = user.submit(make_params("user.me.legacy/", 1, site="OLD"))
    job = pilot.legacy("getJob", siteName="OLD", **GET_JOB)
    assert (job["StatusCode"], job["taskID"], job["attemptNr"]) == (0, task_id, 1)
    assert pilot.legacy("getJob", siteName="OLD", **GET_JOB) == {"StatusCode": 20, "errorDialog": "no jobs in PanDA"}
    report = {"jobId": job["PandaID"], "siteName": "OLD", "node": "wn1", "attemptNr": 1, "coreCount": 1}
    report |= {"timestamp": "2026-01-01T00:00:00", "cpuConsumptionUnit": "s+Intel", "maxRSS": "1024"}
    report |= {"meanCoreCount": "1.5", "new": "thing"}
    assert pilot.legacy("updateJob", state="starting", **report) == {"StatusCode": 0, "command": "NULL"}
    assert pilot.legacy("updateJob", state="running", startTime="2026-01-01 00:00:00", **report)["command"] == "NULL"
    (described,) = user.post("job/get_description", job_ids=[job["PandaID"]])["data"]
    assert (described["jobStatus"], described["maxRSS"], described["actualCoreCount"]) == ("running", 1024, 1)
    assert (described["computingElement"], described["startTime"]) == ("CE", {"__datetime__": "2026-01-01T00:00:00"})
    metadata = json.dumps({"user_job_metadata": {"loss": 0.0}})
    report |= {"metaData": metadata, "xml": "{}", "pilotLog": "log", "pilotErrorCode": 0, "transExitCode": "0"}
    assert pilot.legacy("updateJob", state="finished", **report) == {"StatusCode": 0, "command": "NULL"}
    assert pilot.legacy("updateJob", state="finished", **report)["command"] == "NULL"  # its answer was lost
    assert pilot.legacy("updateJob", state="failed", **report)["command"] == "alreadydone"
    assert user.get("task/get_status", task_id=task_id)["data"] == "done"
    found = user.get("job/get_metadata_for_analysis_jobs", task_id=task_id)["data"]
    assert found == {str(job["PandaID"]): {"user_job_metadata": {"loss": 0.0}}}


def test_clients_without_json_get_forms(user: Any, pilot: Api) -> None:
    user.submit(make_params("user.me.form/", 2, site="FORM"))
    job = dict(parse_qsl(form(pilot, "getJob", siteName="FORM", **GET_JOB), keep_blank_values=True))
    assert (job["StatusCode"], job["inFiles"], job["attemptNr"]) == ("0", "", "1")
    assert "--sourceURL" in job["jobPars"]
    other = dict(parse_qsl(form(pilot, "getJob", siteName="FORM", **GET_JOB), keep_blank_values=True))
    assert form(pilot, "getJob", siteName="FORM", **GET_JOB) == "StatusCode=20"
    answer = form(pilot, "updateJob", jobId=job["PandaID"], state="running", attemptNr=1)
    assert answer == "StatusCode=0&command=NULL"
    ids = [job["PandaID"], other["PandaID"]]
    states = parse_qs(form(pilot, "getStatus", ids=f"{ids[0]} 987654321 {ids[1]}"))
    assert states == {"StatusCode": ["0"], "status": ["running+notfound+sent"], "attemptNr": ["1+0+1"]}


def test_pilots_get_commands_with_answers(user: Any, pilot: Api) -> None:
    task_id = user.submit(make_params("user.me.command/", 1, site="COMMAND"))
    job = pilot.legacy("getJob", siteName="COMMAND", **GET_JOB)
    report = {"jobId": job["PandaID"], "state": "running"}
    assert pilot.legacy("updateJob", attemptNr=2, **report)["command"] == "badattemptnr"
    assert pilot.legacy("updateJob", attemptNr=1, **report | {"jobId": 987654321})["command"] == "tobekilled"
    assert user.post("job/set_debug_mode", job_id=job["PandaID"], mode=True)["success"]
    assert pilot.legacy("updateJob", attemptNr=1, **report)["command"] == "debug"
    assert user.post("task/kill", task_id=task_id)["success"]
    assert pilot.legacy("updateJob", attemptNr=1, **report)["command"] == "debug,tobekilled"
    end = {**report, "state": "failed", "pilotErrorCode": "1144", "pilotErrorDiag": "killed by the server"}
    assert pilot.legacy("updateJob", attemptNr=1, **end)["command"] == "NULL"
    (described,) = user.post("job/get_description", job_ids=[job["PandaID"]])["data"]
    assert (described["jobStatus"], described["pilotErrorCode"]) == ("cancelled", 1144)
    assert pilot.legacy("updateJob", attemptNr=1, **report)["command"] == "tobekilled"
    assert pilot.legacy("updateJob", jobId="NULL", state="failed") == {"StatusCode": 0}
    assert pilot.legacy("updateJob", jobId=job["PandaID"], state="odd") == {"StatusCode": 0}


def test_compressed_json_arguments(server: Any, user: Any) -> None:
    user.submit(make_params("user.me.packed/", 1, site="PACKED"))
    body = gzip.compress(json.dumps({"siteName": "PACKED", "prodSourceLabel": "user", "viaTopic": True}).encode())
    headers = {"Content-Type": "application/json"}
    response = send(server, "POST", "/server/panda/getJob", "token-of-pilot", data=body, headers=headers)
    assert parse_qs(response.text)["StatusCode"] == ["0"]


def test_workers(user: Any, pilot: Api) -> None:
    task_id = user.submit(make_params("user.me.oldworker/", 1, site="OLDW", maxAttempt=1))
    worker = {"site": "OLDW", "workerID": "7", "harvesterID": "old"}
    assert pilot.legacy("updateWorkerPilotStatus", status="started", **worker) == {"StatusCode": 0}
    job = pilot.legacy("getJob", siteName="OLDW", harvester_id="old", worker_id="7", **GET_JOB)
    assert "Invalid worker state" in form(pilot, "updateWorkerPilotStatus", status="odd", **worker)
    assert form(pilot, "updateWorkerPilotStatus", status="finished", **worker) == "StatusCode=0"
    assert user.get("task/get_status", task_id=task_id)["data"] == "failed"
    assert parse_qs(form(pilot, "getStatus", ids=str(job["PandaID"])))["status"] == ["failed"]


def test_resource_types_and_tokens(pilot: Api) -> None:
    names = [kind["resource_name"] for kind in pilot.legacy("getResourceTypes")["ResourceTypes"]]
    assert names == ["SCORE", "MCORE", "SCORE_HIMEM", "MCORE_HIMEM"]
    assert pilot.legacy("get_access_token", client_name="c")["StatusCode"] == 90


@pytest.mark.parametrize("name", ["updateJobsInBulk", "harvesterIsAlive", "getEventRanges", "put_checkpoint", "x"])
def test_unknown_calls_are_refused(server: Any, name: str) -> None:
    for alias in (None, "token-of-pilot"):
        answer = send(server, "POST", f"/server/panda/{name}", alias, data={"a": 1})
        assert (answer.status_code, answer.text) == (404, f"ERROR : {name} is not provided by this server")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("getJob", {}),
        ("updateJob", {"jobId": "x", "state": "running"}),
        ("updateJob", {"jobId": "1" * 30, "state": "running"}),
        ("updateJob", {"jobId": "1"}),
        ("updateJob", {"jobId": "1", "state": "running", "node": "a\0b"}),
    ],
)
def test_wrong_arguments_are_refused(pilot: Api, function: str, arguments: dict[str, Any]) -> None:
    response = pilot.session.post(f"{pilot.url}/server/panda/{function}", data=arguments, timeout=600)
    assert (response.status_code, response.text[:8]) == (400, "ERROR : ")


def test_no_argument_breaks_a_call(server: Any, pilot: Api) -> None:
    """Invalid numbers, lists, empty values: the status is below 500."""
    odd = ["", "NULL", "-1", "1e400", "nan", "[]", "{}", "9" * 40, "é", "None"]
    names = ["siteName", "jobId", "state", "ids", "harvesterID", "harvester_id", "status", "workerID", "attemptNr"]
    names += ["mem", "diskSpace", "remaining_time", "taskID", "maxRSS", "client_name"]
    for function in LEGACY:
        for value in odd:
            arguments: dict[str, Any] = dict.fromkeys(names, value)
            for given in (arguments, arguments | {"state": "running"}):
                response = pilot.session.post(f"{pilot.url}/server/panda/{function}", data=given, timeout=600)
                assert response.status_code < 500, (function, value, response.text)
