"""The API itself, called as anything that speaks HTTP would call it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import socket
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from hpo_pilot.server.tokens import Authority, Role
from tests.bearer import token
from tests.rest_api import add_results, start_api, write_search

FILE = """search: {name}
space: {{x: {{type: real, low: 0, high: 1}}}}
payload: {{command: "true"}}
"""
YAML = {"Content-Type": "application/yaml"}


def submit(call, name, who="alice", **more):
    answer = call("POST", "searches", who, data=FILE.format(name=name), headers=YAML | more.pop("headers", {}), **more)
    assert answer.status_code == 201, answer.text
    return answer.json()


def archive(members: dict[str, bytes], link: tuple[str, str] | None = None) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as packed:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            packed.addfile(info, io.BytesIO(body))
        if link is not None:
            info = tarfile.TarInfo(link[0])
            info.type, info.linkname = tarfile.SYMTYPE, link[1]
            packed.addfile(info)
    return content.getvalue()


def send(call, content: bytes):
    return call("PUT", f"payloads/{hashlib.sha256(content).hexdigest()}", data=content)


# --- who may do what ---

READS = ["searches", "searches/roles", "searches/roles/progress", "searches/roles/trials", "searches/roles/best"]
READS += ["searches/roles/events", "searches/roles/report", "searches/roles/export", "service", "payloads/" + "0" * 64]
CHANGES = ["pause", "resume", "stop", "extend"]


@pytest.fixture(scope="module")
def roles_search(api):
    with api.client("alice") as client:
        client.submit(write_search(api.root / "roles", "roles"))
    add_results(api.workdir, "roles")


@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize(
    ("who", "role", "status"),
    [
        ("alice", Role.USER, 200),
        ("bob", Role.USER, 200),
        ("op", Role.OPERATOR, 200),
        ("p", Role.PILOT, 403),
        (None, Role.USER, 401),
    ],
)
def test_who_may_look(call, roles_search, path, who, role, status):
    answer = call("GET", path, who, role)
    assert answer.status_code == status
    if status != 200:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == {401: "unauthorized", 403: "forbidden"}[status]


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize(
    ("who", "role", "status"),
    [("bob", Role.USER, 403), ("p", Role.PILOT, 403), (None, Role.USER, 401), ("alice", Role.PILOT, 403)],
)
def test_who_may_not_change(call, roles_search, what, who, role, status):
    body = {"json": {"add": {"trials": 1}}} if what == "extend" else {}
    assert call("POST", f"searches/roles/{what}", who, role, **body).status_code == status
    assert call("GET", "searches/roles").json()["state"] == "running"


@pytest.mark.parametrize("who", ["bob", "alice"])
def test_a_pilot_s_token_submits_nothing(call, who):
    answer = call("POST", "searches", who, Role.PILOT, data=FILE.format(name="pilots"), headers=YAML)
    assert answer.status_code == 403
    assert call("GET", "searches/pilots").status_code == 404


def test_going_on_with_another_s_search_is_refused(call):
    submit(call, "mine", "alice")
    answer = call("POST", "searches?go_on=true", "bob", data=FILE.format(name="mine"), headers=YAML)
    assert answer.status_code == 403
    assert call("GET", "searches/mine/events").json() == call("GET", "searches/mine/events", "bob").json()


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
    description = call("GET", "openapi.json", None).json()
    assert description["openapi"].startswith("3.1")
    for path in ("", "nope", "health/x", "../searches", "docs"):
        assert call("GET", path, None).status_code == 401


def test_tokens_are_in_no_log(api, call):
    call("GET", "searches/nope")
    call("POST", "searches", data="search: [", headers=YAML)
    text = token("alice", Role.USER)
    assert text not in api.log
    assert text.rsplit(".")[-1] not in api.log
    assert "GET /api/v1/searches/nope by alice" in api.log


# --- answers ---


def test_errors_are_problem_documents(call):
    answer = call("GET", "searches/nope")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == "not_found"
    assert problem["message"].startswith("no search 'nope':")
    assert "sqlite" not in problem["message"]
    wrong = call("POST", "searches", data="search: x\nspace: {}\n", headers=YAML)
    assert wrong.status_code == 422
    assert {found["path"] for found in wrong.json()["problems"]} >= {"space", "payload"}
    assert wrong.json()["problems"][0]["file"] == "search.yaml"
    assert call("GET", "nope").json()["code"] == "not_found"
    assert call("DELETE", "searches").status_code == 405
    assert call("GET", "searches/nope/trials?limit=0").status_code == 422


def test_answers_are_packed_where_that_is_taken(call, roles_search):
    packed = call("GET", "searches/roles/trials", headers={"Accept-Encoding": "gzip"}, stream=True)
    assert packed.headers["content-encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(packed.raw.read()))["trials"]) == 3
    plain = call("GET", "searches/roles/trials", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers


def test_answers_are_kept_by_nobody_and_are_what_they_say(call):
    answer = call("GET", "searches")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (
        "access-control-allow-origin" not in call("GET", "searches", headers={"Origin": "https://evil.example"}).headers
    )


def test_pages_of_trials_have_an_end(call, roles_search):
    pages, after = [], 0
    while after is not None:
        page = call("GET", f"searches/roles/trials?after={after}&limit=2").json()
        pages.append([trial["number"] for trial in page["trials"]])
        after = page["next"]
    assert pages == [[1, 2], [3]]
    assert call("GET", "searches/roles/trials?after=3").json() == {"trials": [], "next": None}


def test_a_page_is_bounded_in_bytes(api, call):
    submit(call, "logs")
    add_results(api.workdir, "logs", 10, log="x" * 3_000_000)
    page = call("GET", "searches/logs/trials").json()
    assert [trial["number"] for trial in page["trials"]] == [1]
    assert page["next"] == 1
    assert len(call("GET", "searches/logs/trials?logs=false").json()["trials"]) == 10


# --- news ---


def test_news_are_waited_for(api, call):
    submit(call, "news")
    first = call("GET", "searches/news/progress")
    tag = {"If-None-Match": first.headers["etag"]}
    begun = time.monotonic()
    assert call("GET", "searches/news/progress?timeout=1.2", headers=tag).status_code == 304
    assert time.monotonic() - begun > 1.0
    timer = threading.Timer(1.0, call, ("POST", "searches/news/pause"))
    timer.start()
    begun = time.monotonic()
    second = call("GET", "searches/news/progress?timeout=20", headers=tag)
    assert second.json()["state"] == "paused"
    assert second.headers["etag"] != first.headers["etag"]
    assert time.monotonic() - begun < 15  # before the 20 s are over
    assert call("GET", "searches/nope/progress?timeout=5").status_code == 404


def test_many_wait_and_others_are_served(call):
    submit(call, "waiting")
    tag = {"If-None-Match": call("GET", "searches/waiting/progress").headers["etag"]}
    with ThreadPoolExecutor(40) as pool:
        waiting = [pool.submit(call, "GET", "searches/waiting/progress?timeout=30", headers=tag) for _ in range(40)]
        time.sleep(1.0)
        assert call("GET", "searches/waiting").status_code == 200
        assert not any(answer.done() for answer in waiting)
        call("POST", "searches/waiting/pause")
        assert {answer.result().status_code for answer in waiting} == {200}


# --- registering ---


def test_the_same_key_registers_once(call):
    key = {"Idempotency-Key": "a-key-of-mine"}
    first = submit(call, "once", headers=key)
    assert submit(call, "once", headers=key)["id"] == first["id"]
    other = call("POST", "searches", data=FILE.format(name="once"), headers=YAML | {"Idempotency-Key": "another-key"})
    assert other.status_code == 422
    assert "already has a search 'once'" in other.json()["message"]
    theirs = call("POST", "searches", "bob", data=FILE.format(name="once"), headers=YAML | key)
    assert theirs.status_code == 422
    assert len(call("GET", "searches/once/events").json()) == 1


def test_many_of_one_name_at_once_make_one(call):
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(call, "POST", "searches", data=FILE.format(name="race"), headers=YAML) for _ in range(8)]
        statuses = sorted(answer.result().status_code for answer in answers)
    assert statuses == [201] + [422] * 7


def test_what_was_seen_extends_once(call):
    submit(call, "longer")
    body = {"add": {"trials": 5}, "seen": {"trials": 64}}
    assert call("POST", "searches/longer/extend", json=body).json()["budget"]["trials"] == 69
    assert call("POST", "searches/longer/extend", json=body).json()["budget"]["trials"] == 69
    late = call("POST", "searches/longer/extend", json={"add": {"trials": 7}, "seen": {"trials": 64}})
    assert late.status_code == 409
    assert call("POST", "searches/longer/extend", json={"add": {"trials": 1}}).json()["budget"]["trials"] == 70


@pytest.mark.parametrize("query", ["file=a%1b[31m.yaml", "source=%0a", "file=", "payload=zz", "go_on=perhaps"])
def test_strange_words_are_refused(call, query):
    answer = call("POST", f"searches?{query}", data=FILE.format(name="strange"), headers=YAML)
    assert answer.status_code == 422
    assert call("GET", "searches/strange").status_code == 404


def test_bodies_have_limits(api, call):
    answer = call("POST", "examinations", data=b"#" * 1_300_000, headers=YAML)
    assert answer.status_code == 413

    def endless():
        for _ in range(40):
            yield b"#" * 100_000

    assert call("POST", "examinations", data=endless(), headers=YAML).status_code == 413
    assert call("POST", "searches/x/extend", data=endless()).status_code == 413


# --- payloads ---


def test_a_payload_is_kept_by_its_content(api, call):
    content = archive({"train.py": b"pass", "deep/er/x": b"1"})
    digest = hashlib.sha256(content).hexdigest()
    assert call("GET", f"payloads/{digest}").json() == {"digest": digest, "present": False}
    assert send(call, content).json() == {"digest": digest, "present": True}
    assert call("GET", f"payloads/{digest}").json()["present"]
    wrong = call("PUT", f"payloads/{'0' * 64}", data=content)
    assert wrong.status_code == 422
    assert not call("GET", f"payloads/{'0' * 64}").json()["present"]
    path = api.workdir / "uploads" / f"{digest}.tar.gz"
    assert path.stat().st_mode & 0o077 == 0


def test_a_payload_has_a_limit(api, call):
    def parts():
        for _ in range(20):
            yield b"x" * 100_000

    assert call("PUT", f"payloads/{'1' * 64}", data=b"x" * 1_100_000).status_code == 413
    assert call("PUT", f"payloads/{'1' * 64}", data=parts()).status_code == 413
    assert not list((api.workdir / "uploads").glob("*.part"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "refused"),
        (archive({"../evil": b"x"}), "leads out"),
        (archive({"/etc/evil": b"x"}), "leads out"),
        (archive({}, ("link", "/etc/passwd")), "refused"),
        (archive({"hpo_pilot_runner.py": b"x"}), "name that the payload runner needs"),
        (archive({"big": bytes(30_000_000)}), "refused"),
    ],
    ids=["no archive", "dots", "absolute", "link", "runner", "large"],
)
def test_a_payload_that_is_none_is_refused(api, call, content, message):
    assert send(call, content).status_code == 200
    digest = hashlib.sha256(content).hexdigest()
    text = FILE.format(name="evil").replace('command: "true"', 'command: "true", files: x')
    answer = call("POST", f"searches?payload={digest}", data=text, headers=YAML)
    assert answer.status_code == 422
    assert message in answer.json()["message"]
    assert call("GET", "searches/evil").status_code == 404
    assert [path for path in (api.workdir / "uploads").iterdir() if path.is_dir()] == []


def test_a_search_with_files_wants_them(call):
    text = FILE.format(name="files").replace('command: "true"', 'command: "true", files: x')
    assert "send the folder" in call("POST", "searches", data=text, headers=YAML).json()["message"]
    gone = call("POST", f"searches?payload={'2' * 64}", data=text, headers=YAML)
    assert "send it again" in gone.json()["message"]


def test_an_upload_that_breaks_off_leaves_nothing(api):
    parts = urlsplit(api.url)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        head = f"PUT /api/v1/payloads/{'3' * 64} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
        head += f"Authorization: Bearer {token('alice', Role.USER)}\r\n\r\n"
        connection.sendall(head.encode() + b"half")
        time.sleep(0.5)
    end = time.monotonic() + 60
    while list((api.workdir / "uploads").glob("*.part")):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "Traceback" not in api.log


# --- the process ---


def test_an_api_on_the_network_wants_tls(tmp_path):
    with pytest.raises(AssertionError, match="without TLS"):
        start_api(tmp_path, "--host", "0.0.0.0")  # noqa: S104  # which is refused


def test_an_end_answers_those_who_wait(tmp_path):
    running = start_api(tmp_path)
    try:
        with running.client("alice") as client:
            client.submit(write_search(tmp_path / "mine", "ends"))
        import requests

        headers = {"Authorization": f"Bearer {token('alice', Role.USER)}"}
        url = f"{running.url}/api/v1/searches/ends/progress"
        tag = requests.get(url, headers=headers, timeout=20).headers["etag"]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(
                requests.get, f"{url}?timeout=30", headers={**headers, "If-None-Match": tag}, timeout=60
            )
            time.sleep(1.0)
            running.process.terminate()
            assert waiting.result(timeout=30).status_code == 304
        assert running.process.wait(30) == 0
    finally:
        running.stop()
