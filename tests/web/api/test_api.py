"""The API itself, called as anything that speaks HTTP would call it."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import os
import secrets
import socket
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.operations import connection
from hpo_pilot.panda import sandbox
from hpo_pilot.panda.sandbox import in_worker
from hpo_pilot.protocol import PROTOCOL
from hpo_pilot.server.tokens import Authority, Role
from hpo_pilot.web.api_context import Uploads
from tests.archives import archive, member
from tests.bearer import token
from tests.rest_api import add_results, start_api, write_search

from .conftest import search_text


@pytest.fixture(scope="module")
def roles_search(api):
    """A search of alice's that runs, with three trials."""
    with api.client("alice") as client:
        client.submit(write_search(api.root / "roles", "roles"))
    add_results(api.workdir, "roles")


# --- versions ---


@pytest.mark.parametrize(("ahead", "older"), [(-1, ""), (0, ""), (1, ""), (2, "service"), (-2, "client")])
def test_clients_at_most_one_version_apart_are_served(api, monkeypatch, ahead, older):
    monkeypatch.setattr(connection, "PROTOCOL", PROTOCOL + ahead)
    with api.client("alice") as client:
        if older:
            with pytest.raises(InputError, match=f"upgrade hpo-pilot of the {older}$"):
                client.searches()
        else:
            client.searches()


# --- who may do what ---

READS = ["searches", "searches/roles", "searches/roles/progress", "searches/roles/trials", "searches/roles/best"]
READS += ["searches/roles/events", "searches/roles/report", "searches/roles/export", "service", "payloads/" + "0" * 64]


@pytest.mark.parametrize(
    ("who", "role", "looks", "changes"),
    [
        ("alice", Role.USER, 200, None),
        ("op", Role.OPERATOR, 200, None),
        ("bob", Role.USER, 200, 403),
        ("alice", Role.PILOT, 403, 403),
        (None, Role.USER, 401, 401),
    ],
)
def test_who_may_look_and_who_may_change(call, roles_search, who, role, looks, changes):
    for path in READS:
        answer = call("GET", path, who, role)
        assert answer.status_code == looks, path
        if looks != 200:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"] == {401: "unauthorized", 403: "forbidden"}[looks]
    if changes is not None:
        for change in ("pause", "resume", "stop", "extend"):
            body = {"json": {"add": {"trials": 1}}} if change == "extend" else {}
            assert call("POST", f"searches/roles/{change}", who, role, **body).status_code == changes, change
        assert call("POST", "searches?go_on=true", who, role, data=search_text("roles")).status_code == changes
        assert call("GET", "searches/roles").json()["state"] == "running"
    if looks != 200:
        assert call("POST", "searches", who, role, data=search_text("nobodys")).status_code == looks
        assert call("GET", "searches/nobodys").status_code == 404


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Bearer x.y.z", "Basic YTpi", "Bearer é"])
def test_what_is_no_token_is_401_with_a_reason(call, header):
    answer = call("GET", "searches", None, headers={"Authorization": header.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["message"]


def test_a_revoked_token_is_worthless_at_once(api, call):
    authority = Authority(api.root / "tokens")
    text, made = authority.issue("eve", Role.USER, 1)
    headers = {"Authorization": f"Bearer {text}"}
    assert call("GET", "searches", None, headers=headers).status_code == 200
    authority.revoke(made.id)
    assert call("GET", "searches", None, headers=headers).status_code == 401


def test_health_and_description_need_no_token_and_nothing_else_does_without(call):
    assert call("GET", "health", None).json() == {"status": "ok"}
    assert call("GET", "openapi.json", None).status_code == 200
    for path in ("", "nope", "health/x", "../searches", "docs"):
        assert call("GET", path, None).status_code == 401


def test_the_log_names_callers_and_has_no_token_and_no_forged_line(api, call):
    call("GET", "searches/nope")
    call("GET", "searches/a%0aFORGED%20by%20operator")
    text = token("alice", Role.USER)
    assert text not in api.log
    assert text.rsplit(".")[-1] not in api.log
    assert "GET /api/v1/searches/nope by alice" in api.log
    assert r"a\nFORGED by operator" in api.log
    assert "\nFORGED" not in api.log


# --- answers ---


def test_errors_are_problem_documents(call):
    answer = call("GET", "searches/nope")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == "not_found"
    assert problem["message"].startswith("no search 'nope':")
    assert "sqlite" not in problem["message"]
    wrong = call("POST", "searches", data="search: x\nspace: {}\n")
    assert (wrong.status_code, wrong.json()["title"]) == (422, "Unprocessable Content")
    assert {found["path"] for found in wrong.json()["problems"]} >= {"space", "payload"}
    assert wrong.json()["problems"][0]["file"] == "search.yaml"
    assert call("GET", "nope").json()["code"] == "not_found"
    assert call("DELETE", "searches").status_code == 405
    assert call("GET", "searches/nope/trials?limit=0").status_code == 422


def test_answers_are_packed_where_that_is_taken_and_kept_by_nobody(call, roles_search):
    packed = call("GET", "searches/roles/trials", headers={"Accept-Encoding": "gzip"}, stream=True)
    assert packed.headers["content-encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(packed.raw.read()))["trials"]) == 3
    headers = {"Accept-Encoding": "identity", "Origin": "https://evil.example"}
    plain = call("GET", "searches/roles/trials", headers=headers).headers
    assert "content-encoding" not in plain
    assert plain["cache-control"] == "no-store"
    assert plain["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in plain


def test_pages_of_trials_are_bounded_in_number_and_in_bytes(api, call, submit, roles_search):
    pages, after = [], 0
    while after is not None:
        page = call("GET", f"searches/roles/trials?after={after}&limit=2").json()
        pages.append([trial["number"] for trial in page["trials"]])
        after = page["next"]
    assert pages == [[1, 2], [3]]
    assert call("GET", "searches/roles/trials?after=3").json() == {"trials": [], "next": None}
    submit("logs")
    add_results(api.workdir, "logs", 10, log="x" * 3_000_000)
    page = call("GET", "searches/logs/trials").json()
    assert [trial["number"] for trial in page["trials"]] == [1]
    assert page["next"] == 1
    assert len(call("GET", "searches/logs/trials?logs=false").json()["trials"]) == 10


def test_many_wait_for_news_and_others_are_served(call, submit):
    submit("news")
    first = call("GET", "searches/news/progress")
    tag = {"If-None-Match": first.headers["etag"]}
    begun = time.monotonic()
    assert call("GET", "searches/news/progress?timeout=0.4", headers=tag).status_code == 304
    assert time.monotonic() - begun > 0.3
    with ThreadPoolExecutor(40) as pool:
        waiting = [pool.submit(call, "GET", "searches/news/progress?timeout=30", headers=tag) for _ in range(40)]
        time.sleep(1.0)
        assert call("GET", "searches/news").status_code == 200
        assert not any(answer.done() for answer in waiting)
        call("POST", "searches/news/pause")
        answers = [answer.result() for answer in waiting]
    assert {answer.json()["state"] for answer in answers} == {"paused"}
    assert first.headers["etag"] not in {answer.headers["etag"] for answer in answers}
    assert call("GET", "searches/nope/progress?timeout=5").status_code == 404


# --- registering ---


def test_the_same_key_registers_once(call, submit):
    key = {"Idempotency-Key": "a-key-of-mine"}
    first = submit("once", headers=key)
    assert submit("once", headers=key)["id"] == first["id"]
    for who, headers in (("alice", {"Idempotency-Key": "another-key"}), ("bob", key)):
        other = call("POST", "searches", who, data=search_text("once"), headers=headers)
        assert other.status_code == 422
        assert "already has a search 'once'" in other.json()["message"]
    changed = call("POST", "searches", data=search_text("once", seed=2), headers=key)
    assert (changed.status_code, "already has a search" in changed.text) == (422, True)
    assert submit("twice", headers=key)["id"] != first["id"]
    assert len(call("GET", "searches/once/events").json()) == 1


@pytest.mark.parametrize("key", [None, "a-key"])
def test_many_registrations_of_one_name_at_once_make_one(call, key):
    """With one key they are one call: a repetition of a call that was still under way was refused."""
    for attempt in range(4):
        name = f"at-once-{attempt}-{key}"
        headers = {"Idempotency-Key": f"{key}-{name}"} if key else {}
        barrier = threading.Barrier(8)

        def register(name: str = name, headers: dict = headers, barrier: threading.Barrier = barrier):
            barrier.wait()
            return call("POST", "searches", data=search_text(name), headers=headers)

        with ThreadPoolExecutor(8) as pool:
            answers = [each.result() for each in [pool.submit(register) for _ in range(8)]]
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == ([201] * 8 if key else [201] + [422] * 7), [answer.text for answer in answers]
        assert len({answer.json()["id"] for answer in answers if answer.status_code == 201}) == 1


def test_a_new_highest_level(call):
    levels = {"epochs": {"low": 1, "high": 9}}
    assert call("POST", "searches", data=search_text("levels", fidelity=levels)).status_code == 201
    assert call("POST", "searches/levels/extend", json={"add": {"high": 27}}).status_code == 200
    assert call("GET", "searches/levels").json()["definition"]["fidelity"]["epochs"]["high"] == 27
    refused = call("POST", "searches/levels/extend", json={"add": {"high": 27}})
    assert refused.status_code == 422 and "can only go higher" in refused.json()["message"]


def test_what_was_seen_extends_once(call, submit):
    submit("longer")
    body = {"add": {"trials": 5}, "seen": {"trials": 64}}
    for _ in range(2):
        assert call("POST", "searches/longer/extend", json=body).json()["budget"]["trials"] == 69
    late = call("POST", "searches/longer/extend", json={"add": {"trials": 7}, "seen": {"trials": 64}})
    assert late.status_code == 409
    assert call("POST", "searches/longer/extend", json={"add": {"trials": 1}}).json()["budget"]["trials"] == 70
    assert call("POST", "searches", data=search_text("pair", segments=["one", "two"])).status_code == 201
    refused = call("POST", "searches/pair/extend", json=body)
    assert refused.status_code == 422 and "pair-one, pair-two" in refused.json()["message"]


@pytest.mark.parametrize("query", ["file=a%1b[31m.yaml", "source=%0a", "file=", "payload=zz", "go_on=perhaps"])
def test_strange_words_are_refused(call, query):
    answer = call("POST", f"searches?{query}", data=search_text("strange"))
    assert answer.status_code == 422
    assert call("GET", "searches/strange").status_code == 404


@pytest.mark.parametrize("endless", [False, True])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "examinations"), ("POST", "searches/x/extend"), ("PUT", f"payloads/{'1' * 64}")]
)
def test_bodies_have_limits(api, call, method, path, endless):
    def parts():
        for _ in range(40):
            yield b"#" * 100_000

    assert call(method, path, data=parts() if endless else b"#" * 1_300_000).status_code == 413
    assert not list((api.workdir / "uploads").glob("*.part"))


# --- payloads ---


def test_a_payload_is_kept_by_its_content(api, call):
    content = archive(member("train.py", size=4), member("deep/er/x", size=1))
    digest = hashlib.sha256(content).hexdigest()
    assert call("GET", f"payloads/{digest}").json() == {"digest": digest, "present": False}
    assert call("PUT", f"payloads/{digest}", data=content).json() == {"digest": digest, "present": True}
    assert call("GET", f"payloads/{digest}").json()["present"]
    assert call("PUT", f"payloads/{'0' * 64}", data=content).status_code == 422
    assert not call("GET", f"payloads/{'0' * 64}").json()["present"]
    path = api.workdir / "uploads" / f"{digest}.tar.gz"
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"no archive", "refused", id="no archive"),
        pytest.param(archive(member("../evil")), "leads out", id="dots"),
        pytest.param(archive(member("/etc/evil")), "leads out", id="absolute"),
        pytest.param(archive(member("link", tarfile.SYMTYPE, "/etc/passwd")), "is refused", id="link"),
        pytest.param(archive(member("hpo_pilot_runner.py")), "name that the payload runner needs", id="runner"),
        pytest.param(archive(member("big", size=30_000_000)), "20 MB. Move data out of it", id="large"),
        # Those that cannot be unpacked were answered with 503, so that clients sent them again and again.
        pytest.param(archive(member("a" * 300)), "is refused", id="long name"),
        pytest.param(archive(member("a"), member("a/b")), "is refused", id="file as folder"),
        pytest.param(
            archive(member("a", tarfile.DIRTYPE), member("a/b"), member("a", tarfile.SYMTYPE, "a")),
            "is refused",
            id="folder as link",
        ),
        pytest.param(archive(member("a", tarfile.SYMTYPE, "a"), member("a/b")), "is refused", id="link to itself"),
        pytest.param(archive(member("a", tarfile.LNKTYPE, "a")), "is refused", id="file that is its own link"),
    ],
)
def test_a_payload_that_is_none_is_refused(api, call, content, message):
    digest = hashlib.sha256(content).hexdigest()
    assert call("PUT", f"payloads/{digest}", data=content).status_code == 200
    text = search_text("evil", payload={"command": "true", "files": "x"})
    answer = call("POST", f"searches?payload={digest}", data=text)
    assert answer.status_code == 422, answer.text
    assert message in answer.json()["message"]
    assert call("GET", "searches/evil").status_code == 404
    assert [path for path in (api.workdir / "uploads").iterdir() if path.is_dir()] == []


def test_quotas_are_for_each_user_and_hold_when_they_change(api, call):
    def limit(**quotas: Any) -> None:
        (api.workdir / "quotas.json").write_text(json.dumps({"users": {"greedy": quotas}}))

    def submitted(name: str, who: str = "greedy") -> requests.Response:
        return call("POST", "searches", who, data=search_text(name))

    limit(searches=1, uploads_mb=0.5, stored_mb=100)
    try:
        assert submitted("greedy-1").status_code == 201
        refused = submitted("greedy-2")
        assert (refused.status_code, "hpo-pilot stop" in refused.json()["message"]) == (422, True)
        assert submitted("modest-1", "modest").status_code == 201
        content = secrets.token_bytes(600_000)
        path = f"payloads/{hashlib.sha256(content).hexdigest()}"
        assert call("PUT", path, "greedy", data=content).json()["code"] == "quota"
        assert call("PUT", path, "modest", data=content).ok
        small, large = secrets.token_bytes(300_000), secrets.token_bytes(300_001)  # of no announced length
        path = f"payloads/{hashlib.sha256(small).hexdigest()}"
        assert call("PUT", path, "greedy", data=iter([small])).ok
        assert call("PUT", path, "greedy", data=small).ok, "the same one again takes no more"
        later = f"payloads/{hashlib.sha256(large).hexdigest()}"
        assert call("PUT", later, "greedy", data=iter([large])).json()["code"] == "quota"
        (stored,) = (api.workdir / "uploads").glob(f"{hashlib.sha256(small).hexdigest()}*")
        os.utime(stored, (1, 1))  # it is removed at the next upload, and does not count until then
        quotas = call("GET", "service", "greedy").json()["quotas"]
        assert quotas["searches"] == {"used": 1, "most": 1} and quotas["uploads_mb"]["used"] == 0
        assert call("POST", "searches/greedy-1/stop", "greedy").ok  # it is over: no service runs it
        assert submitted("greedy-2").status_code == 201
        for change, body in (("resume", None), ("retry", {}), ("extend", {"hours": 1})):
            assert call("POST", f"searches/greedy-1/{change}", "greedy", json=body).status_code == 422, change
        limit(searches=2)
        with ThreadPoolExecutor(4) as threads:
            answers = [each.status_code for each in threads.map(submitted, [f"beside-{n}" for n in range(4)])]
        assert sorted(answers) == [201, 422, 422, 422]
        assert call("POST", "searches/greedy-2/stop", "greedy").ok
        limit(searches="many")
        assert "quotas.json" in submitted("greedy-3").json()["message"]
        limit(searches=2)
        assert call("POST", "searches/greedy-1/resume", "greedy").ok
    finally:
        (api.workdir / "quotas.json").unlink()


def test_a_payload_is_unpacked_and_packed_in_another_process(tmp_path, monkeypatch):
    for name in ("unpack", "build_sandbox"):
        monkeypatch.setattr(f"hpo_pilot.panda.sandbox.{name}", lambda *_given: pytest.fail("it was done here"))
    content = archive(member("train.py", size=4))
    digest = hashlib.sha256(content).hexdigest()
    uploads = Uploads(tmp_path / "uploads", 10_000_000, 10_000_000)
    (tmp_path / "uploads" / f"{digest}.tar.gz").write_bytes(content)
    with uploads.unpacked(digest) as files:
        assert [path.name for path in files.iterdir()] == ["train.py"]
        assert in_worker("build", files, {}, tmp_path).name.startswith("sources.")
    monkeypatch.setattr("hpo_pilot.panda.sandbox._AT_ONCE", threading.BoundedSemaphore(1))
    monkeypatch.setattr("hpo_pilot.panda.sandbox._PATIENCE", 0.0)
    sandbox._AT_ONCE.acquire()
    with pytest.raises(TryAgainError, match="other payloads"), uploads.unpacked(digest):
        pass


def test_a_worker_that_was_killed_is_no_mistake_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TryAgainError, match="worker was killed"):
        in_worker("build", tmp_path, {}, tmp_path)


def test_a_search_with_files_wants_them(call):
    text = search_text("files", payload={"command": "true", "files": "x"})
    assert "send the folder" in call("POST", "searches", data=text).json()["message"]
    gone = call("POST", f"searches?payload={'2' * 64}", data=text)
    assert "send it again" in gone.json()["message"]


def test_an_upload_that_breaks_off_leaves_nothing(api):
    parts = urlsplit(api.url)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        head = f"PUT /api/v1/payloads/{'3' * 64} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
        head += f"Authorization: Bearer {token('alice', Role.USER)}\r\n\r\n"
        connection.sendall(head.encode() + b"half")
        time.sleep(0.5)
    end = time.monotonic() + 600
    while list((api.workdir / "uploads").glob("*.part")):
        assert time.monotonic() < end
        time.sleep(0.1)


# --- the process ---


def test_an_api_on_the_network_wants_tls(tmp_path):
    with pytest.raises(AssertionError, match="without TLS"):
        start_api(tmp_path, "--host", "0.0.0.0")  # noqa: S104  # which is refused


def test_an_end_answers_those_who_wait(tmp_path):
    with start_api(tmp_path) as running:
        with running.client("alice") as client:
            client.submit(write_search(tmp_path / "mine", "ends"))
        headers = {"Authorization": f"Bearer {token('alice', Role.USER)}"}
        url = f"{running.url}/api/v1/searches/ends/progress"
        headers["If-None-Match"] = requests.get(url, headers=headers, timeout=600).headers["etag"]
        address = urlsplit(url)
        waiting = http.client.HTTPConnection(str(address.hostname), address.port, timeout=25)
        waiting.request("GET", f"{address.path}?timeout=30", headers=headers)
        assert requests.get(f"{running.url}/api/v1/health", headers=headers, timeout=600).ok  # and the other has come
        running.process.terminate()
        assert waiting.getresponse().status == 304
        assert running.process.wait(600) == 0
