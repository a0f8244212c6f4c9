"""Checks of the contract of `hpo_pilot.hpc.launcher.Launcher`, with ranks on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpo_pilot.hpc.launcher import Launcher, Placement

#: The variables in which launchers tell a rank its number.
RANK_VARIABLES = ("RANK", "HOROVOD_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "FLUX_TASK_RANK", "PMI_RANK")

_REPORT = f"""
import json, os, sys
rank = next((os.environ[name] for name in {RANK_VARIABLES!r} if name in os.environ), "0")
with open(f"rank-{{rank}}.json", "w") as file:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}}, file)
"""
_FAIL = f"""
import os, sys, time
rank = next((os.environ[name] for name in {RANK_VARIABLES!r} if name in os.environ), "0")
open(f"pid-{{rank}}", "w").write(str(os.getpid()))
while not os.path.exists("pid-1"):
    time.sleep(0.02)
sys.exit(3) if rank == "0" else time.sleep(120)
"""

#: Time limit in seconds for the end of all ranks after one has failed.
_ENDS_WITHIN = 60


def base_environment(*folders: Path) -> dict[str, str]:
    """Returns the variables that every pilot has, with the programs in these folders first."""
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return {"PATH": path, "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}


@dataclass(frozen=True)
class LauncherBench:
    """A launcher, and the machine on which it starts ranks.

    Attributes:
        launcher: the launcher.
        folder: the folder of the job, empty.
        base: the environment of the process that starts the command.
        nodes: the launcher's name of this machine, and of others.
        gpu_kind: the kind of GPU of the nodes.
    """

    launcher: Launcher
    folder: Path
    base: Mapping[str, str]
    nodes: tuple[str, ...] = ("localhost",)
    gpu_kind: str = "none"

    def placement(self, ranks: int, **more: Any) -> Placement:
        """Returns a placement on the first node."""
        return Placement(self.nodes[:1], ranks, gpu_kind=self.gpu_kind, **more)

    def run(self, argv: Sequence[str], placement: Placement) -> subprocess.CompletedProcess[str]:
        """Runs a command as the pilot does."""
        return subprocess.run(
            self.launcher.command(argv, placement),
            cwd=self.folder,
            env=self.launcher.environment(placement, self.base),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def check_launcher(launcher: Launcher, folder: Path, base: Mapping[str, str] | None = None, ranks: int = 2) -> None:
    """Runs all checks.

    Args:
        launcher: the launcher.
        folder: an empty folder.
        base: the environment of the process that starts the command; None: the variables that every pilot has.
        ranks: the largest number of ranks on this machine; 1: it starts no more.

    Raises:
        AssertionError: the launcher breaks a part of its contract.
    """
    for number in range(1, ranks + 1):
        (folder / str(number)).mkdir()
        starts_ranks(LauncherBench(launcher, folder / str(number), base or base_environment()), number)
    bench = LauncherBench(launcher, folder, base or base_environment())
    passes_the_status_on(bench)
    if ranks > 1:
        a_dead_rank_ends_the_others(bench)


def starts_ranks(bench: LauncherBench, ranks: int) -> None:
    """Starts as many processes as wanted, each with its arguments and variables, and without credentials."""
    words = ["a b", "$HOME", "-n", "--x=*"]
    secret = {"PANDA_AUTH_TOKEN": "geheim", "DB": "postgresql://me:geheim@host/x"}
    bench = replace(bench, base={**bench.base, **secret})
    placement = bench.placement(ranks, environment={"NCCL_DEBUG": "IN FO,x=1", "MY_TOKEN": "geheim"})
    done = bench.run([sys.executable, "-c", _REPORT, *words], placement)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
    reports = [json.loads(path.read_text()) for path in sorted(bench.folder.glob("rank-*.json"))]
    assert len(reports) == ranks, (
        f"{len(reports)} ranks of {ranks}; each needs one of {', '.join(RANK_VARIABLES)}: {done.stderr}"
    )
    for report in reports:
        env, cwd = report["env"], Path(report["cwd"])
        assert report["argv"] == words, f"a rank's arguments are {report['argv']}, not {words}"
        assert env.get("NCCL_DEBUG") == "IN FO,x=1", "a variable of the placement does not reach a rank unchanged"
        assert env.get("OMP_NUM_THREADS") == "1", "OMP_NUM_THREADS is not the number of cores of a rank"
        assert cwd.resolve() == bench.folder.resolve(), f"a rank runs in {cwd}, not in the job's folder"
        assert "geheim" not in json.dumps(report), "a rank gets a variable that looks like a credential"


def passes_the_status_on(bench: LauncherBench) -> None:
    """A failed rank makes the command fail."""
    done = bench.run([sys.executable, "-c", "raise SystemExit(3)"], bench.placement(1))
    assert done.returncode != 0, "the status is 0, although the rank failed"


def a_dead_rank_ends_the_others(bench: LauncherBench, first: str = "") -> None:
    """A failed rank ends the command and the other ranks.

    Args:
        bench: the launcher.
        first: Python code that each rank runs before.
    """
    began = time.monotonic()
    done = bench.run([sys.executable, "-c", first + _FAIL], bench.placement(2))
    assert done.returncode != 0, "the status is 0, although a rank failed"
    assert time.monotonic() - began < _ENDS_WITHIN, "the command waits for the other ranks"
    pids = [int(path.read_text()) for path in bench.folder.glob("pid-*")]
    assert len(pids) == 2, f"{len(pids)} ranks of 2"
    deadline = time.monotonic() + 10
    while not all(map(_is_over, pids)):
        assert time.monotonic() < deadline, "a rank still runs after the end of the command"
        time.sleep(0.1)


def _is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
