"""Attacks and broken clients."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from sqlalchemy import func, update

from hpo_pilot.server.calls import BodyRefused, pairs
from hpo_pilot.server.database import Database, tasks
from hpo_pilot.server.dispatch import JobRequest, acquire
from hpo_pilot.server.listening import HEAD_LIMIT
from hpo_pilot.server.replies import dump, load
from hpo_pilot.server.tasks import submit
from hpo_pilot.server.tokens import Role
from tests.bearer import token
from tests.server.conftest import Api, RunningServer, send
from tests.server.queue_driver import Queue
from tests.task_parameters import bare_params, make_params

JSON = {"Content-Type": "application/json"}


def connect(server: Any) -> socket.socket:
    parts = urlsplit(server.url)
    connection = socket.create_connection((parts.hostname, parts.port))
    connection.settimeout(600)
    return connection


def alive(connection: socket.socket, times: int = 1) -> None:
    """Reads the answers to `isAlive`."""
    received = b""
    while received.count(b"alive=yes") < times:
        part = connection.recv(65536)
        assert part, received
        received += part


# --- JSON ---


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        '{"a": [Infinity]}',
        "[1e999]",
        "[-1E+400]",
        f"[{'9' * 400}.5]",
        "[" * 100_000,
        r'"\ud800"',
        r'"a\u0000"',
        r'"\\\u0000"',
        "9" * 5000,
    ],
)
def test_json_with_unstorable_values_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        load(text)
    with pytest.raises(ValueError):
        load(text.encode())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\\u0000"', r"\u0000"),
        (r'"\ud83d\ude00"', "😀"),
        ('["1e999", 1e5]', ["1e999", 1e5]),
        ("9" * 400, int("9" * 400)),
    ],
)
def test_json_that_only_looks_unstorable_is_accepted(text: str, value: Any) -> None:
    assert load(text) == load(text.encode()) == value


def test_answers_have_null_for_nan() -> None:
    assert dump({"a": [float("nan"), (1, float("-inf"))], "b": 0.5}) == '{"a":[null,[1,null]],"b":0.5}'


def test_nan_in_a_job_report_becomes_null(server: Any) -> None:
    task_id = server.api("me").submit(make_params("user.me.nan-report/", 1, site="NAN"))
    (job,) = server.api("pilot").acquire(site_name="NAN")
    report = {"meta_data": '{"user_job_metadata": {"x": NaN, "y": 1e999}}', "mean_core_count": 1.0}
    server.api("pilot").update(job["PandaID"], "finished", **report)
    legacy = {"jobId": job["PandaID"], "state": "finished", "meanCoreCount": "nan", "maxRSS": "inf"}
    assert send(server, "POST", "/server/panda/updateJob", "token-of-pilot", data=legacy).ok
    path = f"/api/v1/job/get_metadata_for_analysis_jobs?task_id={task_id}"
    answer = send(server, "GET", path, "token-of-me").text
    document = json.loads(answer, parse_constant=pytest.fail)
    assert document["data"][str(job["PandaID"])]["user_job_metadata"] == {"x": None, "y": None}


@pytest.mark.parametrize(
    ("method", "path", "arguments"),
    [
        ("POST", "task/retry", {"task_id": 1, "new_parameters": "[" * 50_000}),
        ("POST", "task/retry", {"task_id": 1, "new_parameters": r'{"a": "\ud800"}'}),
        ("GET", "task/get_tasks_detailed_info_since", {"filters": "[" * 5000}),
        ("GET", "task/get_tasks_detailed_info_since", {"filters": r'{"userName": "\ud800"}'}),
        ("GET", "task/get_tasks_detailed_info_since", {"filters": r'{"userName": "\u0000"}'}),
        ("GET", "task/submit", {"task_parameters": "[" * 5000}),
    ],
)
def test_invalid_json_in_an_argument_is_refused(server: Any, method: str, path: str, arguments: dict[str, Any]) -> None:
    server.api("me").submit(make_params(f"user.me.within-{time.time_ns()}/", 1))  # there is a task 1
    how = {"json": arguments} if method == "POST" else {"params": arguments}
    answer = send(server, method, f"/api/v1/{path}", "token-of-me", **how)
    assert answer.status_code == 200
    assert not answer.json()["success"] or answer.json()["data"] == 1  # retry's own way of refusing


# --- bodies ---


def test_many_arguments_with_one_name_are_read_in_linear_time(server: Any) -> None:
    """A body of 300 kB once took 9 s, without a token."""
    assert send(server, "POST", "/server/panda/isAlive", data="a=&" * 90_000).text == "alive=yes"
    begun = time.process_time()
    pairs("a=&" * 90_000)
    assert time.process_time() - begun < 3
    assert pairs("a=1&b=2&a=3") == {"a": ["1", "3"], "b": "2"}
    answer = send(server, "POST", "/server/panda/isAlive", data="a=&" * 200_000)
    assert answer.status_code == 413
    with pytest.raises(BodyRefused):
        pairs("a&" * 200_000)


# --- connections ---


def test_an_endless_header_ends_the_connection(server: Any) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Endless: ")
        sent = 0
        with pytest.raises(OSError):
            while sent < 100 * HEAD_LIMIT:
                sent += connection.send(b"a" * 65536)
        assert sent < 60 * HEAD_LIMIT  # what the kernel's buffers hold aside


def test_a_long_header_is_accepted(server: Any) -> None:
    answer = send(server, "GET", "/api/v1/system/is_alive", headers={"X-Long": "a" * 50_000})
    assert answer.json()["success"]


def test_pipelined_requests_are_all_answered(server: Any) -> None:
    """The end of a body and the next request in one piece are not a long header."""
    body = b"a=" + b"b" * 400_000
    one = b"POST /server/panda/isAlive HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with connect(server) as connection:
        connection.sendall(one * 3)
        alive(connection, 3)


@pytest.fixture(scope="module")
def hasty_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that waits a second for a head, and three for the next part of a body."""
    hook = tmp_path_factory.mktemp("hook")
    (hook / "sitecustomize.py").write_text(
        "from hpo_pilot.server.listening import BoundedConnection as C\nC.head_seconds, C.body_seconds = 1.0, 3.0\n"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(hook), os.environ.get("PYTHONPATH", "")]))
        running = RunningServer(tmp_path_factory.mktemp("hasty"))
    yield running
    running.stop()


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /api/v1/system/is_alive HTTP/1.1\r\nHo",
        b"POST /server/panda/isAlive HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\na=",
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_an_unfinished_request_ends_after_a_timeout(hasty_server: Any, begun: bytes) -> None:
    with connect(hasty_server) as connection:
        connection.sendall(begun)
        while connection.recv(65536):
            pass


def test_a_slow_header_ends_after_a_timeout(hasty_server: Any) -> None:
    with connect(hasty_server) as connection, pytest.raises(OSError):
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(100):
            connection.sendall(b"a")
            time.sleep(0.1)


def test_long_polls_and_slow_bodies_do_not_time_out(hasty_server: Any) -> None:
    begun = time.monotonic()
    reply = hasty_server.api("me").get("hpo_pilot/changes", cursor=0, timeout=2)
    assert reply["success"] and time.monotonic() - begun > 1.5
    with connect(hasty_server) as connection:  # nor one that is slow, but goes on
        connection.sendall(b"POST /server/panda/isAlive HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
        for _ in range(10):
            time.sleep(0.35)
            connection.sendall(b"a")
        alive(connection)


def test_the_server_raises_its_limit_of_open_files(own_server: Callable[..., Any]) -> None:
    """200 silent connections once reached the soft limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        server = own_server()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connect(server))
        assert send(server, "GET", "/api/v1/system/is_alive").json()["success"]


# --- who may what ---


def test_a_user_cannot_remove_outputs_of_a_user_with_a_longer_name(server: Any) -> None:
    """user.me.smith.… belongs to me.smith if there is such a user, not to me."""
    other = requests.Session()
    other.headers["Authorization"] = f"Bearer {token('me.smith', Role.USER)}"
    params = make_params("user.me.smith.t/", 1)
    answer = other.post(f"{server.url}/api/v1/task/submit", json={"task_parameters": params}, timeout=600)
    assert answer.json()["success"]
    path = "/storage/user.me.smith.7._000001.outputs.tar.gz"
    assert send(server, "PUT", path, "token-of-operator", data=b"theirs").ok
    assert send(server, "DELETE", path, "token-of-me").status_code == 403
    assert other.delete(f"{server.url}{path}", timeout=600).ok
    mine = "/storage/user.me.7._000002.outputs.tar.gz"
    assert send(server, "PUT", mine, "token-of-operator", data=b"mine").ok
    assert other.delete(f"{server.url}{mine}", timeout=600).status_code == 403
    assert send(server, "DELETE", mine, "token-of-me").ok


def output_params(output: str, **more: Any) -> dict[str, Any]:
    """The parameters of a task whose log has this name."""
    made = bare_params(f"user.you.outputs-{time.time_ns()}/", 1, "run ")
    return made | {"log": made["log"] | {"value": output}, **more}


@pytest.mark.parametrize(
    "output",
    [
        "user.me.$JEDITASKID._${SN/P}.outputs.tar.gz",
        "user.me.t.log.7.000001.log.tgz",
        "user.you.7._${SN/P}.outputs.tar.gz",
        "user.you.x$JEDITASKID._${SN/P}.outputs.tar.gz",
        "user.you.$JEDITASKID./../../me/x",
        "user.you.$JEDITASKID.${SURL}",
        "model.pkl",
    ],
)
def test_output_names_of_other_users_and_tasks_are_refused(server: Any, output: str) -> None:
    answer = server.api("you").post("task/submit", task_parameters=output_params(output, site="NAMES", sourceURL="x"))
    assert (answer["success"], answer["data"]) == (False, 4)
    assert repr(output) in answer["message"]


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("jane.doe", "user.jane.doe.t.log.$JEDITASKID.${SN}.log.tgz"),
        ("jane.doe", "user.jane.$JEDITASKID._${SN/P}.out.txt"),  # prun's
        ("Jane Doe", "user.Jane_Doe.$JEDITASKID._${SN/P}.out.txt"),  # of PANDA_NICKNAME_REPLACE
        ("jane", "group.phys-higgs.$JEDITASKID._${SN/P}.out.txt"),
        ("jane", "$JEDITASKID.metrics.${SN}.tgz"),  # phpo's
    ],
)
def test_output_names_of_pandas_clients_are_accepted(server: Any, name: str, output: str) -> None:
    jane = Api(server.url, token(name, Role.USER))
    assert jane.submit(output_params(output)) > 0


def test_a_job_writes_no_output_that_names_another_task(own_server: Callable[..., RunningServer]) -> None:
    server = own_server()
    mine = server.api("me").submit(make_params("user.me.mine/", 1, site="OWN"))
    theirs = server.api("you").submit(output_params("user.you.t.$JEDITASKID.${SN}.log.tgz", site="YOURS"))
    server.stop()
    target = f"user.me.{mine}._000001.outputs.tar.gz"
    with contextlib.closing(Database(server.place)) as database, database.writing() as tx:
        planted = func.replace(tasks.c.params, "user.you.t.$JEDITASKID.${SN}.log.tgz", target)
        tx.connection.execute(update(tasks).where(tasks.c.task_id == theirs).values(params=planted))
    server.start()
    assert server.api("pilot").acquire(site_name="OWN")
    assert server.api("pilot").acquire(site_name="YOURS")
    assert send(server, "PUT", f"/storage/{target}", "token-of-pilot", data=b"mine").ok  # of the pilot's first job
    assert send(server, "POST", "/api/v1/task/kill", "token-of-operator", json={"task_id": mine}).ok
    server.api("pilot").update(1, "failed")
    assert send(server, "PUT", f"/storage/{target}", "token-of-pilot", data=b"planted").status_code == 409
    assert send(server, "GET", f"/storage/{target}", "token-of-me").content == b"mine"


def test_the_sandbox_that_another_users_task_waits_for_is_refused(server: Any) -> None:
    name = "sources.0a1b2c3d.tar.gz"
    params = make_params("user.me.waits/", 1, site="WAITS")
    params["jobParameters"].append({"type": "constant", "value": f"-a {name}"})
    server.api("me").submit(params)
    planted = server.api("you").upload(name, b"theirs")
    assert not planted["success"] and "another user" in planted["message"]
    assert server.api("me").upload(name, b"mine")["success"]
    assert send(server, "GET", f"/cache/{name}", "token-of-pilot").content == b"mine"


def test_a_sandbox_with_a_wrong_digest_in_its_name_is_refused(server: Any) -> None:
    """A search uploads its payload again, after it expired, under a name that everybody can see."""
    content = gzip.compress(b"theirs")
    name = f"sources.{hashlib.sha256(content).hexdigest()}.tar.gz"
    planted = server.api("you").upload(name, gzip.compress(b"mine"))
    assert not planted["success"] and "other content" in planted["message"]
    assert server.api("me").upload(name, content)["success"]
    assert send(server, "GET", f"/cache/{name}", "token-of-pilot").content == content


# --- transactions ---


def test_a_rolled_back_transaction_leaves_nothing_in_memory(database: Database, queue: Queue) -> None:
    """The next task gets the same id."""
    with pytest.raises(ZeroDivisionError), database.writing() as tx:
        submit(tx, queue.me, make_params("user.me.first/", 1))
        acquire(tx, JobRequest("LOCAL"))
        raise ZeroDivisionError
    task_id = queue.submit(name="user.me.second/")
    (job,) = queue.acquire()
    assert (job["taskID"], job["jobName"]) == (task_id, f"user.me.second/.{job['PandaID']}")
