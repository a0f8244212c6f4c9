"""Payloads written for other tools, and their inputs: through the real command to the pilot."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

#: As phpo's users write them: their own file names, a list of training data, metadata and metrics files.
PHPO = """
import json
point = json.load(open("hp.json"))
files = json.load(open("training.json"))
assert files == ["shared.csv", "remote.csv"], files
offset, scale = float(open(files[0]).read()), float(open(files[1]).read())
loss = scale * (point["x"] - offset) ** 2
json.dump({"status": 0, "loss": loss, "message": ""}, open("loss.json", "w"))
json.dump({"epochs": 3, "last": float("nan")}, open("userJobMetadata.json", "w"))
open("metrics.tgz", "w").write("metrics of %r" % point["x"])
"""
NAMES = {"point": "hp.json", "result": "loss.json", "inputs": "training.json"}
NAMES |= {"metadata": "userJobMetadata.json", "metrics": "metrics.tgz"}


class Web:
    def __init__(self) -> None:
        self.asked: list[str] = []
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.asked.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", "3")
                self.end_headers()
                self.wfile.write(b"2.0")

            def log_message(self, *_: Any) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def web() -> Iterator[Web]:
    served = Web()
    yield served
    served.server.shutdown()
    served.server.server_close()


def payload(scan: Any, *inputs: str) -> dict[str, Any]:
    (scan.root / "data").mkdir(exist_ok=True)
    (scan.root / "data" / "shared.csv").write_text("0.25")
    command = "python3 -I -S train.py"
    return {"files": "payload", "command": command, "inputs": list(inputs), "file_names": NAMES}


def test_a_phpo_payload_runs_as_it_is_with_its_inputs(scan, web):
    scan.write(
        {
            "budget": {"trials": 6, "parallel": 3},
            "payload": payload(scan, "data/shared.csv", f"{web.url}/remote.csv"),
            "resources": {"minutes": 1, "memory_mb": 500, "trials_per_job": 3},
        },
        PHPO,
    )
    scan("run", str(scan.file))
    trials = scan.trials()
    assert [trial["value"] for trial in trials] == pytest.approx([2 * (t["point"]["x"] - 0.25) ** 2 for t in trials])
    assert [trial["folds"][0]["metadata"] for trial in trials] == [{"epochs": 3, "last": None}] * 6
    assert web.asked == ["/remote.csv"], "once for all jobs"
    best = scan.json("best", "demo")
    scan.here("fetch", "best", "demo", "-o", str(scan.root / "out"))
    text = (scan.root / "out" / f"trial{best['number']}" / "metrics.tgz").read_text()
    assert text == f"metrics of {best['point']['x']!r}"
