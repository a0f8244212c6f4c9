"""What every launcher must do with one and with several ranks on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo_pilot.hpc.launchers import Launcher, Placement

#: By what the programs tell a rank which one it is.
RANK_VARIABLES = ("RANK", "HOROVOD_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "FLUX_TASK_RANK", "PMI_RANK")

REPORT = f"""
import json, os, sys
rank = next((os.environ[name] for name in {RANK_VARIABLES!r} if name in os.environ), "0")
with open(f"rank-{{rank}}.json", "w") as file:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}}, file)
"""
FAIL = f"""
import os, sys, time
rank = next((os.environ[name] for name in {RANK_VARIABLES!r} if name in os.environ), "0")
open(f"pid-{{rank}}", "w").write(str(os.getpid()))
while not os.path.exists("pid-1"):
    time.sleep(0.02)
sys.exit(3) if rank == "0" else time.sleep(120)
"""

#: Seconds that a launcher may take to end everything, after one rank has failed.
ENDS_WITHIN = 60


@dataclass
class Bench:
    """A launcher, and the machine that it starts ranks on.

    Attributes:
        nodes: how the launcher knows this machine.
        base: the environment of the process that starts the command.
        gpu_kind: as the nodes have it.
    """

    launcher: Launcher
    folder: Path
    base: Mapping[str, str]
    nodes: tuple[str, ...] = ("localhost",)
    gpu_kind: str = "none"

    def placement(self, ranks: int, **more: Any) -> Placement:
        return Placement(self.nodes[:1], ranks, gpu_kind=self.gpu_kind, **more)

    def run(self, argv: Sequence[str], placement: Placement) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.launcher.command(argv, placement),
            cwd=self.folder,
            env=self.launcher.environment(placement, self.base),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("rank-*.json"))]


def starts_ranks(bench: Bench, ranks: int) -> None:
    """As many processes as asked for, each with its arguments, its variables, and nobody's secrets."""
    words = ["a b", "$HOME", "-n", "--x=*"]
    bench.base = {**bench.base, "PANDA_AUTH_TOKEN": "geheim", "DB": "postgresql://me:geheim@host/x"}
    placement = bench.placement(ranks, environment={"NCCL_DEBUG": "IN FO,x=1", "MY_TOKEN": "geheim"})
    done = bench.run([sys.executable, "-c", REPORT, *words], placement)
    assert done.returncode == 0, done.stderr
    reports = bench.reports()
    assert len(reports) == ranks, done.stderr
    for report in reports:
        assert report["argv"] == words
        assert report["env"]["NCCL_DEBUG"] == "IN FO,x=1"
        assert report["env"]["OMP_NUM_THREADS"] == "1"
        assert Path(report["cwd"]).resolve() == bench.folder.resolve()
        assert "geheim" not in json.dumps(report)


def passes_the_status_on(bench: Bench) -> None:
    """A rank that fails makes the command fail."""
    done = bench.run([sys.executable, "-c", "raise SystemExit(3)"], bench.placement(1))
    assert done.returncode != 0


def a_rank_that_dies_ends_the_others(bench: Bench, first: str = "") -> None:
    """Nobody waits for a dead rank.

    Args:
        bench: with the launcher.
        first: what ranks do before, in Python.
    """
    began = time.monotonic()
    done = bench.run([sys.executable, "-c", first + FAIL], bench.placement(2))
    assert done.returncode != 0
    assert time.monotonic() - began < ENDS_WITHIN
    pids = [int(path.read_text()) for path in bench.folder.glob("pid-*")]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/stat").exists() and not _is_over(pid) for pid in pids):
        assert time.monotonic() < deadline, "a rank goes on"
        time.sleep(0.1)


def _is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def base_environment(*folders: Path) -> dict[str, str]:
    """What a pilot's environment has at least, with programs in these folders first."""
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return {"PATH": path, "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}
