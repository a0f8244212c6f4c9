"""LSF against commands that check what they are told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.hpc.allocations import AllocationFile, Fleet
from hpo_pilot.hpc.batch_system import AllocationSpec, BatchState
from hpo_pilot.hpc.batch_systems import make_batch_system
from hpo_pilot.hpc.site_files import find_site

STUB = Path(__file__).parent / "stubs" / "lsf.py"


@pytest.fixture
def lsf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an LSF's state; its commands are first in PATH."""
    folder = tmp_path / "lsf"
    folder.mkdir()
    for program in ("bsub", "bjobs", "bkill"):
        (folder / program).write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {STUB} "$0" "$@"\n')
        (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("LSF_STUB", str(folder))
    return folder


@pytest.fixture
def summit(tmp_path: Path) -> AllocationSpec:
    site = find_site("summit")
    folder = tmp_path / "shared"
    return AllocationSpec(site, 92, 720, "hpo-1", folder, ("hpo-pilot", "pilot"), account="ABC123")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(AllocationFile(tmp_path / "work"))


def jobs(lsf: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((lsf / "jobs.json").read_text())
    return found


def test_a_life(lsf: Path, summit: AllocationSpec, fleet: Fleet) -> None:
    done = fleet.submit(summit, server="https://here", panda_queue="Q")
    assert done.job_id == "1000" and done.state is BatchState.WAITING
    kept = jobs(lsf)["1000"]
    assert kept["script"] == summit.script_file.read_text()
    assert kept["options"] == {
        "J": "hpo-1",
        "nnodes": "92",
        "W": "12:00",
        "q": "batch",
        "P": "ABC123",
        "wa": "USR1",
        "wt": "5",
        "rn": True,
        "o": str(summit.output),
        "alloc_flags": "NVME smt1",
    }
    (lsf / "jobs.json").write_text(json.dumps({"1000": {**kept, "stat": "RUN"}}))
    assert fleet.refresh()[0].state is BatchState.RUNNING
    (one,) = fleet.cancel(["1000"])
    assert one.state is BatchState.CANCELLED and one.reason == "TERM_OWNER: job killed by owner"
    assert fleet.cancel(["hpo-1"]) == []


@pytest.mark.parametrize(
    ("stat", "reason", "state"),
    [
        ("PSUSP", "-", BatchState.HELD),
        ("SSUSP", "-", BatchState.RUNNING),
        ("DONE", "-", BatchState.ENDED),
        ("EXIT", "-", BatchState.FAILED),
        ("EXIT", "TERM_RUNLIMIT: job killed after reaching LSF run time limit", BatchState.TIMED_OUT),
        ("EXIT", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit", BatchState.FAILED),
    ],
)
def test_states(stat: str, reason: str, state: BatchState, lsf: Path) -> None:
    job = {"name": "a|b", "queue": "batch", "stat": stat, "reason": reason}
    (lsf / "jobs.json").write_text(json.dumps({"7": job}))
    (found,) = make_batch_system("lsf").jobs().values()
    assert (found.id, found.name, found.state, found.queue) == ("7", "a|b", state, ("batch",))


def test_of_several_some_are_over(lsf: Path) -> None:
    (lsf / "jobs.json").write_text(
        json.dumps({n: {"name": n, "queue": "q", "stat": s, "reason": "-"} for n, s in (("1", "DONE"), ("2", "RUN"))})
    )
    make_batch_system("lsf").cancel(["1", "2"])
    assert jobs(lsf)["2"]["stat"] == "EXIT"
