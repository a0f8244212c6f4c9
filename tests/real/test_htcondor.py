"""Allocations of a real HTCondor pool: submitted, held, removed, ended by their time, kept for a search."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.allocations import AllocationManager, new_name
from hpo_pilot.hpc.batch_system import AllocationSpec, BatchState
from hpo_pilot.hpc.htcondor import Htcondor
from hpo_pilot.hpc.site_profile import SiteProfile
from tests.end_to_end.conftest import Scan
from tests.real.allocations import manager, seen, submit, submit_and_crash, wait
from tests.real.htcondor import Pool, pool
from tests.real.processes import running, serving, until

__all__ = ["manager", "pool"]

SITE: dict[str, Any] = {
    "name": "here",
    "node": {"cores": 2, "memory_mb": 1000},
    "batch": {"system": "htcondor", "warning": {"seconds": 60}},
}

#: Says what it sees and which signals come, and takes its time to end.
WATCH = """
import os, signal, sys, time
def note(text):
    with open("seen", "a") as seen:
        seen.write(text + "\\n")
def end(*_):
    note("warned")
    time.sleep(2)
    note("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
note(f"{os.environ['OMP_NUM_THREADS']} cores")
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def here(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Pool:
    """The pool, for commands that this process calls."""
    for name in ("PATH", "CONDOR_CONFIG"):
        monkeypatch.setenv(name, pool.environment[name])
    return pool


def spec(folder: Path, nodes: int = 1, *, code: str = WATCH, minutes: int = 10, **batch: Any) -> AllocationSpec:
    name = new_name()
    site = SiteProfile.model_validate({**SITE, "batch": {**SITE["batch"], **batch}})
    return AllocationSpec(site, nodes, minutes, name, folder / name, (sys.executable, "-c", code))


def test_removed_with_time_to_save(manager: AllocationManager, tmp_path: Path) -> None:
    asked = spec(tmp_path)
    submit(manager, asked)
    seen(asked, "2 cores")
    assert wait(manager, asked.name, BatchState.RUNNING).started is not None
    waiting = submit(manager, spec(tmp_path, constraint="TARGET.Memory > 100000"))
    assert waiting.job_id is not None
    assert {one.name for one in manager.cancel([asked.name, waiting.job_id])} == {asked.name, waiting.name}
    for name in (asked.name, waiting.name):  # the history has them
        assert "condor_rm" in wait(manager, name, BatchState.CANCELLED).reason
    assert seen(asked, "saved") == ["2 cores", "warned", "saved"]
    assert manager.cancel([asked.name]) == []


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        ("print('all is well')", BatchState.ENDED, ""),
        ("raise SystemExit('all is well, but not done')", BatchState.FAILED, "exit status 1"),
        ("import os; print('all is well', flush=True); os.abort()", BatchState.FAILED, "signal 6"),
    ],
)
def test_one_that_ends(code: str, state: BatchState, reason: str, manager: AllocationManager, tmp_path: Path) -> None:
    """In a pool that copies the output back."""
    asked = spec(tmp_path, code=code, options=("should_transfer_files = YES",))
    submit(manager, asked)
    found = wait(manager, asked.name, BatchState.ENDED, BatchState.FAILED)
    assert (found.state, found.reason) == (state, reason)
    assert "all is well" in asked.output.read_text()


def test_held(manager: AllocationManager, tmp_path: Path) -> None:
    asked = spec(tmp_path, options=("hold = true",))
    submit(manager, asked)
    assert "user's request" in wait(manager, asked.name, BatchState.HELD).reason
    manager.cancel([asked.name])
    wait(manager, asked.name, BatchState.CANCELLED)


def test_the_walltime(manager: AllocationManager, tmp_path: Path) -> None:
    asked = spec(tmp_path, options=("+MaxRuntime = 3",))
    submit(manager, asked)
    wait(manager, asked.name, BatchState.TIMED_OUT)
    assert seen(asked, "saved") == ["2 cores", "warned", "saved"]


def test_evicted_it_does_not_start_again(manager: AllocationManager, here: Pool, tmp_path: Path) -> None:
    asked = spec(tmp_path)
    job_id = submit(manager, asked).job_id
    assert job_id is not None
    seen(asked, "2 cores")
    here.run("condor_vacate_job", job_id)
    wait(manager, asked.name, BatchState.CANCELLED)
    assert seen(asked, "saved") == ["2 cores", "warned", "saved"]


def test_what_is_refused(manager: AllocationManager, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has one node"):
        submit(manager, spec(tmp_path, nodes=2))
    with pytest.raises(InputError, match="refuses the job"):
        submit(manager, spec(tmp_path, options=("universe = nowhere",)))


def test_a_crash_while_submitting(manager: AllocationManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spec(tmp_path)
    submit_and_crash(asked, Htcondor(), monkeypatch, tmp_path / "work")
    assert wait(manager, asked.name, BatchState.RUNNING).job_id is not None  # found by its name
    manager.cancel([asked.name])


#: Saves a checkpoint at once, and waits while there is a file.
PAYLOAD = """
import json, os, sys, time
if not os.path.exists("ckpt/epoch"):
    os.makedirs("ckpt", exist_ok=True)
    open("ckpt/epoch", "w").write("7")
while os.path.exists(sys.argv[1]):
    time.sleep(0.1)
loss = json.load(open("input.json"))["x"] + int(open("ckpt/epoch").read())
json.dump({"status": 0, "loss": loss, "message": ""}, open("output.json", "w"))
"""


def test_a_search(pool: Pool, tmp_path: Path) -> None:
    """A removed pilot gives its trials back with their checkpoints; kept pilots bring the search to its end."""
    for name in ("sites", "files"):
        (tmp_path / name).mkdir()
    (tmp_path / "sites" / "here.yaml").write_text(yaml.safe_dump(SITE))
    (tmp_path / "files" / "train.py").write_text(PAYLOAD)
    (wait := tmp_path / "wait").touch()
    scan = Scan(tmp_path, {**pool.environment, "HPO_PILOT_SITES": str(tmp_path / "sites")})
    search = {
        "search": "demo",
        "space": {"x": {"type": "real", "low": 0, "high": 1}},
        "optimizer": "random",
        "budget": {"trials": 4, "parallel": 4},
        "payload": {
            "files": str(tmp_path / "files"),
            "command": f"{sys.executable} train.py {wait}",
            "checkpoint": ["ckpt"],
        },
        "resources": {"cores": 1, "memory_mb": 400, "minutes": 5},
        "site": {"profile": "here"},
    }
    scan.file.write_text(yaml.safe_dump(search))
    asked = ["--site", "here", "--walltime", "0:20"]
    assert "1 node" in scan("plan", str(scan.file), "--site", "here").stdout
    with serving(scan):
        scan("submit", str(scan.file))
        name = scan("pilots", "submit", *asked, "--nodes", "1").stdout.split()[1]
        log = scan.workdir / "allocations" / name / "output.log"
        until(lambda: len(list((scan.workdir / "checkpoints").glob("*/*/t*f0/.kept"))) == 2, log)
        assert name in scan("pilots", "cancel", name).stdout
        until(lambda: "pilot ends" in log.read_text(), log)
        assert log.read_text().count("is in the queue again") == 2, log.read_text()
        wait.unlink()
        keep = tmp_path / "keep.log"
        looks = ["--max-nodes", "2", "--interval", "0.5", "--idle", "5", "--settle", "15"]
        with running(scan.command("pilots", "keep", *asked, *looks), scan.environment, keep) as keeper:
            until(lambda: scan.json("status", "demo")["state"] == "done", keep)
            until(lambda: "no work is left" in keep.read_text(), keep)
            keeper.terminate()
            assert keeper.wait(600) == 0
        kept = [one for one in scan.json("pilots", "list") if one["kept"]]
        assert len(kept) >= 2 and {one["nodes"] for one in kept} == {1}
        trials = scan.trials()
    assert [trial["state"] for trial in trials] == ["finished"] * 4 and all(trial["value"] >= 7 for trial in trials)
