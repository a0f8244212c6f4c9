"""A service that answers as a test says, and what it may say."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.web import connection

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
