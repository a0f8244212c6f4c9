"""A service that answers as a test says, and what it may say."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.operations import connection

Answer = tuple[int, dict[str, str], bytes] | None


@contextmanager
def http_service(answer: Callable[[str, str, Mapping[str, str], bytes], Answer]) -> Iterator[str]:
    """An HTTP server; `answer` gets method, path, headers and body. None: it hangs up without a word."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = answer(self.command, self.path, self.headers, body)
            if found is None:
                self.close_connection = True
                return
            status, headers, content = found
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@dataclass
class Fake:
    """A service that gives its answers one after another, the last one for ever."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    seen: list[tuple[str, str, str | None, bytes]] = field(default_factory=list)

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        self.seen.append((method, path, headers.get("Authorization"), body))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def fake() -> Iterator[Fake]:
    service = Fake()
    with http_service(service.answer) as service.url:
        yield service


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
