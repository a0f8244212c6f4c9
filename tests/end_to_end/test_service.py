"""`hpo-pilot serve` with submit, pause, resume, stop, extend, as several people would use it."""

from __future__ import annotations

import signal
import time
from contextlib import closing, suppress

import psutil
import pytest
from sqlalchemy import update

from hpo_pilot.store.database import writing
from hpo_pilot.store.tables import leases
from tests.command_here import command_here
from tests.rest_api import store_of

SLOW = """
import json, time
time.sleep(0.3)
json.dump({"status": 0, "loss": json.load(open("input.json"))["x"]}, open("output.json", "w"))
"""


def test_a_search_is_steered_by_the_service(scan):
    scan.write({"budget": {"trials": 400, "parallel": 2}}, SLOW)
    scan.here("submit", str(scan.file))
    refused = scan.here("submit", str(scan.file), status=2)
    assert "already has a search 'demo'" in refused.stderr
    with scan.serving("--slots", "2"):
        scan.until("running", trials=2)
        scan.here("pause", "demo")
        scan.until("paused")
        paused = scan.until("paused", idle=True)["trials"]
        time.sleep(1.5)  # nothing new begins meanwhile
        assert scan.json("status", "demo")["trials"] == paused
        assert set(paused) == {"finished"}
        scan.here("resume", "demo")
        scan.until("running", trials=paused["finished"] + 1)
        scan.here("stop", "demo")
        stopped = scan.until("stopped")
        assert stopped["ended"]
        before = sum(stopped["trials"].values())
        scan.here("extend", "demo", "--trials", "+1")
        scan.until("running", trials=stopped["trials"]["finished"] + 1)
        scan.here("stop", "demo")
        after = scan.until("stopped")
        assert sum(after["trials"].values()) > before
        assert after["budget"]["trials"] == 401
    assert "demo" in scan.here("list").stdout
    assert (scan.workdir / "reports" / "demo.html").exists()


def test_a_live_service_sees_an_extension_and_a_mended_payload(scan):
    scan.write({"budget": {"trials": 20, "parallel": 1}}, SLOW)
    scan.here("submit", str(scan.file))
    with scan.serving("--slots", "2"):
        scan.until("running", trials=1)
        scan.here("extend", "demo", "--trials", "+2")
        mended = SLOW.replace('["x"]', '["x"] + 1000').replace("time.sleep(0.3)", "")
        scan.write({"budget": {"trials": 20, "parallel": 1}}, mended)
        scan.here("resume", "demo", "--new-payload")
        scan.until("done", trials=22)
    values = [trial["value"] for trial in scan.trials()]
    assert len(values) == 22
    assert values[0] < 1
    assert values[-1] > 1000


def test_searches_do_not_wait_for_pages_that_start_slowly_or_are_killed(scan):
    scan.write({})
    scan.here("submit", str(scan.file))
    service = scan.start("serve", "--slots", "2")
    try:
        pages = child_of(service, "hpo_pilot.web")
        pages.suspend()
        scan.until("done")
        pages.kill()
        assert any("serving" in line for line in iter(service.stdout.readline, ""))
        assert child_of(service, "hpo_pilot.web").pid != pages.pid
        service.terminate()
        service.communicate(timeout=600)
        assert service.returncode == 0
    finally:
        service.kill()
        service.communicate()


def child_of(process, module):
    """The process that runs `python -m module`, as soon as there is one."""
    for _ in range(6000):
        for child in psutil.Process(process.pid).children():
            with suppress(psutil.NoSuchProcess):
                if module in child.cmdline():
                    return child
        time.sleep(0.01)
    raise AssertionError(module)


def test_a_run_that_watches_takes_over_when_the_service_dies(scan):
    scan.write({"budget": {"trials": 10, "parallel": 1}}, SLOW)
    scan.here("submit", str(scan.file))
    with scan.serving("--slots", "2") as service:
        run = scan.start("run", str(scan.file))
        scan.until("running", trials=1)
        service.kill()
        output, _ = run.communicate(timeout=600)
        assert run.returncode == 0, output
    assert [trial["state"] for trial in scan.trials()] == ["finished"] * 10


def test_a_halted_service_outlasts_a_take_over_from_another_host(scan):
    scan.write({"budget": {"trials": 400, "parallel": 2}}, SLOW)
    scan.here("submit", str(scan.file))
    with scan.serving("--slots", "2") as service:
        before = scan.until("running", trials=1)["trials"]["finished"]
        # Nothing frees SQLite's lock if its holder is halted: so this process has it.
        with closing(store_of(scan.workdir)) as store, writing(store.engine) as connection:
            service.send_signal(signal.SIGSTOP)
            connection.execute(update(leases).values(host="elsewhere", expires=time.time() - 1))
        refused = scan("serve", "--slots", "2", status=3)
        assert "another hpo-pilot server" in refused.stderr
        service.send_signal(signal.SIGCONT)
        scan.until("running", trials=before + 4)
        scan.here("stop", "demo")
        scan.until("stopped")


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (["status", "99999999999999999999"], 2, "no search"),
        (["resume", "demo"], 2, "is submitted already"),
        (["fetch", "best", "demo"], 2, "declares no outputs"),
        (["best", "demo"], 1, "no finished trial"),
        (["trials", "demo", "--workdir", "/proc/none"], 2, "there is no store"),
    ],
)
def test_wrong_commands_say_what_to_do(scan, command, status, message):
    scan.write({})
    scan.here("submit", str(scan.file))
    result = command_here(*command, *([] if "--workdir" in command else scan.where))
    assert result.returncode == status
    assert message in result.stderr


READS = """
import json
def reads(path):
    try:
        with open(path, "rb") as file:
            return file.read(6) == b"SQLite"
    except PermissionError:
        return False
found = [path for path in PATHS if reads(path)]
json.dump({"status": 0, "loss": len(found), "message": ""}, open("output.json", "w"))
"""


@pytest.mark.usefixtures("needs_landlock")
def test_a_payload_cannot_read_the_databases(scan):
    """They are there: a missing file fails the payload."""
    files = [scan.workdir / name for name in ("hpo-pilot.db", "panda.db")]
    scan.write({"budget": {"trials": 1}, "folds": 1}, READS.replace("PATHS", repr([str(file) for file in files])))
    scan.here("submit", str(scan.file))
    with scan.serving("--slots", "1"):
        scan.until("done")
    (trial,) = scan.trials()
    assert (trial["value"], trial["error"]) == (0, None)
    assert all(file.read_bytes()[:6] == b"SQLite" for file in files)
