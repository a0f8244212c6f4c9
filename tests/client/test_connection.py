"""What a client does when the service is not what it should be: nothing twice, no token elsewhere, one clear line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot import connect
from hpo_pilot.client import connection
from hpo_pilot.client.rest_client import RestClient
from hpo_pilot.errors import GiveUpError, InputError, TryAgainError
from tests.rest_api import start_api, write_search

Answer = tuple[int, dict[str, str], bytes] | None


@dataclass
class Fake:
    """An HTTP server that answers as a test says; None: it hangs up without a word."""

    url: str
    answers: list[Answer] = field(default_factory=list)
    seen: list[tuple[str, str, str | None, bytes]] = field(default_factory=list)


@pytest.fixture
def fake() -> Iterator[Fake]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            service.seen.append((self.command, self.path, self.headers.get("Authorization"), body))
            answer = service.answers.pop(0) if len(service.answers) > 1 else service.answers[0]
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer[0])
            for name, value in {"Content-Type": "application/json", **answer[1]}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer[2])))
            self.end_headers()
            self.wfile.write(answer[2])

        do_POST = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service = Fake(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield service
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(connection, "_PAUSES", (0.01, 0.01))
    monkeypatch.setattr(connection, "_LONGEST_PAUSE", 0.01)


@pytest.fixture
def token_file(tmp_path) -> Path:
    path = tmp_path / "token"
    path.write_text("a.secret.token\n")
    return path


def good(document: Any) -> Answer:
    return 200, {}, json.dumps(document).encode()


def problem(status: int, code: str, message: str = "no", **more: Any) -> Answer:
    document = {"status": status, "code": code, "message": message, **more}
    return status, {"Content-Type": "application/problem+json"}, json.dumps(document).encode()


def search(state: str, trials: int = 64) -> dict[str, Any]:
    return {"name": "x", "state": state, "budget": {"trials": trials}}


# --- errors ---


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "unauthorized", InputError),
        (403, "forbidden", InputError),
        (404, "not_found", InputError),
        (409, "conflict", TryAgainError),
        (413, "too_large", InputError),
        (422, "input", InputError),
        (503, "try_again", TryAgainError),
        (500, "give_up", GiveUpError),
        (418, "new in a later version", GiveUpError),
    ],
)
def test_errors_are_ours_with_the_service_s_words(fake, token_file, status, code, kind):
    fake.answers = [problem(status, code, "the very words")]
    with pytest.raises(kind, match=r"^the very words$"):
        connect(fake.url, token_file).status("x")


def test_a_service_cannot_steer_the_terminal(fake, token_file):
    fake.answers = [problem(422, "input", "\x1b[2Jcleared\nline")]
    with pytest.raises(InputError) as caught:
        connect(fake.url, token_file).status("x")
    assert str(caught.value) == "?[2Jcleared\nline"


@pytest.mark.parametrize(
    "answer",
    [(404, {"Content-Type": "text/html"}, b"<h1>nothing</h1>"), (200, {"Content-Type": "text/html"}, b"hello")],
)
def test_what_is_no_service_is_said_to_be_none(fake, token_file, answer):
    fake.answers = [answer]
    with pytest.raises(InputError, match="there is no hpo-pilot service at http://127"):
        connect(fake.url, token_file).status("x")


def test_nonsense_is_no_traceback(fake, token_file):
    fake.answers = [(500, {"Content-Type": "application/problem+json"}, b"[1]")]
    with pytest.raises(GiveUpError, match="nothing that we understand"):
        connect(fake.url, token_file).status("x")


def test_a_service_that_is_down(token_file):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(TryAgainError, match=f"the service {url} is out of reach: .*refused"):
        connect(url, token_file).status("x")
    assert [finding["ok"] for finding in connect(url, token_file).doctor()] == [False]


# --- the token ---


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_the_token_goes_nowhere_else(fake, token_file, status):
    fake.answers = [(status, {"Location": f"{fake.url}/elsewhere"}, b"")]
    with pytest.raises(InputError, match="elsewhere; the token does not go there"):
        connect(fake.url, token_file).status("x")
    assert len(fake.seen) == 1


@pytest.mark.parametrize(
    "url",
    ["http://hpo.example.org", "http://10.0.0.1:80", "http://localhost.example.org", "http://127.0.0.1.example.org"],
)
def test_the_token_is_not_sent_in_the_clear(token_file, url):
    with pytest.raises(InputError, match="use https://"):
        connect(url, token_file)


@pytest.mark.parametrize(
    "url", ["", "hpo.example.org", "ftp://x", "https://", "https://x?y", "https://x:port", "https://u:p@x"]
)
def test_a_url_that_is_none(token_file, url):
    with pytest.raises(InputError, match="--service"):
        connect(url, token_file)


@pytest.mark.parametrize("content", [None, "", "two words", "ü", "a\nb"])
def test_a_token_file_that_has_none(tmp_path, content):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=f"token file {path}"):
        connect("https://127.0.0.1:1", path)


def test_the_token_is_read_anew_and_no_login_takes_its_place(fake, token_file, tmp_path, monkeypatch):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password mine\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    fake.answers = [good([])]
    client = connect(fake.url, token_file)
    client.searches()
    token_file.write_text("another.one")
    client.searches()
    assert [seen[2] for seen in fake.seen] == ["Bearer a.secret.token", "Bearer another.one"]


def test_an_unknown_authority_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    api = start_api(tmp_path / "api", tls=True)
    try:
        token = api.token_file("alice")
        with pytest.raises(InputError, match=r"is not trusted: .*--ca FILE"):
            connect(api.url, token).searches()
        assert connect(api.url, token, ca=api.ca).searches() == []
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(api.ca))
        assert connect(api.url, token).searches() == []
    finally:
        api.stop()
    with pytest.raises(InputError, match="no such file"):
        connect(api.url, token, ca=tmp_path / "none.pem")


# --- answers that get lost ---


def test_reading_is_repeated(fake, token_file):
    fake.answers = [None, problem(503, "try_again"), (502, {}, b""), good([])]
    with pytest.raises(TryAgainError):
        connect(fake.url, token_file).searches()
    assert connect(fake.url, token_file).searches() == []


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda client: client.pause("x"), "paused"),
        (lambda client: client.stop("x"), "stopping"),
        (lambda client: client.resume("x"), "running"),
    ],
)
def test_a_change_whose_answer_is_lost_is_looked_for(fake, token_file, change: Callable[[RestClient], Any], state):
    fake.answers = [None, good(search(state)), good(search("never asked"))]
    assert change(connect(fake.url, token_file))["state"] == state
    assert [seen[0] for seen in fake.seen] == ["POST", "GET"]


def test_a_change_that_did_not_arrive_is_made(fake, token_file):
    fake.answers = [None, good(search("running")), good(search("paused"))]
    assert connect(fake.url, token_file).pause("x")["state"] == "paused"
    assert [seen[0] for seen in fake.seen] == ["POST", "GET", "POST"]


def test_an_extension_says_what_it_extends(fake, token_file):
    fake.answers = [good(search("done")), None, good(search("running", 69))]
    connect(fake.url, token_file).extend("x", {"trials": 5})
    bodies = [json.loads(seen[3]) for seen in fake.seen[1:]]
    assert bodies == [{"add": {"trials": 5}, "seen": {"trials": 64}}] * 2


def test_a_submission_is_repeated_under_its_key(tmp_path, token_file, fake):
    path = write_search(tmp_path / "mine", "x", payload={"command": "true"})
    examined = {"valid": True, "problems": [], "notes": [], "search": {}, "named_files": None}
    fake.answers = [good(examined), None, None, good(search("submitted"))]
    connect(fake.url, token_file).submit(path)
    assert [seen[1].partition("?")[0] for seen in fake.seen] == ["/api/v1/examinations"] + ["/api/v1/searches"] * 3


def test_a_registration_whose_answer_is_lost_is_one(tmp_path):
    """Through a proxy that loses the first answer of the real API."""
    api = start_api(tmp_path / "api")
    try:
        lost = LosingProxy(api.url)
        client = RestClient(lost.url, api.token_file("alice"))
        document = client.submit(write_search(tmp_path / "mine", "once"))
        assert lost.lost == 1
        assert document["id"] == 1
        assert len(client.searches()) == 1
        assert client.extend("once", {"trials": 5})["budget"]["trials"] == 9
        assert lost.lost == 2
        lost.close()
    finally:
        api.stop()


class LosingProxy:
    """Hands calls on, and hangs up instead of the first answer to each kind of POST that changes something."""

    def __init__(self, target: str) -> None:
        import requests

        proxy = self
        self.lost = 0
        kinds: set[str] = set()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                answer = requests.request(self.command, target + self.path, headers=headers, data=body, timeout=30)
                kind = self.path.partition("?")[0].rsplit("/", 1)[-1]
                if self.command == "POST" and kind in ("searches", "extend") and kind not in kinds:
                    kinds.add(kind)
                    proxy.lost += 1
                    self.close_connection = True
                    return
                self.send_response(answer.status_code)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            do_POST = do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_watching_outlives_a_restart_of_the_service(fake, token_file, monkeypatch):
    from hpo_pilot.client import rest_client

    monkeypatch.setattr(rest_client, "_PAUSE", 0.01)
    progress = {"state": "running", "trials": {}, "total": 4, "best": None, "name": "x", "metric": "loss"}
    tagged = (200, {"ETag": '"1"'}, json.dumps(progress).encode())
    fake.answers = [tagged, *[None] * 9, (304, {}, b""), good({**progress, "state": "done"})]
    states = [now["state"] for now in connect(fake.url, token_file).watch("x")]
    assert states == ["running", "done"]


# --- what a service may not do to its users ---


def examined(files: str | None, *results: str) -> Answer:
    place = {"file": "s.yaml", "line": 1, "column": 1, "path": "payload.files", "message": "", "suggestion": ""}
    named = {
        "files": files,
        "command": "true",
        "files_place": place,
        "command_place": place,
        "results": [
            {"source": source, "place": {**place, "path": f"warm_start[{index}]"}}
            for index, source in enumerate(results)
        ],
    }
    return good({"valid": True, "problems": [], "notes": [], "search": {}, "named_files": named})


@pytest.mark.parametrize("files", ["/", "/etc", ".", "..", "~/.ssh", "train", "ing", "training/..", "command"])
def test_a_service_gets_no_folder_that_the_file_does_not_name(fake, token_file, tmp_path, files):
    path = write_search(tmp_path / "mine", "x")
    fake.answers = [examined(files)]
    with pytest.raises(InputError, match=r"write payload\.files plainly"):
        connect(fake.url, token_file).submit(path)
    assert len(fake.seen) == 1


@pytest.mark.parametrize(
    "form", ["files: training", "files: 'training'", '"files": "training"', "files:   training  # x"]
)
def test_a_folder_is_named_in_many_ways(fake, token_file, tmp_path, form):
    path = write_search(tmp_path / "mine", "x")
    path.write_text(f"search: x\npayload:\n  {form}\n  command: 'true'\n")
    fake.answers = [examined("training"), good({"present": True}), good(search("submitted"))]
    connect(fake.url, token_file).submit(path)
    assert fake.seen[1][1].startswith("/api/v1/payloads/")


@pytest.mark.parametrize("source", ["/etc/passwd", "before", "efore.csv", "x/before.csv", "../before.csv", "true"])
@pytest.mark.parametrize("warm_start", ["warm_start: [before.csv]\n", ""])
def test_a_service_gets_no_results_that_the_file_does_not_name(fake, token_file, tmp_path, source, warm_start):
    path = tmp_path / "search.yaml"
    path.write_text(f"payload: {{command: 'true'}}\n{warm_start}")
    fake.answers = [examined(None, source)]
    with pytest.raises(InputError, match="write it plainly, as in `warm_start:"):
        connect(fake.url, token_file).submit(path)
    assert len(fake.seen) == 1


def test_results_that_the_file_names_are_sent(fake, token_file, tmp_path):
    (tmp_path / "before.csv").write_text("x,value\n1,2\n")
    path = tmp_path / "search.yaml"
    path.write_text("payload: {command: 'true'}\nwarm_start: [old-search, before.csv]\n")
    fake.answers = [examined(None, "before.csv"), good({"present": True}), good(search("submitted"))]
    connect(fake.url, token_file).submit(path)
    digest = fake.seen[1][1].removeprefix("/api/v1/payloads/")
    assert f"results={digest}" in fake.seen[2][1]


def test_new_payload_from_a_place_that_the_service_names_must_be_here(fake, token_file, tmp_path, monkeypatch):
    elsewhere = write_search(tmp_path / "elsewhere", "x")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    known = {**search("paused"), "source": str(elsewhere), "definition": {"payload": {"files": "training"}}}
    fake.answers = [good(known)]
    with pytest.raises(InputError, match=r"which is not in this folder: .*--file FILE"):
        connect(fake.url, token_file).resume("x", new_payload=True)
    assert len(fake.seen) == 1


def test_a_report_stays_in_its_folder(fake, token_file):
    with pytest.raises(InputError, match="no search's name"):
        connect(fake.url, token_file).report_path("../../evil")


# --- light ---


def test_a_client_needs_nothing_of_the_service():
    code = "import sys; from hpo_pilot import connect; connect; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    names = {name.split(".")[0] for name in loaded.split()}
    assert "requests" in names
    assert not names & {"sqlalchemy", "starlette", "fastapi", "yaml", "pydantic", "numpy", "cryptography", "jwt"}
