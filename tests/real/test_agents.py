"""Agents on the nodes of an allocation of a real Slurm."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo_pilot.jobs import JobNeeds
from tests.pilot.conftest import until
from tests.pilot.test_with_server import Embedded
from tests.real.slurm import Slurm, slurm
from tests.real.test_allocation import allocation, embedded, files, three

__all__ = ["allocation", "embedded", "files", "slurm", "three", "until"]

ALONE = JobNeeds(nodes=1, ranks_per_node=0, cores=4, memory_mb=500, minutes=5.0)

TWO = """
import json, os
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    json.dump({"loss": float(os.environ["OMPI_COMM_WORLD_SIZE"])}, open("output.json", "w"))
"""


def agents(folder: Path) -> dict[str, psutil.Process]:
    """The agents of the test, by node."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if line[1:3] == ["-m", "hpo_pilot.pilot.agent"] and line[-1].startswith(str(folder)):
            with suppress(psutil.NoSuchProcess):
                found[process.environ()["SLURMD_NODENAME"]] = process
    return found


def payloads(folder: Path) -> dict[str, psutil.Process]:
    """The payloads that count for the test, by node: their last word is its folder."""
    found = {}
    for process in psutil.process_iter(["cmdline", "environ"]):
        line = process.info["cmdline"] or []
        if line[1:2] == ["counting.py"] and line[-1] == str(folder):
            found[(process.info["environ"] or {}).get("SLURMD_NODENAME", "")] = process
    return found


def test_trials_share_one_job_step(
    slurm: Slurm, embedded: Embedded, files: Path, allocation: Callable[..., str], until: Any, tmp_path: Path
) -> None:
    """So do ranks that are on one node."""
    ranks = JobNeeds(nodes=1, ranks_per_node=2, cores=2, memory_mb=500, minutes=5.0)
    (files / "two.py").write_text(TWO)
    tasks = [embedded.submit("python3 counting.py 5", 12, needs=ALONE, files=files, search="alone")]
    tasks.append(embedded.submit("python3 two.py", 1, needs=ranks, files=files, search="ranks"))
    as_root = {f"OMPI_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")}
    job = allocation(launcher={"name": "srun", "on_node": "mpirun"}, environment=as_root)
    until(lambda: agents(tmp_path).keys() == {"n1", "n2"})
    assert slurm.run("squeue", "--steps", "--noheader", "--format=%j").split().count("hpo-pilot-agents") == 1
    until(lambda: all(embedded.state(task) == "done" for task in tasks))
    slurm.run("scancel", "--batch", "--signal=TERM", job)
    slurm.wait(job, "COMPLETED")
    found = [embedded.verdicts(task) for task in tasks]
    assert [verdict["status"] for some in found for verdict in some] == [0] * 13
    assert found[1][0]["value"] == 2.0
    assert not agents(tmp_path) and "13 finished" in (tmp_path / f"pilot-{job}.log").read_text()


@pytest.mark.parametrize("how", ["its agent is killed", "its power is cut"])
def test_a_lost_node_takes_its_own_trials_along(
    three: Slurm,
    embedded: Embedded,
    files: Path,
    allocation: Callable[..., str],
    until: Any,
    tmp_path: Path,
    how: str,
) -> None:
    """They run again elsewhere from their checkpoints on shared storage; trials of other nodes go on."""
    task = embedded.submit(
        f"python3 counting.py 300 {tmp_path}", 4, needs=ALONE, files=files, checkpoint=["count"], search="counting"
    )
    job = allocation("--checkpoint-every", "2", nodes=3)
    until(lambda: len(payloads(tmp_path)) >= 2)
    until(lambda: len(list(tmp_path.glob("work/checkpoints/*/*/.kept/count"))) == 4)
    node = sorted(payloads(tmp_path))[-1]
    if how == "its power is cut":
        three.kill_node(node)
    else:
        agents(tmp_path)[node].send_signal(signal.SIGKILL)
    until(lambda: f"node {node} gets no more jobs, 2 nodes are left" in (tmp_path / f"pilot-{job}.log").read_text(), 90)
    until(lambda: embedded.state(task) == "done", 240)
    verdicts = embedded.verdicts(task)
    assert [verdict["status"] for verdict in verdicts] == [0] * 4
    again = [verdict for verdict in verdicts if verdict["attempt"] == 2]
    assert 1 <= len(again) <= 2 and all(verdict["metrics"]["began"] > 0 for verdict in again)


def test_agents_end_with_the_pilot_of_the_allocation(
    slurm: Slurm, embedded: Embedded, files: Path, allocation: Callable[..., str], until: Any, tmp_path: Path
) -> None:
    """Even if it is killed: its trials may be running elsewhere soon."""
    embedded.submit(f"python3 counting.py 3000 {tmp_path}", 2, needs=ALONE, files=files, search="counting")
    allocation()
    until(lambda: payloads(tmp_path))
    (pilot,) = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path / "work") in (process.info["cmdline"] or []) and "hpo_pilot.pilot" in process.info["cmdline"]
    ]
    pilot.kill()
    until(lambda: not agents(tmp_path) and not payloads(tmp_path), 120)
