"""The question of `pilots keep` to a PanDA server: which jobs wait?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.hpc.keeper import Demand, PilotAccess, WaitingJobs
from hpo_pilot.jobs import JobNeeds

OURS, EVERY = "/api/v1/hpo_pilot/demand", "/api/v1/statistics/active_job_stats_by_site"
Answers = Callable[..., PilotAccess]


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Makes the access to a server that has one call and answers it in one way."""
    token = tmp_path / "token"
    token.write_text("abc\n")

    def make(call: str, data: Any, status: int = 200) -> PilotAccess:
        def send(_: object, request: requests.PreparedRequest, **__: object) -> requests.Response:
            known = request.headers["Authorization"] == "Bearer abc" and request.headers["Origin"] == "vo"
            answer = requests.Response()
            answer.status_code = status if known and urlsplit(str(request.url)).path == call else 404
            answer._content = json.dumps(data).encode()
            return answer

        monkeypatch.setattr(requests.Session, "send", send)
        return PilotAccess("http://127.0.0.1:9", "Q", token, None, "vo")

    return make


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
def test_any_server_has_counts(data: Any, expected: Demand, answers: Answers) -> None:
    assert answers(EVERY, {"success": True, "message": "", "data": data}).demand() == expected


def test_the_embedded_server_has_the_needs_of_jobs(answers: Answers) -> None:
    shape = {"jobs": 3, "since": 5.0, "nodes": 2, "gpus": 4, "cores": 8, "memory_mb": 500, "minutes": 90.0}
    needs = JobNeeds(nodes=2, gpus_per_node=4, cores=8, memory_mb=500, minutes=90.0)
    data = {"waiting": [shape], "going": 2, "offers": [], "known_for": 9.0}
    assert answers(OURS, {"success": True, "data": data}).demand() == Demand((WaitingJobs(3, needs),), 2)


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (OURS, {"data": {"waiting": [{}], "going": 2}}),
        *(
            (EVERY, one)
            for one in (None, {}, {"data": None}, {"data": {"Q": {"activated": "many"}}}, {"data": {"Q": 3}})
        ),
    ],
)
def test_an_answer_that_makes_no_sense(call: str, answer: Any, answers: Answers) -> None:
    with pytest.raises(TryAgainError, match="does not report its jobs"):
        answers(call, answer).demand()


def test_a_token_that_is_refused_or_missing_and_a_server_that_is_away(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = answers(OURS, {}, status=401)
    with pytest.raises(InputError, match="refuses the token"):
        access.demand()
    monkeypatch.undo()
    with pytest.raises(TryAgainError, match="does not report its jobs"):
        access.demand()
    access.token_file.unlink()
    with pytest.raises(InputError, match="--token-file"):
        access.demand()
