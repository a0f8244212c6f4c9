"""The pilots' calls, with requests."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hpo_pilot.hpc.capacity import AllocationRequest, AllocationRoom
from hpo_pilot.jobs.resources import Room
from hpo_pilot.protocol import PROTOCOL, PROTOCOL_HEADER
from hpo_pilot.server.tokens import Role
from tests.bearer import token
from tests.server.conftest import Api
from tests.task_parameters import make_params

WAIT = "X-HPO-Pilot-Wait"


def test_everything_that_a_pilot_may_say(user: Any, pilot: Any) -> None:
    user.submit(make_params("user.me.say/", 2, site="SAY"))
    said = {"site_name": "SAY", "prod_source_label": "user", "node": "n"}
    said |= {"timeout": 60, "memory": 4000, "disk_space": 1000}
    said |= {"computing_element": "ce", "prod_user_id": None, "get_proxy_key": "FALSE", "task_id": None, "n_jobs": 1}
    said |= {"background": False, "resource_type": "SCORE", "harvester_id": "h", "worker_id": 7, "scheduler_id": "s"}
    said |= {"job_type": "user", "via_topic": False, "remaining_time": 3600, "target_architecture": {"gpus": []}}
    reply = pilot.post("pilot/acquire_jobs", **said)
    (job,) = reply["data"]["jobs"]
    assert (reply["data"]["StatusCode"], job["StatusCode"], job["maxWalltime"]) == (0, 0, 600)
    panda_id = job["PandaID"]
    report = {"job_id": panda_id, "job_status": "running", "attempt_nr": 1, "node": "x" * 200, "job_metrics": "m" * 600}
    report |= {"pilot_id": "p", "batch_id": "b", "start_time": "2025-01-01 10:00:00", "end_time": "no time"}
    report |= {"core_count": 1, "mean_core_count": 0.5, "max_rss": 10, "avg_rss": 9.5, "tot_rchar": 2048, "n_events": 1}
    report |= {"cpu_consumption_time": 12, "cpu_conversion_factor": 1.0, "job_sub_status": "s", "pilot_log": "log"}
    report |= {"stdout": "out", "site_name": "SAY", "scheduler_id": "s", "timeout": 60}
    assert pilot.post("pilot/update_job", **report)["data"] == {"StatusCode": 0, "command": None}
    (described,) = user.post("job/get_description", job_ids=[panda_id])["data"]
    assert (len(described["modificationHost"]), len(described["jobMetrics"])) == (128, 500)
    assert (described["maxRSS"], described["totRCHAR"], described["jobSubStatus"]) == (10, 2.0, "s")
    assert described["startTime"] == {"__datetime__": "2025-01-01T10:00:00"}


def test_pilots_two_versions_apart_get_no_jobs_and_can_report(user: Any, pilot: Any) -> None:
    user.submit(make_params("user.me.apart/", 2, site="APART"))
    ask = f"{pilot.url}/api/v1/pilot/acquire_jobs"
    for number, older in ((PROTOCOL + 2, "server"), (-1, "pilot")):
        headers = {PROTOCOL_HEADER: str(number)}
        answer = pilot.session.post(ask, json={"site_name": "APART"}, headers=headers, timeout=600)
        assert (answer.status_code, answer.json()["success"]) == (426, False)
        assert answer.json()["message"].endswith(f"upgrade hpo-pilot of the {older}")
    for number in (PROTOCOL - 1, PROTOCOL + 1):
        reply = pilot.post("pilot/acquire_jobs", headers={PROTOCOL_HEADER: str(number)}, site_name="APART")
        (job,) = reply["data"]["jobs"]
    report = {"job_id": job["PandaID"], "job_status": "running", "attempt_nr": 1}
    assert pilot.post("pilot/update_job", headers={PROTOCOL_HEADER: str(PROTOCOL + 2)}, **report)["success"]


def test_reports_on_several_jobs(user: Any, pilot: Any, server: Any) -> None:
    user.submit(make_params("user.me.many/", 4, site="MANY"))
    one, two, three, four = (job["PandaID"] for job in pilot.acquire(4, site_name="MANY"))
    user.post("job/kill", job_ids=[two])
    reports: list[dict[str, Any]] = [
        {"job_id": one, "job_status": "running", "attempt_nr": 1, "core_count": 3},
        {"job_id": two, "job_status": "running", "attempt_nr": 1},
        {"job_id": three, "job_status": "dancing"},
        {"job_id": three, "job_status": "running", "node": 7},
        {"job_id": three, "job_status": "running", "nodes": "n"},
        {"job_id": 10**9, "job_status": "running"},
        {"job_id": four, "job_status": "finished", "attempt_nr": 1, "meta_data": {"user_job_metadata": {}}},
    ]
    reply = pilot.post("pilot/update_jobs_bulk", job_list=reports, harvester_id="h")
    single = [pilot.post("pilot/update_job", **report) for report in reports[:-1]]
    assert (reply["success"], reply["message"], reply["data"][:-1]) == (True, "", single)
    assert [one["success"] for one in reply["data"]] == [True, True, False, False, False, True, True]
    assert [one["data"] and one["data"].get("command") for one in reply["data"]] == (
        [None, "tobekilled", None, None, None, "tobekilled", None]
    )
    described = user.post("job/get_description", job_ids=[one, three, four])["data"]
    assert [job["jobStatus"] for job in described] == ["running", "sent", "finished"]
    assert described[0]["actualCoreCount"] == 3


@pytest.mark.parametrize(
    ("reports", "message"),
    [
        ([{"job_id": 1, "job_status": "running"}, {"job_status": "running"}], "failed with KeyError 'job_id'"),
        ([{"job_id": 1}], "failed with KeyError 'job_status'"),
        ([{"job_id": 1, "job_status": "running"}] * 1001, "at most 1000 jobs"),
    ],
)
def test_lists_of_reports_that_are_refused(pilot: Any, reports: list[dict[str, Any]], message: str) -> None:
    reply = pilot.post("pilot/update_jobs_bulk", job_list=reports)
    assert (reply["success"], reply["data"]) == (False, []) and message in reply["message"]


def test_workers(user: Any, pilot: Any) -> None:
    user.submit(make_params("user.me.worker/", 1, site="WORKER", maxAttempt=2))
    worker = {"harvester_id": "hpo", "worker_id": "w-1"}
    pilot.acquire(site_name="WORKER", **worker)
    for status, good in {"started": True, "odd": False, "failed": True}.items():
        assert pilot.post("pilot/update_worker_status", status=status, **worker)["success"] is good
    (again,) = pilot.acquire(site_name="WORKER", **worker)
    assert again["attemptNr"] == 2
    node = {"site": "S", "host_name": "slot1@node", "cpu_model": "c", "n_logical_cpus": 4, "clock_speed": 2000.0}
    assert pilot.post("pilot/update_worker_node", **node)["success"] is True
    gpu = {"site": "S", "host_name": "node", "vendor": "NVIDIA", "model": "A100", "count": 2, "vram": 40960}
    assert pilot.post("pilot/update_worker_node_gpu", **gpu)["success"] is True


def test_a_waiting_pilot_gets_the_job_the_moment_it_comes(server: Any, user: Any) -> None:
    def ask() -> list[dict[str, Any]]:
        reply = server.api("pilot").post("pilot/acquire_jobs", headers={WAIT: "30"}, site_name="LONG")
        return list(reply["data"]["jobs"])

    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(ask) for _ in range(3)]
        time.sleep(0.5)
        assert not any(one.done() for one in waiting)
        user.submit(make_params("user.me.long1/", 2, site="LONG"))
        user.submit(make_params("user.me.long2/", 1, site="LONG"))
        given = [one.result() for one in waiting]
    assert len({jobs[0]["PandaID"] for jobs in given}) == 3


def test_a_pilot_that_hung_up_while_waiting_gets_no_job(server: Any, user: Any) -> None:
    """Its job would be silent until it counts as lost."""
    with pytest.raises(Exception, match="timed out"):
        server.api("pilot").session.post(
            f"{server.url}/api/v1/pilot/acquire_jobs", json={"site_name": "GONE"}, headers={WAIT: "20"}, timeout=0.3
        )
    task_id = user.submit(make_params("user.me.gone/", 1, site="GONE"))
    time.sleep(0.3)
    assert user.get("task/get_details", task_id=task_id)["data"]["statistics"] == "activated*1"


def test_changes(server: Any, user: Any, pilot: Any) -> None:
    you = Api(server.url, token("somebody", Role.USER))  # without tasks of other tests
    task_id = user.submit(make_params("user.me.changes/", 1, site="CHANGES"))
    start = user.get("hpo_pilot/changes", cursor=-1)["data"]
    assert task_id in start["task_ids"]
    assert you.get("hpo_pilot/changes", cursor=-1)["data"]["task_ids"] == []
    assert user.get("hpo_pilot/changes", cursor=start["cursor"])["data"] == {"cursor": start["cursor"], "task_ids": []}
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(server.api("me").get, "hpo_pilot/changes", cursor=start["cursor"], timeout=30)
        time.sleep(0.3)
        you.submit(make_params("user.somebody.changes/", 1, site="CHANGES"))  # somebody else's
        time.sleep(0.3)
        assert not waiting.done()
        (job,) = pilot.acquire(site_name="CHANGES", task_id=task_id)
        data = waiting.result()["data"]
    assert data["task_ids"] == [task_id]
    assert data["cursor"] > start["cursor"]
    pilot.update(job["PandaID"], "finished")
    after = user.get("hpo_pilot/changes", cursor=data["cursor"], timeout=5)["data"]
    assert after["task_ids"] == [task_id]
    assert task_id not in user.get("hpo_pilot/changes", cursor=-1)["data"]["task_ids"]
    assert task_id in server.api("operator").get("hpo_pilot/changes", cursor=0)["data"]["task_ids"]
    # A cursor from a database that was lost: a fresh start instead of an endless wait.
    assert user.get("hpo_pilot/changes", cursor=10**9, timeout=20)["data"]["cursor"] >= after["cursor"]


@pytest.mark.parametrize("tasks", ["[Infinity]", "[1e30]", f"[{10**30}]", "[null]", "7"])
def test_tasks_to_avoid_that_are_none(pilot: Any, tasks: str) -> None:
    headers = {"X-HPO-Pilot-Avoids": f'{{"tasks": {tasks}, "why": "no launcher"}}'}
    reply = pilot.post("pilot/acquire_jobs", headers=headers, site_name="NODES", n_jobs=1)
    assert reply["success"] is False
    assert "X-HPO-Pilot-Avoids" in reply["message"]


def test_an_allocation_says_what_it_has_room_for(user: Any, pilot: Any) -> None:
    user.submit(make_params("user.me.nodes/", 2, site="NODES", hpoNodes=3, coreCount=2))
    ask = {"site_name": "NODES", "n_jobs": 5}
    openings = "X-HPO-Pilot-Openings"
    assert pilot.post("pilot/acquire_jobs", headers={"X-HPO-Pilot-Cores": "1"}, **ask)["message"] == "No jobs in PanDA"
    assert pilot.post("pilot/acquire_jobs", **ask)["success"] is False
    told = AllocationRequest(AllocationRoom([Room(2, (), 2, 9000, 1e6)]), (), {}).to_text()
    assert pilot.post("pilot/acquire_jobs", headers={openings: told}, **ask)["success"] is False
    told = AllocationRequest(AllocationRoom([Room(4, (), 2, 9000, 1e6)]), (), {}).to_text()
    (job,) = pilot.post("pilot/acquire_jobs", headers={openings: told}, **ask)["data"]["jobs"]
    assert job["hpoCampaign"] == "me/task/user.me.nodes/"
    reply = pilot.post("pilot/acquire_jobs", headers={openings: '{"now": [[1]]}'}, **ask)
    assert reply["success"] is False
    assert "no openings of an allocation" in reply["message"]
