"""A real Pilot 3 runs jobs of ours: it pulls them from the embedded server, which is all that it needs."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.end_to_end.conftest import Scan
from tests.image_root import make_image_root
from tests.real.pilot3 import USER, Pilot3, check_isolation, sources
from tests.real.processes import missing, until

PAYLOAD = """
import json, os, sys, time
trial = int(os.environ["HPO_PILOT_TRIAL"])
if trial == 1:
    sys.exit("this one is no good")
open("model.txt", "w").write("trial %d" % trial)
json.dump({"status": 0, "loss": json.load(open("input.json"))["x"], "uid": os.getuid()}, open("output.json", "w"))
"""

LEVELS = """
import json, os
point, state = json.load(open("input.json")), os.path.join(os.environ["HPO_PILOT_CHECKPOINT_DIR"], "epoch")
begun = int(open(state).read()) if os.path.exists(state) else 0
open(state, "w").write(str(point["epochs"]))
loss = point["x"] + 1 / point["epochs"]
json.dump({"status": 0, "loss": loss, "metrics": {"begun": begun}}, open("output.json", "w"))
"""

WHERE = """
import json, os, sys
json.dump({"status": 0, "loss": float(os.path.lexists(os.path.dirname(sys.argv[1])))}, open("output.json", "w"))
"""

PAYLOAD_SECTION = {"files": "payload", "command": "python3 -I -S train.py"}
SLEEP = """
import json, time
open(__file__ + ".started", "w").close()
time.sleep(600)
json.dump({"status": 0, "loss": 1}, open("output.json", "w"))
"""


class Service:
    """`hpo-pilot serve` without pilots of its own, on a folder in which a Pilot 3's user may put outputs."""

    def __init__(self, scan: Scan) -> None:
        self.scan, self.url = scan, ""
        self.process = scan.start("serve", "--slots", "0")
        try:
            until(self._answers)
            self._open_storage()
        except AssertionError:
            pytest.fail(self.stop())
        self.token = scan.workdir / "tokens" / "pilot.token"

    def _open_storage(self) -> None:
        """The Pilot 3's user may write where outputs go, and get there: what a site does for its storage."""
        grid = self.scan.workdir / "panda-files" / "grid"
        grid.mkdir(exist_ok=True)
        shutil.chown(grid, USER, USER)
        for folder in (grid.parent, self.scan.workdir, self.scan.root):
            folder.chmod(0o711)

    def _answers(self) -> bool:
        try:
            self.url = (self.scan.workdir / "tokens" / "address").read_text().partition("\n")[0]
            return requests.get(f"{self.url}/api/v1/system/is_alive", timeout=600).ok
        except (FileNotFoundError, requests.RequestException):
            return False

    def get(self, path: str, **arguments: Any) -> Any:
        token = (self.scan.workdir / "tokens" / "user.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Origin": "hpo_pilot"}
        return requests.get(f"{self.url}/{path}", params=arguments, headers=headers, timeout=600)

    def job(self, panda_id: int) -> dict[str, Any]:
        return dict(self.get("api/v1/job/get_description", job_ids=[panda_id]).json()["data"][0])

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=600)[0]


@pytest.fixture
def scan() -> Iterator[Scan]:
    check_isolation()
    # Not in pytest's own folder, which is closed to other users.
    with tempfile.TemporaryDirectory(prefix="hpo-pilot-real-") as folder:
        yield Scan(Path(folder))


@pytest.fixture
def service(scan: Scan) -> Iterator[Service]:
    running = Service(scan)
    yield running
    running.stop()


@pytest.fixture(params=sources())
def pilot(service: Service, request: pytest.FixtureRequest) -> Iterator[Pilot3]:
    pilot3 = Pilot3(service.url, service.token, source=request.param)
    yield pilot3
    pilot3.remove()


def processes_in(folder: str) -> list[str]:
    """Those that work in a folder whose name begins so."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str((entry / "cwd").readlink()).startswith(folder):
                found.append((entry / "cmdline").read_text())
        except OSError:  # it has ended, or is a kernel thread
            continue
    return found


def state(scan: Scan) -> str:
    return str(json.loads(scan("status", "demo", "--json").stdout)["state"])


def test_a_search_is_done(scan: Scan, service: Service, pilot: Pilot3) -> None:
    scan.write(
        {"budget": {"trials": 3, "parallel": 3}, "payload": PAYLOAD_SECTION | {"outputs": ["model.txt"]}}, PAYLOAD
    )
    scan("submit", str(scan.file))
    pilot.start()
    until(lambda: state(scan) == "done", pilot.said)

    trials = json.loads(scan("trials", "demo", "--json").stdout)
    assert [trial["state"] for trial in trials] == ["failed", "finished", "finished"]
    assert "this one is no good" in trials[0]["error"]
    assert all(trial["value"] == trial["point"]["x"] for trial in trials[1:])
    # Its outputs went to the storage by `mv`, and come back from there.
    best = min(trials[1:], key=lambda trial: trial["value"])["number"]
    scan("fetch", "best", "demo", "--output", str(scan.root / "fetched"))
    (model,) = (scan.root / "fetched").rglob("model.txt")
    assert model.read_text() == f"trial {best}"


def test_levels_are_trained_from_the_start(scan: Scan, service: Service, pilot: Pilot3) -> None:
    """A Pilot 3 brings no checkpoint from one job to the next: the log says so, and its result is right."""
    levels = {"fidelity": {"epochs": {"low": 1, "high": 3}}, "budget": {"trials": 3, "parallel": 1}}
    scan.write(levels | {"payload": PAYLOAD_SECTION}, LEVELS)
    scan("submit", str(scan.file))
    pilot.start()
    until(lambda: state(scan) == "done", pilot.said)
    trials = json.loads(scan("trials", "demo", "--json").stdout)
    promoted = [trial for trial in trials if trial.get("continues")]
    assert promoted and len(trials) == 3 + len(promoted)
    for trial in promoted:
        assert trial["value"] == trial["point"]["x"] + 1 / 3
        assert trial["folds"][0]["metrics"]["begun"] == 0
    assert "trained from the start: there is no checkpoint" in scan("log", "demo", "--json").stdout
    levels = json.loads(scan("status", "demo", "--json").stdout)["levels"]
    assert [level["trained"] for level in levels] == [3, 3 * len(promoted)]


def test_a_stopped_search_ends_its_payload(scan: Scan, service: Service, pilot: Pilot3) -> None:
    scan.write({"budget": {"trials": 1, "parallel": 1}}, SLEEP)
    scan("submit", str(scan.file))
    pilot.start()
    until(lambda: list(pilot.folder.rglob("train.py.started")), pilot.said)
    assert any("train.py" in line for line in processes_in(str(pilot.folder)))
    scan("stop", "demo")
    until(lambda: state(scan) == "stopped", pilot.said)
    until(lambda: service.job(1)["pilotErrorCode"] == 1144, pilot.said)
    assert service.job(1)["jobStatus"] == "cancelled" and "killed" in service.job(1)["pilotErrorDiag"]
    until(lambda: not any("train.py" in line for line in processes_in(str(pilot.folder))), pilot.said)


def test_the_payload_runs_in_its_image(scan: Scan, service: Service, pilot: Pilot3) -> None:
    """A Pilot 3 without an experiment's plugin starts no containers: the transformation does."""
    if not shutil.which("ch-run"):
        missing("ch-run: `make test-real` installs it, if root")
    # The container's /tmp is its own, so that the payload does not see the search file.
    image = make_image_root(scan.root / "image")
    payload = PAYLOAD_SECTION | {"container": str(image), "command": f"python3 -I -S train.py {scan.file}"}
    scan.write({"budget": {"trials": 1, "parallel": 1}, "payload": payload}, WHERE)
    assert scan.file.is_file()
    scan("submit", str(scan.file))
    pilot.start()
    until(lambda: state(scan) == "done", pilot.said)
    (trial,) = json.loads(scan("trials", "demo", "--json").stdout)
    assert trial["value"] == 0, trial
