"""Allocations of a real Slurm of two nodes: submitted, listed, cancelled, ended by their walltime, kept for work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.allocations import AllocationManager, new_name
from hpo_pilot.hpc.batch_system import AllocationSpec, BatchState
from hpo_pilot.hpc.site_profile import SiteProfile
from hpo_pilot.hpc.slurm import Slurm as SlurmBatch
from tests.end_to_end.conftest import Scan
from tests.real.allocations import manager, seen, submit, submit_and_crash, wait
from tests.real.processes import running, serving, until
from tests.real.slurm import Slurm, slurm

__all__ = ["manager", "slurm"]

SITE = {
    "name": "here",
    "node": {"cores": 8},
    "batch": {
        "system": "slurm",
        "queue": "debug",
        "queues": {"debug": {"walltime": [{"nodes": 2, "hours": 1.0}], "limits": {"queued": 5}}},
        # Slurm warns up to 30 s early: here 15 s after the start, when Python can take a signal.
        "warning": {"signal": "USR1", "seconds": 15},
    },
    "launcher": {"name": "srun"},
}

#: Says what it sees, and which signals come; ends by itself on the one that cancels it.
WATCH = """
import os, signal, sys, time
def note(text):
    with open("seen", "a") as seen:
        seen.write(text + "\\n")
signal.signal(signal.SIGUSR1, lambda *_: note("warned"))
signal.signal(signal.SIGTERM, lambda *_: (note("ended"), sys.exit(0)))
note(f"{os.environ['SLURM_JOB_NUM_NODES']} nodes, {os.environ['SLURM_CPUS_ON_NODE']} cores")
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def here(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The same, for commands that this process calls."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment[name])
    return slurm


def spec(folder: Path, nodes: int = 1, *, code: str = WATCH, **batch: Any) -> AllocationSpec:
    name = new_name()
    site = SiteProfile.model_validate({**SITE, "batch": {**SITE["batch"], **batch}})  # type: ignore[dict-item]
    return AllocationSpec(site, nodes, 1, name, folder / name, (sys.executable, "-c", code))


def test_both_nodes_whole(manager: AllocationManager, tmp_path: Path) -> None:
    asked = spec(tmp_path, nodes=2)
    submit(manager, asked)
    seen(asked, "2 nodes, 8 cores")
    assert wait(manager, asked.name, BatchState.RUNNING).started is not None
    # What waits for nodes never starts; what runs gets a signal, itself and not a shell before it.
    waiting = submit(manager, spec(tmp_path))
    assert waiting.job_id is not None
    assert {one.name for one in manager.cancel([asked.name, waiting.job_id])} == {asked.name, waiting.name}
    seen(asked, "ended")
    for name in (asked.name, waiting.name):
        assert wait(manager, name, BatchState.CANCELLED).is_over
    assert manager.cancel([asked.name]) == []


def test_one_that_fails(manager: AllocationManager, tmp_path: Path) -> None:
    asked = spec(tmp_path, code="raise SystemExit('no such thing')")
    submit(manager, asked)
    assert wait(manager, asked.name, BatchState.FAILED).reason == "NonZeroExitCode"
    assert "no such thing" in asked.output.read_text()


def test_what_slurm_refuses(manager: AllocationManager, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"[Ii]nvalid partition"):
        submit(manager, spec(tmp_path, queue="nowhere", queues={}))
    with pytest.raises(InputError, match="at most 2"):
        submit(manager, spec(tmp_path, nodes=3))


def test_a_crash_while_submitting(manager: AllocationManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spec(tmp_path)
    submit_and_crash(asked, SlurmBatch(), monkeypatch, tmp_path / "work")
    assert wait(manager, asked.name, BatchState.RUNNING).job_id is not None  # found by its name
    manager.cancel([asked.name])


def test_kept_for_a_search(slurm: Slurm, tmp_path: Path) -> None:
    """`keep` brings an allocation up for a search that waits, and cancels it when no work is left."""
    sites = tmp_path / "sites"
    sites.mkdir()
    (sites / "here.yaml").write_text(yaml.safe_dump(SITE))
    scan = Scan(tmp_path, {**slurm.environment, "HPO_PILOT_SITES": str(sites), "OMP_NUM_THREADS": "1"})
    scan.write({})

    keep = tmp_path / "keep.log"
    asked = ["--site", "here", "--walltime", "0:10"]
    with serving(scan) as serve:
        scan("submit", str(scan.file))
        assert "--allocation" in scan("pilots", "submit", *asked, "--nodes", "1", "--dry-run").stdout
        looks = ["--max-nodes", "1", "--interval", "0.5", "--idle", "2", "--settle", "2", "--jobs", "4"]
        command = scan.command("pilots", "keep", *asked, *looks)
        with running(command, scan.environment, keep) as killed:
            until(lambda: "submitted hpo-" in keep.read_text(), keep)
            killed.kill()
        with running(command, scan.environment, keep) as keeper:
            until(lambda: scan.json("status", "demo")["state"] == "done", keep)
            until(lambda: "no work is left" in keep.read_text(), keep)
            keeper.terminate()
            assert keeper.wait(600) == 0
        assert "submitted hpo-" not in keep.read_text()  # the second time: it knows what the first has submitted
        until(lambda: scan.json("pilots", "list")[0]["state"] == "cancelled", keep)
        (one,) = scan.json("pilots", "list")
        assert one["nodes"] == 1 and one["kept"]
        assert one["name"] in scan("pilots", "list").stdout
        name = scan("pilots", "submit", *asked, "--nodes", "2").stdout.split()[1]
        log = scan.workdir / "allocations" / name / "output.log"
        until(lambda: log.exists() and "allocation of 2 nodes (n1, n2)" in log.read_text(), serve)
        assert name in scan("pilots", "cancel", "--all").stdout
        until(lambda: "pilot ends" in log.read_text(), log)  # on Slurm's signal, by itself


def test_the_walltime(manager: AllocationManager, here: Slurm, tmp_path: Path) -> None:
    """The warning comes to the pilot's process itself, before the end; how a job ended is told."""
    warned, over = spec(tmp_path), spec(tmp_path)
    submit(manager, warned)
    seen(warned, "1 nodes, 8 cores")
    job_id = submit(manager, over).job_id
    seen(over, "1 nodes, 8 cores")
    # Slurm looks at walltimes each 30 s.
    here.run("scontrol", "update", f"jobid={job_id}", "EndTime=now+1")
    assert wait(manager, over.name, BatchState.TIMED_OUT).reason == "TimeLimit"
    assert "ended" not in seen(warned, "warned")
    manager.cancel([warned.name])
