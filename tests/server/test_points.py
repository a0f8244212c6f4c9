"""iDDS's REST for points: by token, and by the capability of a job."""

from __future__ import annotations

import base64
import json
import math
import re
import stat
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests

from hpo_pilot.errors import InputError
from hpo_pilot.server.points import _KEPT, _KEPT_BYTES, CAPABILITY_KEY, _Recent
from hpo_pilot.server.tokens import Capabilities
from tests.server.conftest import bearer, send
from tests.task_parameters import make_params

POINTS = {"1": {"x": 0.25, "act": "relu"}, "2": {"x": 0.5, "act": "tanh"}, "7": {"x": 1, "act": "relu"}}


def encode(document: Any) -> str:
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(document).encode())).decode()


def with_points(params: dict[str, Any], encoded: str) -> dict[str, Any]:
    """The parameters of a task that carries points as hpo-pilot's do."""
    (place,) = [item for item in params["jobParameters"] if "runner" in str(item["value"])]
    place["value"] = quote(f"python3 -I -S hpo_pilot_runner.py --task {encoded} --number ")
    return params


class Points:
    """Calls of iDDS's REST, and tasks of a queue of their own."""

    def __init__(self, server: Any, queue: str) -> None:
        self.server, self.queue = server, queue
        self.pilot = server.api("pilot")

    def submit(self, entries: list[Any], **more: Any) -> int:
        """Submits a task with a job per entry."""
        given = make_params(f"user.me.{self.queue}/", len(entries), site=self.queue, **more)
        encoded = encode({"jobs": entries, "points": POINTS})
        return int(self.server.api("me").submit(with_points(given, encoded)))

    def acquire(self, count: int = 9) -> list[tuple[dict[str, Any], str]]:
        """Returns jobs, each with the address of its points."""
        found = self.pilot.acquire(count, site_name=self.queue)
        return [(job, f"/points/{job[CAPABILITY_KEY]}/idds/hpo/{job['taskID']}/null") for job in found]

    def get(self, path: str, alias: str | None = "token-of-me", method: str = "GET") -> requests.Response:
        return send(self.server, method, path, alias)

    def put(self, path: str, alias: str | None = "token-of-me") -> requests.Response:
        return self.get(path, alias, "PUT")

    def loss(self, task: int, number: int) -> float | None:
        """Returns the loss of a point."""
        (point,) = self.get(f"/idds/hpo/{task}/null/{number}/null/null").json()
        loss: float | None = point["loss"]
        return loss


@pytest.fixture
def points(server: Any, request: pytest.FixtureRequest) -> Points:
    return Points(server, re.sub(r"\W", "_", request.node.name))


def test_points_by_token(points: Points) -> None:
    task = points.submit([[1, 0, 5], [2, 0, 5], [7, 0, 5]])
    every = [{"id": number, "parameters": POINTS[key], "loss": None} for number, key in enumerate("127", 1)]
    for named in (f"{task}/null", f"null/{task}", f"{task}/{task}"):
        assert points.get(f"/idds/hpo/{named}/null/null/null", "token-of-you").json() == every
    assert points.get(f"/idds/hpo/{task}/null/2/null/null").json() == every[1:2]
    assert points.get(f"/idds/hpo/{task}/null/null/null/2").json() == every[:2]
    assert points.get(f"/idds/hpo/{task}/null/9/null/null").json() == []
    (job, _), *_ = points.acquire(1)
    points.pilot.update(job["PandaID"], "running")
    assert points.put(f"/idds/hpo/{task}/null/2/0.0").json() == {"status": 0, "message": "update successfully"}
    for status, ids in {"New": [3], "processing": [1], "Finished": [2], "0": [3], "1": [1], "2": [2]}.items():
        found = points.get(f"/idds/hpo/{task}/null/null/{status}/null").json()
        assert [point["id"] for point in found] == ids
    assert points.loss(task, 2) == 0.0
    assert points.put(f"/idds/hpo/{task}/null/2/null").ok
    assert points.loss(task, 2) is None
    points.pilot.update(job["PandaID"], "finished")
    (found,) = points.get(f"/idds/hpo/{task}/null/null/Finished/null").json()
    assert (found["id"], found["loss"]) == (1, None)


def test_access_by_token(points: Points) -> None:
    task = points.submit([[1, 0, 5]])
    path = f"/idds/hpo/{task}/null/1"
    for alias in (None, "wrong"):
        assert points.get(f"{path}/null/null", alias).status_code == 401
        assert points.put(f"{path}/1.5", alias).status_code == 401
    assert points.put(f"{path}/1.5", "token-of-you").status_code == 403
    assert points.put(f"{path}/1.5", "token-of-pilot").status_code == 403
    assert points.get(f"{path}/null/null", "token-of-pilot").json()[0]["loss"] is None
    assert points.put(f"{path}/1.5", "token-of-operator").ok
    assert points.put(f"{path}/2.5").ok
    assert points.get(f"{path}/null/null").json()[0]["loss"] == 2.5


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/null/null/1/null/null", 400, "WrongParameterException"),
        ("GET", "/x/null/1/null/null", 400, "WrongParameterException"),
        ("GET", "/TASK/null/x/null/null", 400, "WrongParameterException"),
        ("GET", "/TASK/null/1/odd/null", 400, "WrongParameterException"),
        ("GET", "/TASK/null/1/null/-1", 400, "WrongParameterException"),
        ("GET", "/TASK/1/1/null/null", 404, "NoObject"),
        ("GET", "/999999999/null/1/null/null", 404, "NoObject"),
        ("GET", f"/{10**18}/null/1/null/null", 400, "WrongParameterException"),
        ("PUT", "/999999999/null/1/1.0", 404, "NoObject"),
        ("PUT", "/TASK/null/9/1.0", 404, "NoObject"),
        ("PUT", "/TASK/null/null/1.0", 404, "NoObject"),
        ("PUT", "/TASK/null/1/x", 400, "WrongParameterException"),
        ("PUT", "/TASK/null/1/nan", 400, "WrongParameterException"),
        ("PUT", "/TASK/null/1/-inf", 400, "WrongParameterException"),
    ],
)
def test_wrong_calls_are_refused(points: Points, method: str, path: str, status: int, kind: str) -> None:
    task = points.submit([[1, 0, 5], [2, 0, 5]])
    path = f"/idds/hpo{path.replace('TASK', str(task))}"
    answer = points.get(path, method=method)
    assert (answer.status_code, answer.headers["ExceptionClass"]) == (status, kind), answer.text
    assert json.loads(answer.headers["ExceptionMessage"]) == answer.json()
    in_body = points.get(f"{path}?json_outputs=true", method=method).json()
    assert (in_body["status"], in_body["data"], in_body["error"]["ExceptionClass"]) == (status, None, kind)


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "AAAA",
        "abc",
        encode([]),
        encode({"jobs": [[1, 0, 5]], "points": {}}),
        encode({"jobs": [[1]], "points": POINTS}),
        encode({"jobs": [[]], "points": POINTS}),
        encode({"jobs": 7, "points": POINTS}),
        encode({"jobs": [[1, 0, 5]] * 2, "points": {"1": "text"}}),
    ],
)
def test_tasks_without_points(points: Points, encoded: str) -> None:
    name = f"none{abs(hash(encoded))}"
    task = points.server.api("me").submit(with_points(make_params(f"user.me.{name}/", 1, site="NOPOINTS"), encoded))
    assert points.get(f"/idds/hpo/{task}/null/null/null/null").status_code == 404


def test_texts_of_tasks_are_kept_by_their_size() -> None:
    recent, jobs, points = _Recent(), [[n, 0, 1] for n in range(1, 9)], {str(n): {"x": n} for n in range(1, 9)}
    more = {"search": "s", "uid": "u", "generation": 1, "jobs": jobs, "points": points}
    more["more"] = "x" * (_KEPT_BYTES // 30)
    first = encode({**more, "number": 0})
    assert len(first) < 100_000
    read = recent.read(first)
    assert read.assignment is not None and read.assignment.members[8] == ((8, 0),)
    assert read.rows[7] == (8, 8, 0, {"x": 8})
    for number in range(1, 20):
        recent.read(encode({**more, "number": number}))
        assert recent.read(first) is read, "the least used ones go"
    assert len(recent._found) == 2
    for number in range(_KEPT):
        recent.read(f"nonsense {number}")
    assert len(recent._found) == _KEPT and recent.read("nonsense 1").assignment is None
    for number in range(50):
        recent.read("A" * (_KEPT_BYTES // 32) + str(number))
    assert sum(map(len, recent._found)) <= _KEPT_BYTES
    assert recent.read(encode({**more, "generation": math.inf})).assignment is None


def test_the_capability_of_a_job(points: Points) -> None:
    task = points.submit([[1, 0, 5], [2, 0, 5]], maxAttempt=2)
    (one, first), (two, second) = points.acquire()
    assert one[CAPABILITY_KEY] != two[CAPABILITY_KEY]
    assert points.get(f"{first}/null/null/null", None).json() == [{"id": 1, "parameters": POINTS["1"], "loss": None}]
    assert points.get(f"{second}/null/New/null", None).json() == []
    assert points.put(f"{first}/1/-3e-7", None).ok
    assert points.put(f"{second}/1/9.0", None).status_code == 404, "another job's point"
    assert points.loss(task, 1) == -3e-7
    other_task = first.replace(f"/{task}/", f"/{task + 1}/")
    for path in (f"/points/{'x' * 40}/idds/hpo/{task}/null", other_task, first.replace("/points/", "/points/1")):
        answer = points.get(f"{path}/null/null/null", "token-of-operator")
        assert (answer.status_code, answer.json()["msg"]) == (403, "this address is not of a running job")
    points.pilot.update(one["PandaID"], "failed", pilot_error_code=1)
    assert points.get(f"{first}/null/null/null", None).status_code == 403, "it ends with the attempt"
    assert points.put(f"{first}/1/5.0", None).status_code == 403
    ((_, again),) = points.acquire()
    assert points.get(f"{again}/null/null/null", None).json()[0]["loss"] == -3e-7
    assert one[CAPABILITY_KEY] not in points.server.log.read_text()


def test_several_points_in_a_job(points: Points) -> None:
    task = points.submit([[[1, 0, 5], [1, 1, 6]], [[2, 0, 5], [7, 0, 5]]])
    _, (_, second) = points.acquire()
    assert [point["id"] for point in points.get(f"{second}/null/null/null", None).json()] == [3, 4]
    own = second.replace("/idds/", "/t7f0/idds/")
    assert points.get(f"{own}/null/null/null", None).json() == [{"id": 4, "parameters": POINTS["7"], "loss": None}]
    assert points.put(f"{own}/null/0.5", None).ok
    assert points.loss(task, 4) == 0.5
    for member in ("t1f0", "t7f1"):
        assert points.get(second.replace("/idds/", f"/{member}/idds/") + "/null/null/null", None).json() == []
    assert points.get(second.replace("/idds/", "/x/idds/") + "/null/null/null", None).status_code == 404


def test_the_client_of_idds(points: Points) -> None:
    """idds-client's HPOClient, with the token where it puts it."""
    from idds.client.hpoclient import HPOClient
    from idds.common.exceptions import NoObject

    task = points.submit([[1, 0, 5], [2, 0, 5]])
    auth = {"auth_type": "oidc", "oidc_token": bearer("token-of-me"), "vo": "hpo_pilot"}
    client = HPOClient(host=f"{points.server.url}/idds", auth=auth, timeout=600)
    found = client.get_hyperparameters(workload_id=task, request_id=None, limit=1)
    assert found == [{"id": 1, "parameters": POINTS["1"], "loss": None}]
    client.update_hyperparameter(task, None, 2, 0.0)
    assert client.get_hyperparameters(None, task, id=2)[0]["loss"] == 0.0
    client.update_hyperparameter(task, None, 2, None)
    assert client.get_hyperparameters(task, None, id=2)[0]["loss"] is None
    with pytest.raises(NoObject):
        client.update_hyperparameter(task, None, 3, 1.0)


def test_the_secret_is_kept_and_private(tmp_path: Path) -> None:
    first = Capabilities(tmp_path / "key").of(7)
    again = Capabilities(tmp_path / "key")
    assert (again.of(7), again.job(first), again.job(first + "x"), again.job("7-x"), again.job("é-x")) == (
        (first, 7, None, None, None)
    )
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    (tmp_path / "key").write_bytes(b"")  # after a power cut
    assert Capabilities(tmp_path / "key").of(7) not in (first, "")
    (tmp_path / "key").write_bytes(b"half")
    with pytest.raises(InputError, match="damaged"):
        Capabilities(tmp_path / "key")
