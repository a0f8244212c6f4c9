from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.hpc.keeper import Demand, PilotAccess, WaitingJobs
from hpo_pilot.jobs import JobNeeds


class Handler(BaseHTTPRequestHandler):
    status = 200
    answer: Any = None
    is_ours = False

    def do_GET(self) -> None:
        call = "hpo_pilot/demand?queue=Q" if type(self).is_ours else "statistics/active_job_stats_by_site"
        known = self.headers["Authorization"] == "Bearer abc" and self.headers["Origin"] == "vo"
        asked = self.path == f"/api/v1/{call}"
        body = json.dumps(type(self).answer).encode()
        self.send_response(type(self).status if known and asked else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[type[Handler], str]]:
    handler = type("OwnHandler", (Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield handler, f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("abc\n")
    return path


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, Demand((), 0)),
        ({"OTHER": {"activated": 9}}, Demand((), 0)),
        # `defined` are those of paused tasks; `throttled` is a state of real servers alone.
        (
            {"Q": {"activated": 3, "defined": 5, "running": 2, "sent": 1, "throttled": 1, "finished": 7}},
            Demand((WaitingJobs(3),), 4),
        ),
    ],
)
def test_demand(data: Any, expected: Demand, server: tuple[type[Handler], str], token: Path) -> None:
    handler, url = server
    handler.answer = {"success": True, "message": "", "data": data}
    assert PilotAccess(url, "Q", token, None, "vo").demand() == expected


def test_a_server_of_ours_tells_what_jobs_need(server: tuple[type[Handler], str], token: Path) -> None:
    handler, url = server
    handler.is_ours = True
    shape = {"jobs": 3, "since": 5.0, "nodes": 2, "gpus": 4, "cores": 8, "memory_mb": 500, "minutes": 90.0}
    handler.answer = {"success": True, "data": {"waiting": [shape], "going": 2, "offers": [], "known_for": 9.0}}
    needs = JobNeeds(nodes=2, gpus_per_node=4, cores=8, memory_mb=500, minutes=90.0)
    assert PilotAccess(url, "Q", token, None, "vo").demand() == Demand((WaitingJobs(3, needs),), 2)
    handler.answer = {"success": True, "data": {"waiting": [{}], "going": 2}}
    with pytest.raises(TryAgainError, match="does not tell of its jobs"):
        PilotAccess(url, "Q", token, None, "vo").demand()


@pytest.mark.parametrize(
    "answer", [None, {}, {"data": None}, {"data": {"Q": {"activated": "many"}}}, {"data": {"Q": 3}}]
)
def test_an_answer_that_makes_no_sense(answer: Any, server: tuple[type[Handler], str], token: Path) -> None:
    handler, url = server
    handler.answer = answer
    with pytest.raises(TryAgainError, match="does not tell of its jobs"):
        PilotAccess(url, "Q", token, None, "vo").demand()


def test_a_token_that_is_refused_or_missing(server: tuple[type[Handler], str], token: Path) -> None:
    handler, url = server
    handler.status = 401
    with pytest.raises(InputError, match="refuses the token"):
        PilotAccess(url, "Q", token, None, "vo").demand()
    with pytest.raises(InputError, match="--token-file"):
        PilotAccess(url, "Q", token.with_name("other"), None, "vo").demand()


def test_a_server_that_is_away(token: Path) -> None:
    with pytest.raises(TryAgainError, match="does not tell of its jobs"):
        PilotAccess("http://127.0.0.1:9", "Q", token, None, "vo").demand()
