"""Inputs that take their time: the server is told, and heard."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

GOOD = """cat data.csv input_ds.json > said; echo '{"status": 0, "loss": 1}' > output.json"""


class SlowWeb:
    """Serves half of a file, and the rest when it is told to."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        gate = self.gate

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"1,")
                self.wfile.flush()
                gate.wait(30)
                self.wfile.write(b"2\n")

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/data.csv"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def web():
    served = SlowWeb()
    yield served
    served.gate.set()
    served.server.shutdown()
    served.server.server_close()


def test_the_server_hears_that_a_job_starts(panda, pilot, web, until):
    job = panda.add_job(GOOD, inputs=[web.url], outputs=["said"])
    pilot.start()
    until(lambda: len(panda.of(job, "starting")) >= 2)
    assert not panda.of(job, "running")
    web.gate.set()
    assert panda.final(job)["job_status"] == "finished"
    second = panda.add_job(GOOD, inputs=[web.url])
    assert panda.final(second)["job_status"] == "finished"
    assert not panda.of(second, "starting"), "it was there already"


@pytest.mark.parametrize("how", ["tobekilled", "drain"])
def test_what_is_fetched_for_nobody_is_given_up(panda, pilot, web, until, how):
    job = panda.add_job(GOOD, inputs=["root://nowhere//data.csv"])
    tools = pilot.folder / "bin"
    tools.mkdir()
    (tools / "xrdcp").write_text("#!/bin/sh\nexec sleep 60\n")
    (tools / "xrdcp").chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{tools}:{before}"
    try:
        process = pilot.start()
    finally:
        os.environ["PATH"] = before
    until(lambda: panda.of(job, "starting"))
    if how == "drain":
        process.terminate()
    else:
        panda.commands[job] = "tobekilled"
    final = panda.final(job)
    assert final["job_status"] == "failed"
    assert final["pilot_error_diag"].startswith(
        "killed by the server" if how == "tobekilled" else "root://nowhere//data.csv: stopped during the download"
    )
