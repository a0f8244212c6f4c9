"""A pilot in an allocation of a real Slurm, at the embedded server."""

from __future__ import annotations

import json
import logging
import os
import platform
import shlex
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo_pilot.hpc.site_files import load_site
from hpo_pilot.jobs import JobNeeds
from hpo_pilot.server.tokens import Role
from tests.bearer import token
from tests.pilot.conftest import ROOT, TOKEN, FakePanda, panda
from tests.pilot.test_with_server import Embedded
from tests.programs import program
from tests.real.processes import until
from tests.real.slurm import CPUS, Slurm, running_slurm, slurm

__all__ = ["panda", "slurm"]

log = logging.getLogger(__name__)

#: Each rank tells where it is and when; the first waits for all the others.
RANKS = """
import json, os, sys, time
rank, size = int(os.environ.get("SLURM_PROCID", 0)), int(os.environ.get("SLURM_NTASKS", 1))  # no ranks: an agent
began = time.time()
time.sleep(float(sys.argv[1]))
mine = {"node": os.environ["SLURMD_NODENAME"], "seed": os.environ["HPO_PILOT_SEED"]}
with open(f"rank-{rank}.new", "w") as file:
    json.dump(mine, file)
os.rename(f"rank-{rank}.new", f"rank-{rank}")
if rank == 0:
    while not all(os.path.exists(f"rank-{other}") for other in range(size)):
        time.sleep(0.02)
    ranks = [json.load(open(f"rank-{other}")) for other in range(size)]
    nodes = sorted({one["node"] for one in ranks})
    metrics = {"ranks": size, "nodes": len(nodes), **{f"on_{node}": 1 for node in nodes}}
    assert {one["seed"] for one in ranks} == {mine["seed"]}
    json.dump({"loss": 0.5, "metrics": {**metrics, "began": began, "ended": time.time()}}, open("output.json", "w"))
"""

#: Counts to its argument, ten a second, and keeps the count; says where it began. With "again", not at the first time.
COUNTING = """
import json, os, signal, sys, time
count = began = int(open("count").read()) if os.path.exists("count") else 0
def save(*_):
    with open("count.new", "w") as file:
        file.write(str(count))
    os.rename("count.new", "count")
def stop(*_):
    save()
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
while count < int(sys.argv[1]) or (sys.argv[2:] == ["again"] and not began):
    time.sleep(0.1)
    count += 1
    save()
json.dump({"loss": 1.0, "metrics": {"began": began, "count": count}}, open("output.json", "w"))
"""


#: Keeps its count every second up to a number; SIGTERM ends it, or does nothing to it.
HEEDLESS = """
import json, os, signal, sys, time
count = began = int(open("count").read()) if os.path.exists("count") else 0
if sys.argv[1] == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while count < int((sys.argv[2:] or [30])[0]):
    time.sleep(1)
    count += 1
    if os.environ["SLURM_PROCID"] == "0":
        with open("count.new", "w") as file:
            file.write(str(count))
        os.rename("count.new", "count")
if os.environ["SLURM_PROCID"] == "0":
    json.dump({"loss": 1.0, "metrics": {"began": began}}, open("output.json", "w"))
"""


@dataclass
class Site:
    """A Slurm with a PanDA server of the test's own; its pilots run in allocations, at that server."""

    slurm: Slurm
    server: Any
    token: str
    folder: Path
    jobs: list[str] = field(default_factory=list)

    @property
    def files(self) -> Path:
        """The files of the payloads."""
        return self.folder / "payload"

    def allocate(self, *options: str, nodes: int = 2, warning: int = 300, path: str = "", **site: Any) -> str:
        """Submits a batch job with a pilot; returns its number."""
        folder = self.folder
        profile = load_site(ROOT / "deploy" / "sites" / "generic-slurm.yaml").model_dump(mode="json")
        profile["batch"]["warning"] = {"signal": "USR1", "seconds": warning}
        (folder / "site.json").write_text(json.dumps({**profile, **site}))
        (folder / "token").write_text(self.token)
        words = [sys.executable, "-m", "hpo_pilot.pilot", "--server", self.server.url, "--queue", "LOCAL"]
        words += ["--token-file", str(folder / "token"), "--workdir", str(folder / "work"), "--heartbeat", "1"]
        words += ["--site", str(folder / "site.json"), "--allocation", "--debug", *options]
        script = folder / f"job{len(self.jobs)}.sh"
        found = f"PATH={path}:$PATH" if path else ""
        lines = ["#!/bin/bash", found, f"cd {shlex.quote(str(ROOT))}", f"exec {shlex.join(words)}", ""]
        script.write_text("\n".join(lines))
        limits = (f"-N{nodes}", "--exclusive", "--no-kill", "--no-requeue", "--time=10")
        self.jobs.append(self.slurm.run("sbatch", "--parsable", *limits, f"--output={folder}/pilot-%j.log", script))
        return self.jobs[-1]

    def submit(self, command: str, jobs: int, needs: JobNeeds, **more: Any) -> int:
        """Submits a task; returns its number."""
        return int(self.server.submit(command, jobs, needs=needs, files=self.files, **more))

    def wait(self, *tasks: int) -> None:
        """Waits until tasks are done."""
        until(lambda: all(self.server.state(task) == "done" for task in tasks))

    def verdict(self, task: int) -> dict[str, Any]:
        """The verdict on the only job of a task, which is done."""
        self.wait(task)
        (found,) = self.server.verdicts(task)
        return dict(found)

    def wait_for_count(self, most: int = 5) -> None:
        """Waits until a payload has counted so far."""
        until(lambda: any(int(path.read_text()) >= most for path in self.folder.glob("work/jobs/**/count")))

    def said(self, job: str) -> str:
        """The log of an allocation's pilot."""
        return (self.folder / f"pilot-{job}.log").read_text()

    def end(self, job: str) -> str:
        """Ends an allocation; returns what its pilot said."""
        self.slurm.run("scancel", "--batch", "--signal=TERM", job)
        self.slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED")
        return self.said(job)

    def steps(self) -> dict[str, str]:
        """The job steps of pilots that run: name and node, by number."""
        lines = self.slurm.run("squeue", "--steps", "--noheader", "--format=%i %j %N").splitlines()
        return {line.split()[0]: line.partition(" ")[2] for line in lines if " hpo-pilot-" in line}


@contextmanager
def made_site(slurm: Slurm, server: Any, own_token: str, folder: Path) -> Iterator[Site]:
    site = Site(slurm, server, own_token, folder)
    site.files.mkdir(exist_ok=True)
    for name, text in (("ranks", RANKS), ("counting", COUNTING), ("heedless", HEEDLESS)):
        (site.files / f"{name}.py").write_text(text)
    yield site
    slurm.cancel_all()
    for job in site.jobs:
        log.info("pilot of job %s:\n%s", job, site.said(job))


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    server = Embedded(tmp_path / "server")
    yield server
    server.kill()


@pytest.fixture
def here(slurm: Slurm, embedded: Embedded, tmp_path: Path) -> Iterator[Site]:
    with made_site(slurm, embedded, token("me", Role.PILOT), tmp_path) as site:
        yield site


@pytest.fixture
def of_three(embedded: Embedded, tmp_path: Path) -> Iterator[Site]:
    """A cluster of three nodes, of which a test may lose one."""
    with (
        running_slurm(tmp_path / "three", nodes=("n1", "n2", "n3"), timeout=5) as cluster,
        made_site(cluster, embedded, token("me", Role.PILOT), tmp_path) as site,
    ):
        yield site


#: A job of one rank, and of one on each of two nodes.
ONE = JobNeeds(nodes=1, ranks_per_node=1, cores=1, memory_mb=500, minutes=5.0)
TWO = JobNeeds(nodes=2, ranks_per_node=1, cores=1, memory_mb=500, minutes=5.0)


def test_trials_of_several_shapes_run_side_by_side(here: Site) -> None:
    wide, tall = replace(TWO, cores=2), replace(ONE, ranks_per_node=2, cores=2)
    tasks = [
        here.submit("python3 ranks.py 2.0", 3, wide, search="wide"),
        here.submit("python3 ranks.py 2.0", 4, tall, search="tall"),
        here.submit("python3 ranks.py 0.5", 1, replace(ONE, ranks_per_node=0), search="single"),
    ]
    job = here.allocate()
    here.wait(*tasks)
    said = here.end(job)
    verdicts = [here.server.verdicts(task) for task in tasks]
    shapes = [{(v["metrics"]["ranks"], v["metrics"]["nodes"]) for v in some} for some in verdicts]
    assert shapes == [{(2, 2)}, {(2, 1)}, {(1, 1)}]
    runs = [
        (v["metrics"]["began"], v["metrics"]["ended"], node, cores)
        for some, cores in zip(verdicts, (2, 2, 1), strict=True)
        for v in some
        for node in ("n1", "n2")
        if f"on_{node}" in v["metrics"]
    ]
    used = [sum(c for b, e, n, c in runs if n == node and b <= at < e) for at, _, node, _ in runs]
    assert max(used) <= CPUS, "more cores than the node has"
    assert max(used) >= CPUS // 2, "nothing ran side by side"
    assert "allocation of 2 nodes (n1, n2)" in said and "the allocation's node time: " in said and "8 finished" in said


def test_a_rank_that_dies_ends_all_and_its_words_are_the_reason(here: Site) -> None:
    (here.files / "die.py").write_text(
        "import os, sys, time\n"
        # srun, which ends the others at once, may lose what a rank says in its very last moment.
        "sys.excepthook = lambda *what: (sys.__excepthook__(*what), time.sleep(1))\n"
        "if os.environ['SLURM_PROCID'] == '1':\n"
        "    time.sleep(0.3)\n"
        "    raise ValueError('boom')\n"
        "time.sleep(300)\n"
    )
    task = here.submit("python3 die.py", 1, TWO)
    here.allocate()
    verdict = here.verdict(task)
    assert verdict["status"] == 1 and verdict["message"].endswith("rank 1: ValueError: boom")


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_nothing_outlives_a_trial(here: Site, ends: str) -> None:
    """Ranks are not below the pilot, and their batch system does not end what left their session."""
    (here.files / "leave.py").write_text(
        "import os, subprocess, sys\n"
        "for _ in range(3):\n"
        "    words = ['env', '-i', 'setsid', '-f', 'sleep', sys.argv[1]]\n"
        "    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "if sys.argv[2] == 'badly':\n"
        "    os.kill(os.getpid(), 9)\n"
        "open('output.json', 'w').write('{\"loss\": 1}')\n"
    )
    seconds = f"7{os.getpid()}"
    task = here.submit(f"python3 leave.py {seconds} {ends}", 2, TWO)
    here.allocate()
    here.wait(task)
    assert [verdict["status"] for verdict in here.server.verdicts(task)] == [0 if ends == "well" else 1] * 2
    running = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert running.count(["sleep", seconds]) == 0


@pytest.mark.parametrize("end", [("--batch", "--signal=USR1"), ()], ids=["warned", "cancelled"])
def test_a_trial_goes_on_in_the_next_allocation(here: Site, end: tuple[str, ...]) -> None:
    """Cancelled, ranks and runner hear of it when the pilot does, or before."""
    task = here.submit("python3 counting.py 60 again", 1, replace(ONE, minutes=1.0), checkpoint=["count"])
    first = here.allocate(warning=4)
    until(lambda: list(here.folder.glob("work/jobs/**/hpo_pilot_launch.json")) and here.steps())
    here.wait_for_count()
    here.slurm.run("scancel", *end, first)
    here.slurm.wait(first, "COMPLETED" if end else "CANCELLED")
    until(lambda: "pilot ends" in here.said(first))
    said = here.said(first)
    assert ("the batch system warns" in said) == bool(end)
    assert "is in the queue again" in said and "1 checkpointed" in said
    here.allocate()
    verdict = here.verdict(task)
    assert verdict["metrics"]["count"] >= 60 and verdict["metrics"]["began"] >= 5
    assert verdict["attempt"] in (2, 3)  # a pilot that is just ending may have been handed it, and have given it back


def test_a_training_longer_than_an_allocation_runs_across_several(here: Site) -> None:
    """More of them than a job has attempts: each goes on from the checkpoint, and none counts as an attempt."""
    task = here.submit("python3 counting.py 420", 1, replace(ONE, checkpoints=True), checkpoint=["count"])
    while here.server.state(task) != "done":
        assert len(here.jobs) < 40
        here.slurm.wait(here.allocate("--lifetime", "12", "--checkpoint-every", "2", nodes=1), "COMPLETED")
    verdict = here.verdict(task)
    assert verdict["metrics"]["count"] == 420 and verdict["metrics"]["began"] > 0
    assert 3 < verdict["attempt"] <= len(here.jobs)
    said = list(map(here.said, here.jobs))
    assert "1 resumed" in said[-1] and sum("1 checkpointed" in one for one in said) == verdict["attempt"] - 1


def test_a_preempted_allocation_gives_its_trials_back(here: Site) -> None:
    """Slurm signals the steps at once and the pilot after the grace time; no trial heeds the signal."""
    alone = replace(ONE, ranks_per_node=2, cores=2, minutes=1.0)
    given = [("dies", alone, "a"), ("dies", replace(TWO, minutes=1.0), "b"), ("ignores 60", alone, "c")]
    tasks = [
        here.submit(f"python3 heedless.py {how}", 1, needs, search=name, first=number, checkpoint=["count"])
        for number, (how, needs, name) in enumerate(given)
    ]
    first = here.allocate()
    until(lambda: len(list(here.folder.glob("work/checkpoints/*/*/t*f0/.kept/count"))) == len(tasks))
    urgent = here.slurm.run(
        "sbatch", "--parsable", "-N2", "--exclusive", "--partition=urgent", "--output=/dev/null", "--wrap=true"
    )
    until(lambda: "no more jobs start" in here.said(first))
    tasks.append(here.submit("python3 heedless.py dies", 1, alone, search="d", first=3))
    here.slurm.wait(first, "COMPLETED")  # by itself, in the grace time
    here.slurm.wait(urgent, "COMPLETED")
    said = here.said(first)
    assert said.count("; a checkpoint is kept") == 3 and "; 3 checkpointed; 0 run, 0 wait" in said
    here.allocate()
    here.wait(*tasks)
    for task in tasks:
        verdict = here.verdict(task)
        assert verdict["status"] == 0 and (verdict["metrics"]["began"] > 0) == (task != tasks[-1])
        # A request for jobs that is open at the time may bring a job, which is given back too.
        assert verdict["attempt"] <= (2 if task == tasks[-1] else 3)


def test_a_step_that_somebody_cancels_is_no_verdict(here: Site) -> None:
    """The allocation goes on, and so does the trial there: the first time uncounted, the second time not."""
    task = here.submit("python3 heedless.py dies", 1, replace(ONE, minutes=1.0), checkpoint=["count"])
    job = here.allocate("--no-agents")
    count, kept = 0, list[Path]()
    for _ in range(2):
        until(lambda: kept.extend(here.folder.glob("work/checkpoints/*/*/t0f0/.kept/count")) or kept)
        until(lambda: kept[0].exists() and int(kept[0].read_text()) > count)  # noqa: B023
        (step,) = here.steps()
        here.slurm.run("scancel", step)
        until(lambda: step not in here.steps())  # noqa: B023
        count = int(kept[0].read_text())
    here.wait(task)
    verdict = here.verdict(task)
    assert verdict["status"] == 0, verdict["message"]
    assert verdict["attempt"] == 3 and verdict["metrics"]["began"] >= count
    said = here.said(job)
    assert said.count("is in the queue again") == 1 and "no more jobs start" not in said


def test_what_cannot_run_fails_alone(slurm: Slurm, panda: FakePanda, tmp_path: Path) -> None:
    """Too large, a GPU where there is none, an image of another processor, and a launcher that is missing for a time.

    At a server that hands out whatever it has; the embedded one would keep the first two for others.
    """
    image, tools = tmp_path / "image", tmp_path / "tools"
    (image / "bin").mkdir(parents=True)
    machine = 183 if platform.machine() == "x86_64" else 62  # aarch64, x86_64
    (image / "bin" / "sh").write_bytes(b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 2, machine))
    tools.mkdir()
    good = """echo '{"loss": '$SLURM_STEP_ID'.5}' > output.json"""
    reasons = {
        panda.add_job(good, nodes=3, ranks_per_node=1): "needs 3 nodes",
        panda.add_job(good, gpus_per_node=1): "with 1 GPUs",
        panda.add_job(good): "at site 'generic-slurm' horovodrun, which starts the ranks, is not in PATH",
    }
    other = panda.add_job(good, job={"container_name": str(image)})
    with made_site(slurm, panda, TOKEN, tmp_path) as site:
        site.allocate(path=str(tools), launcher={"name": "horovodrun"}, containers={"runtime": "charliecloud"})
        assert f"and this machine is {platform.machine()}" in str(panda.final(other)["meta_data"])
        for job, reason in reasons.items():
            report = panda.final(job)
            assert report["job_status"] == "failed" and reason in report["pilot_error_diag"]
        program(tools / "horovodrun", 'shift 4\nexec srun -N1 -n1 --exact --mem=100M "$@"\n')
        assert panda.final(panda.add_job(good))["job_status"] == "finished"


@pytest.mark.parametrize("how", ["killed", "set down"])
def test_a_node_that_is_lost_takes_its_own_jobs_along(of_three: Site, how: str) -> None:
    """n1 runs a long job, n2 is lost under another, n3 has nothing to do: the next run on n3."""
    here, needs = of_three, replace(ONE, cores=CPUS)

    def running() -> set[str]:
        return {said.split()[1] for said in here.steps().values()}

    go, waits = here.folder / "go", "while [ ! -e {} ]; do sleep 0.2; done; echo '{{\"loss\": 1.5}}' > output.json"
    long = here.submit(waits.format(go), 1, needs, search="long")
    job = here.allocate("--no-agents", nodes=3)
    until(lambda: running() == {"n1"})
    lost = here.submit("python3 counting.py 100", 1, needs, first=1, checkpoint=["count"])
    until(lambda: running() == {"n1", "n2"})
    here.wait_for_count()
    if how == "killed":
        here.slurm.kill_node("n2")
    else:
        here.slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    gone = "node n2 gets no more jobs, 2 nodes are left: the batch system took it away"
    until(lambda: gone in here.said(job))
    here.wait(lost)
    assert "n1" in running()
    go.touch()
    here.wait(long)
    assert (here.verdict(long)["attempt"], here.verdict(lost)["attempt"]) == (1, 2)
    said = here.end(job)
    assert "1 finished, 1 lost, 1 resumed" in said and "srun: error: Node failure on n2" in said


def test_jobs_wait_while_slurms_controller_is_away(here: Site) -> None:
    """What runs goes on; no attempt is used up by launches that nobody can make."""
    running = here.submit("python3 counting.py 80", 1, ONE)
    job = here.allocate("--no-agents")
    until(lambda: len(here.steps()) == 1)
    here.slurm.stop_controller()
    later = here.submit("python3 counting.py 1", 5, ONE, search="later")
    until(lambda: "so the pilot takes no jobs for now: srun: error: Unable to" in here.said(job))
    here.wait(running)
    here.slurm.start_controller()
    until(lambda: "the launcher works again after" in here.said(job))
    here.wait(later)
    assert {verdict["status"] for task in (running, later) for verdict in here.server.verdicts(task)} == {0}
