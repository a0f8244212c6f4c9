"""A payload that reports its loss to the server through iDDS's REST instead of writing a result."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Points:
    """The server's side, as far as the runner asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[tuple[int, Any]] = [(200, [{"id": 2, "parameters": {}, "loss": 0.0}])]
        points = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                points.asked.append(self.path)
                status, content = points.answers[min(len(points.asked), len(points.answers)) - 1]
                body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Silence."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.env = {
            "HPO_PILOT_IDDS_URL": f"http://127.0.0.1:{self.server.server_address[1]}/points/secret-1/idds",
            "PanDA_TaskID": "17",
        }


@pytest.fixture
def points():
    server = Points()
    thread = threading.Thread(target=server.server.serve_forever)
    thread.start()
    yield server
    server.server.shutdown()
    server.server.server_close()
    thread.join()


def test_it_is_the_value(bench, points):
    """The payload sees its own point alone, and the address is kept nowhere."""
    own = '"t${HPO_PILOT_TRIAL}f${HPO_PILOT_FOLD}/idds"'
    ended = bench.run(f'test "${{HPO_PILOT_IDDS_URL#*/points/*/}}" = {own}', env=points.env, metric="accuracy")
    assert (ended.code, ended.verdict["value"], ended.message) == (0, 0.0, "")
    trial, fold = ended.verdict["trial"], ended.verdict["fold"]
    assert points.asked == [f"/points/secret-1/t{trial}f{fold}/idds/hpo/17/null/null/null/1"]
    for path in ended.folder.iterdir():
        assert not path.is_file() or b"secret-1" not in path.read_bytes(), path


NONE = "no usable output.json: none was written"


@pytest.mark.parametrize(
    ("command", "answers", "value", "message", "asked"),
    [
        ("echo '{\"loss\": 3.5}' > output.json", [], 3.5, "", 0),
        ("exit 3", [], None, "exit code 3", 0),
        ("true", [(200, [])], None, NONE, 1),
        ("true", [(200, [{"id": 2, "parameters": {}, "loss": None}])], None, NONE, 1),
        ("true", [(403, {"msg": "this address is no running job's"})], None, NONE, 1),
        ("true", [(404, {"msg": "no points"})], None, NONE, 1),
        ("true", [(503, "later"), (200, "half an ans"), (200, [{"loss": 0.0}])], 0.0, "", 3),
    ],
)
def test_what_counts(bench, points, command, answers, value, message, asked):
    points.answers = answers or points.answers
    ended = bench.run(command, env=points.env)
    assert (ended.code, ended.verdict["value"], len(points.asked)) == (0, value, asked)
    assert message in ended.message


def test_a_server_that_stays_away_is_the_infrastructures_fault(bench, monkeypatch):
    """Not a verdict: what the payload reported is at the server."""
    from hpo_pilot.runner import hpo_pilot_results

    monkeypatch.setattr(hpo_pilot_results, "PATIENCE", 1.0)
    with pytest.raises(SystemExit, match="cannot ask the server for the payload's loss"):
        hpo_pilot_results.reported_loss("http://127.0.0.1:9/points/x/idds", "17")
