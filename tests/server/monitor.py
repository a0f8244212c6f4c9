"""BigPanDA's pages of a server, and jobs that ended in all ways."""

from __future__ import annotations

import json
from typing import Any

from tests.server.conftest import Api, RunningServer
from tests.task_parameters import make_params

REPORT = {"exitCode": 0}


def said(loss: float | None, x: float, **more: Any) -> dict[str, Any]:
    """The metadata of the runner."""
    row = {"x": x, "loss": loss, "time_s": 2.0, "timestamp": 1_750_000_002}
    return {
        "project_name": "demo",
        "start_datetime": "06/15/2025, 15:06:40",
        "end_datetime": "06/15/2025, 15:06:42",
        "start_timestamp": 1_750_000_000.0,
        "task_time_s": 2.0,
        "hyperparameters": ["x"],
        "metric": "loss",
        "mode": "min",
        "best_config": {"x": x} if loss is not None else None,
        "best_metric_score": loss,
        "result": {"0": row} if loss is not None else {},
        "hpo_pilot": {"value": loss, "trial": 1, "hpogrid": 1},
        **more,
    }


class Monitor:
    """The server's pages, as `me` reads them."""

    def __init__(self, server: RunningServer) -> None:
        self.server, self.url = server, server.url
        self.me: Api = server.api("me")
        self.pilot: Api = server.api("pilot")

    def get(self, path: str, code: int = 200, **params: Any) -> Any:
        answer = self.me.session.get(self.url + path, params=params, timeout=600)
        assert answer.status_code == code, answer.text[:500]
        assert answer.headers["Content-Type"] == "application/json"
        return answer.json()

    def run(self, name: str, ends: list[dict[str, Any]], **params: Any) -> tuple[int, list[int]]:
        """Runs a task whose jobs end like this; returns its id and theirs."""
        queue = name.rsplit(".", 1)[-1].rstrip("/").upper()
        params = {"maxAttempt": 1, "site": queue, **params}
        task_id = self.me.submit(make_params(name, len(ends), **params) | {"jobParameters": BARE})
        given = self.pilot.acquire(len(ends), site_name=queue, node="n1")
        for job, end in zip(given, ends, strict=True):
            self.pilot.update(job["PandaID"], "running", start_time="2026-01-31 12:00:00")
            if end:
                self.pilot.update(job["PandaID"], **{"status": "finished", **end})
        return task_id, [job["PandaID"] for job in given]


#: Without a sandbox, which the task would wait for.
BARE = [part for part in make_params()["jobParameters"] if "-a sources" not in part.get("value", "")]


def finished(*args: Any, **more: Any) -> dict[str, Any]:
    return {"meta_data": json.dumps(REPORT | {"user_job_metadata": said(*args, **more)})}


FAILED = {
    "status": "failed",
    "trans_exit_code": 65,
    "pilot_error_code": 1305,
    "pilot_error_diag": "Failed to execute payload",
    "exe_error_code": 65,
    "exe_error_diag": "the node had no memory left",
    "mean_core_count": 3.5,
}
