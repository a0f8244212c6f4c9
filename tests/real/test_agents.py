"""Agents on the nodes of an allocation of a real Slurm."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo_pilot.jobs import JobNeeds
from tests.pilot.test_agents import agents
from tests.programs import program
from tests.real.processes import until
from tests.real.slurm import slurm
from tests.real.test_allocation import Site, embedded, here, of_three

__all__ = ["embedded", "here", "of_three", "slurm"]

ALONE = JobNeeds(nodes=1, ranks_per_node=0, cores=4, memory_mb=500, minutes=5.0)

TWO = """
import json, os
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    json.dump({"loss": float(os.environ["OMPI_COMM_WORLD_SIZE"])}, open("output.json", "w"))
"""

#: Ranks under torchrun on several nodes: they find each other's files, or count until a signal or their number. They do
#: not end before the file of their second argument is there.
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
awaited = [f"rank-{other}" for other in range(size)] + sys.argv[2:]
while last < 0 or count < last or not all(map(os.path.exists, awaited)):
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


def payloads(folder: Path) -> dict[str, psutil.Process]:
    """The payloads that count for the test, by node: their last word is its folder."""
    found = {}
    for process in psutil.process_iter(["cmdline", "environ"]):
        line = process.info["cmdline"] or []
        if line[1:2] == ["counting.py"] and line[-1] == str(folder):
            found[(process.info["environ"] or {}).get("SLURMD_NODENAME", "")] = process
    return found


def test_trials_share_one_job_step(here: Site) -> None:
    """So do ranks that are on one node."""
    ranks = JobNeeds(nodes=1, ranks_per_node=2, cores=2, memory_mb=500, minutes=5.0)
    (here.files / "two.py").write_text(TWO)
    tasks = [here.submit("python3 counting.py 5", 12, ALONE, search="alone")]
    tasks.append(here.submit("python3 two.py", 1, ranks, search="ranks"))
    as_root = {f"OMPI_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")}
    job = here.allocate(launcher={"name": "srun", "on_node": "mpirun"}, environment=as_root)
    until(lambda: agents(here.folder).keys() == {"n1", "n2"})
    assert [said.split()[0] for said in here.steps().values()] == ["hpo-pilot-agents"]
    here.wait(*tasks)
    here.end(job)
    found = [here.server.verdicts(task) for task in tasks]
    assert [verdict["status"] for some in found for verdict in some] == [0] * 13
    assert found[1][0]["value"] == 2.0
    assert not agents(here.folder) and "13 finished" in here.said(job)


@pytest.mark.parametrize("how", ["its agent is killed", "its power is cut"])
def test_a_lost_node_takes_its_own_trials_along(of_three: Site, how: str) -> None:
    """They run again elsewhere from their checkpoints on shared storage; trials of other nodes go on."""
    here = of_three
    task = here.submit(f"python3 counting.py 300 {here.folder}", 4, ALONE, checkpoint=["count"], search="counting")
    job = here.allocate("--checkpoint-every", "2", nodes=3)
    until(lambda: len(payloads(here.folder)) >= 2)
    until(lambda: len(list(here.folder.glob("work/checkpoints/*/*/*/.kept/count"))) == 4)
    node = sorted(payloads(here.folder))[-1]
    if how == "its power is cut":
        here.slurm.kill_node(node)
    else:
        agents(here.folder)[node].send_signal(signal.SIGKILL)
    until(lambda: f"node {node} gets no more jobs, 2 nodes are left" in here.said(job))
    here.wait(task)
    verdicts = here.server.verdicts(task)
    assert [verdict["status"] for verdict in verdicts] == [0] * 4
    again = [verdict for verdict in verdicts if verdict["attempt"] == 2]
    assert 1 <= len(again) <= 2 and all(verdict["metrics"]["began"] > 0 for verdict in again)


def test_agents_end_with_the_pilot_of_the_allocation(here: Site) -> None:
    """Even if it is killed: its trials may be running elsewhere soon."""
    here.submit(f"python3 counting.py 3000 {here.folder}", 2, ALONE, search="counting")
    here.allocate()
    until(lambda: payloads(here.folder))
    (pilot,) = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(here.folder / "work") in (process.info["cmdline"] or []) and "hpo_pilot.pilot" in process.info["cmdline"]
    ]
    pilot.kill()
    until(lambda: not agents(here.folder) and not payloads(here.folder))


@pytest.fixture
def torchrun(horovod: Path, tmp_path: Path) -> dict[str, Any]:
    """Options of an allocation whose torchrun is a real one; the names of emulated nodes are not known to it."""
    (tmp_path / "payload").mkdir(exist_ok=True)
    (tmp_path / "payload" / "spread.py").write_text(SPREAD)
    script = f"""size=$1 nodes=$2 kind=$3 port=${{4##*:}}; shift 4
here="--rdzv-endpoint=127.0.0.1:$port --local-addr=127.0.0.1"
exec {horovod.parent}/torchrun $size $nodes $kind $here "$@" """
    path = program(tmp_path / "tools" / "torchrun", script).parent
    return {"path": str(path), "launcher": {"name": "torchrun", "starter": "srun"}}


def test_a_trial_on_several_nodes_takes_no_job_step(here: Site, torchrun: dict[str, Any]) -> None:
    """Agents start torchrun on its nodes; its signal and checkpoint are those of a job step."""
    short = here.submit(f"python3 spread.py 20 {here.folder}/go", 1, TWO_BY_TWO, search="short")
    job = here.allocate(**torchrun)
    until(lambda: list(here.folder.glob("work/jobs/**/rank-3")))
    assert [said.split()[0] for said in here.steps().values()] == ["hpo-pilot-agents"]
    (here.folder / "go").touch()
    verdict = here.verdict(short)
    assert verdict["status"] == 0, verdict
    assert verdict["metrics"] == {"on_n1": 1, "on_n2": 1, "ranks": 4, "began": 0, "steps": 0}
    long = here.submit("python3 spread.py 3000", 1, TWO_BY_TWO, checkpoint=["count"], search="long")
    until(lambda: list(here.folder.glob("work/jobs/**/2.1/count")))
    here.end(job)
    assert "1 checkpointed" in here.said(job)
    (count,) = here.folder.glob("work/checkpoints/*/*/*/.kept/count")
    assert int(count.read_text()) > 0 and here.server.state(long) != "done"


@pytest.mark.parametrize("how", ["its agent is killed", "its power is cut"])
def test_a_lost_node_gives_its_trial_on_several_nodes_back(of_three: Site, torchrun: dict[str, Any], how: str) -> None:
    here = of_three
    task = here.submit("python3 spread.py 300", 1, TWO_BY_TWO, checkpoint=["count"])
    job = here.allocate("--debug", nodes=3, **torchrun)
    here.wait_for_count(21)
    until(lambda: len(list(here.folder.glob("work/jobs/**/rank-?"))) == 4)  # the first counts before the others start
    ranks = [json.loads(path.read_text()) for path in here.folder.glob("work/jobs/**/rank-?")]
    node = max(rank["node"] for rank in ranks)  # n1: the pilot
    if how == "its power is cut":
        here.slurm.kill_node(node)
    else:
        agents(here.folder)[node].send_signal(signal.SIGKILL)
    until(lambda: f"node {node} gets no more jobs, 2 nodes are left" in here.said(job))
    here.wait(task)
    verdict = here.verdict(task)
    assert (verdict["status"], verdict["attempt"]) == (0, 2), verdict
    assert verdict["metrics"]["began"] > 0 and f"on_{node}" not in verdict["metrics"]


def test_a_rank_that_fails_ends_the_processes_of_all_nodes(here: Site, torchrun: dict[str, Any]) -> None:
    task = here.submit("python3 spread.py -1 31415", 1, TWO_BY_TWO)
    job = here.allocate(**torchrun)
    verdict = here.verdict(task)
    assert verdict["status"] == 1 and "ValueError: boom" in verdict["message"], verdict
    left = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    mine = re.compile(rf"31415|{re.escape(str(here.folder))}/.*spread\.py")  # other tests may have theirs
    assert not [words for words in left if any(map(mine.fullmatch, words))]
    here.end(job)


def test_a_cancelled_allocation_gives_its_trial_on_several_nodes_back(here: Site, torchrun: dict[str, Any]) -> None:
    """Slurm signals the agents, and the pilot of the allocation later or at the same time."""
    here.submit("python3 spread.py 3000", 1, TWO_BY_TWO, checkpoint=["count"])
    job = here.allocate(**torchrun)
    until(lambda: list(here.folder.glob("work/jobs/**/count")))
    here.slurm.run("scancel", job)
    here.slurm.wait(job, "CANCELLED")
    said = here.said(job)
    assert "a checkpoint is kept" in said and "in the queue again" in said
