"""Agents on the nodes of an allocation of a real Slurm."""

from __future__ import annotations

import json
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
from tests.programs import program
from tests.real.slurm import Slurm, slurm
from tests.real.test_allocation import allocation, embedded, files, three

__all__ = ["allocation", "embedded", "files", "slurm", "three", "until"]

ALONE = JobNeeds(nodes=1, ranks_per_node=0, cores=4, memory_mb=500, minutes=5.0)

TWO = """
import json, os
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    json.dump({"loss": float(os.environ["OMPI_COMM_WORLD_SIZE"])}, open("output.json", "w"))
"""

#: Ranks under torchrun on several nodes: they find each other's files, or count until a signal or their number.
SPREAD = """
import json, os, signal, subprocess, sys, time
rank, size, last = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
count = began = int(open("count").read()) if os.path.exists("count") else 0
def save(*stop):
    if rank == 0:
        open("count.new", "w").write(str(count))
        os.rename("count.new", "count")
    if stop:
        sys.exit(1)
signal.signal(signal.SIGTERM, save)
if last < 0 and rank == size - 1:
    subprocess.Popen(["env", "-i", "setsid", "-f", "sleep", sys.argv[2]])
    raise ValueError("boom")
mine = {"node": os.environ["SLURMD_NODENAME"], "step": "SLURM_STEP_ID" in os.environ}
with open(f"rank-{rank}.new", "w") as file:
    json.dump(mine, file)
os.rename(f"rank-{rank}.new", f"rank-{rank}")
while last < 0 or count < last or not all(os.path.exists(f"rank-{other}") for other in range(size)):
    time.sleep(0.1)
    count += 1
    save()
if rank == 0:
    ranks = [json.load(open(f"rank-{other}")) for other in range(size)]
    metrics = {f"on_{one['node']}": 1 for one in ranks} | {"ranks": size, "began": began}
    metrics |= {"steps": sum(one["step"] for one in ranks)}
    json.dump({"loss": 0.5, "metrics": metrics}, open("output.json", "w"))
print(f"rank {rank} has ended")
"""
TWO_BY_TWO = JobNeeds(nodes=2, ranks_per_node=2, cores=2, memory_mb=500, minutes=5.0)


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


def steps(slurm: Slurm) -> list[str]:
    """The names of the job steps that run."""
    return slurm.run("squeue", "--steps", "--noheader", "--format=%j").split()


@pytest.fixture
def torchrun(files: Path, horovod: Path, tmp_path: Path) -> dict[str, Any]:
    """Options of an allocation whose torchrun is a real one; the names of emulated nodes are not known to it."""
    (files / "spread.py").write_text(SPREAD)
    script = f"""size=$1 nodes=$2 kind=$3 port=${{4##*:}}; shift 4
here="--rdzv-endpoint=127.0.0.1:$port --local-addr=127.0.0.1"
exec {horovod.parent}/torchrun $size $nodes $kind $here "$@" """
    path = program(tmp_path / "tools" / "torchrun", script).parent
    return {"path": str(path), "launcher": {"name": "torchrun", "starter": "srun"}}


def test_a_trial_on_several_nodes_takes_no_job_step(
    slurm: Slurm,
    embedded: Embedded,
    files: Path,
    allocation: Callable[..., str],
    until: Any,
    tmp_path: Path,
    torchrun: dict[str, Any],
) -> None:
    """Agents start torchrun on its nodes; its signal and checkpoint are those of a job step."""
    short = embedded.submit("python3 spread.py 20", 1, needs=TWO_BY_TWO, files=files, search="short")
    job = allocation(**torchrun)
    until(lambda: list(tmp_path.glob("work/jobs/*/*/rank-3")))
    assert [name for name in steps(slurm) if name.startswith("hpo-pilot")] == ["hpo-pilot-agents"]
    until(lambda: embedded.state(short) == "done")
    (verdict,) = embedded.verdicts(short)
    assert verdict["status"] == 0, verdict
    assert verdict["metrics"] == {"on_n1": 1, "on_n2": 1, "ranks": 4, "began": 0, "steps": 0}
    long = embedded.submit(
        "python3 spread.py 3000", 1, needs=TWO_BY_TWO, files=files, checkpoint=["count"], search="long"
    )
    until(lambda: list(tmp_path.glob("work/jobs/*/2.1/count")))
    slurm.run("scancel", "--batch", "--signal=TERM", job)
    slurm.wait(job, "COMPLETED")
    assert "1 checkpointed" in (tmp_path / f"pilot-{job}.log").read_text()
    (count,) = tmp_path.glob("work/checkpoints/*/*/.kept/count")
    assert int(count.read_text()) > 0 and embedded.state(long) != "done"


@pytest.mark.parametrize("how", ["its agent is killed", "its power is cut"])
def test_a_lost_node_gives_its_trial_on_several_nodes_back(
    three: Slurm,
    embedded: Embedded,
    files: Path,
    allocation: Callable[..., str],
    until: Any,
    tmp_path: Path,
    torchrun: dict[str, Any],
    how: str,
) -> None:
    task = embedded.submit("python3 spread.py 300", 1, needs=TWO_BY_TWO, files=files, checkpoint=["count"])
    job = allocation("--debug", nodes=3, **torchrun)
    until(lambda: any(int(path.read_text()) > 20 for path in tmp_path.glob("work/jobs/*/*/count")))
    node = max(json.loads(path.read_text())["node"] for path in tmp_path.glob("work/jobs/*/*/rank-?"))  # n1: the pilot
    if how == "its power is cut":
        three.kill_node(node)
    else:
        agents(tmp_path)[node].send_signal(signal.SIGKILL)
    until(lambda: f"node {node} gets no more jobs, 2 nodes are left" in (tmp_path / f"pilot-{job}.log").read_text(), 90)
    until(lambda: embedded.state(task) == "done", 120)
    (verdict,) = embedded.verdicts(task)
    assert (verdict["status"], verdict["attempt"]) == (0, 2), verdict
    assert verdict["metrics"]["began"] > 0 and f"on_{node}" not in verdict["metrics"]


def test_a_rank_that_fails_ends_the_processes_of_all_nodes(
    slurm: Slurm,
    embedded: Embedded,
    files: Path,
    allocation: Callable[..., str],
    until: Any,
    tmp_path: Path,
    torchrun: dict[str, Any],
) -> None:
    task = embedded.submit("python3 spread.py -1 31415", 1, needs=TWO_BY_TWO, files=files)
    job = allocation(**torchrun)
    until(lambda: embedded.state(task) == "done")
    (verdict,) = embedded.verdicts(task)
    assert verdict["status"] == 1 and "ValueError: boom" in verdict["message"], verdict
    left = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert not [words for words in left if words and ("31415" in words or "spread.py" in str(words))]
    slurm.run("scancel", "--batch", "--signal=TERM", job)
    slurm.wait(job, "COMPLETED")


def test_a_cancelled_allocation_gives_its_trial_on_several_nodes_back(
    slurm: Slurm,
    embedded: Embedded,
    files: Path,
    allocation: Callable[..., str],
    until: Any,
    tmp_path: Path,
    torchrun: dict[str, Any],
) -> None:
    """Slurm signals the agents, and the pilot of the allocation later or at the same time."""
    embedded.submit("python3 spread.py 3000", 1, needs=TWO_BY_TWO, files=files, checkpoint=["count"])
    job = allocation(**torchrun)
    until(lambda: list(tmp_path.glob("work/jobs/*/*/count")))
    slurm.run("scancel", job)
    slurm.wait(job, "CANCELLED")
    said = (tmp_path / f"pilot-{job}.log").read_text()
    assert "a checkpoint is kept" in said and "in the queue again" in said
