"""A pilot in an allocation of a real Slurm, at the embedded server."""

from __future__ import annotations

import json
import logging
import os
import platform
import shlex
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpo_pilot.hpc.site_files import load_site
from hpo_pilot.jobs import JobNeeds
from hpo_pilot.server.tokens import Role
from tests.bearer import token
from tests.pilot.conftest import ROOT, TOKEN, FakePanda, panda, until
from tests.pilot.test_with_server import Embedded
from tests.real.slurm import CPUS, Slurm, running_slurm, slurm

__all__ = ["panda", "slurm", "until"]

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

#: Counts to its argument, ten a second, and keeps the count; says where it began.
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
while count < int(sys.argv[1]):
    time.sleep(0.1)
    count += 1
    save()
json.dump({"loss": 1.0, "metrics": {"began": began, "count": count}}, open("output.json", "w"))
"""


#: Keeps its count every second; SIGTERM ends it, or does nothing to it.
HEEDLESS = """
import json, os, signal, sys, time
count = began = int(open("count").read()) if os.path.exists("count") else 0
if sys.argv[1] == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while count < 30:
    time.sleep(1)
    count += 1
    if os.environ["SLURM_PROCID"] == "0":
        with open("count.new", "w") as file:
            file.write(str(count))
        os.rename("count.new", "count")
if os.environ["SLURM_PROCID"] == "0":
    json.dump({"loss": 1.0, "metrics": {"began": began}}, open("output.json", "w"))
"""


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Embedded]:
    server = Embedded(tmp_path / "server")
    yield server
    server.kill()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "payload"
    folder.mkdir()
    (folder / "ranks.py").write_text(RANKS)
    (folder / "counting.py").write_text(COUNTING)
    (folder / "heedless.py").write_text(HEEDLESS)
    return folder


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Slurm]:
    """A cluster of three nodes, of which a test may lose one."""
    with running_slurm(tmp_path / "three", nodes=("n1", "n2", "n3"), timeout=5) as cluster:
        yield cluster


@pytest.fixture
def allocation(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Submits a batch job of two nodes with a pilot of the test's server; returns its number."""
    slurm: Slurm = request.getfixturevalue("three" if "three" in request.fixturenames else "slurm")
    has_fake = "panda" in request.fixturenames
    server = request.getfixturevalue("panda" if has_fake else "embedded")
    (tmp_path / "token").write_text(TOKEN if has_fake else token("me", Role.PILOT))
    jobs: list[str] = []

    def submit(*options: str, nodes: int = 2, warning: int = 300, path: str = "", **site: Any) -> str:
        profile = load_site(ROOT / "deploy" / "sites" / "generic-slurm.yaml").model_dump(mode="json")
        profile["batch"]["warning"] = {"signal": "USR1", "seconds": warning}
        (tmp_path / "site.json").write_text(json.dumps({**profile, **site}))
        words = [sys.executable, "-m", "hpo_pilot.pilot", "--server", server.url, "--queue", "LOCAL"]
        words += ["--token-file", str(tmp_path / "token"), "--workdir", str(tmp_path / "work"), "--heartbeat", "1"]
        words += ["--site", str(tmp_path / "site.json"), "--allocation", "--debug", *options]
        script = tmp_path / f"job{len(jobs)}.sh"
        found = f"PATH={path}:$PATH" if path else ""
        lines = ["#!/bin/bash", found, f"cd {shlex.quote(str(ROOT))}", f"exec {shlex.join(words)}", ""]
        script.write_text("\n".join(lines))
        job = slurm.run(
            *(
                "sbatch",
                "--parsable",
                f"-N{nodes}",
                "--exclusive",
                "--no-kill",
                "--no-requeue",
                "--time=10",
                f"--output={tmp_path}/pilot-%j.log",
                script,
            )
        )
        jobs.append(job)
        return job

    yield submit
    slurm.cancel_all()
    for job in jobs:
        log.info("pilot of job %s:\n%s", job, (tmp_path / f"pilot-{job}.log").read_text())


def test_trials_of_several_shapes_run_side_by_side(
    slurm: Slurm, embedded: Embedded, files: Path, allocation: Callable[..., str], until: Any, tmp_path: Path
) -> None:
    wide = JobNeeds(nodes=2, ranks_per_node=1, cores=2, memory_mb=500, minutes=1.0)
    tall = JobNeeds(nodes=1, ranks_per_node=2, cores=2, memory_mb=500, minutes=1.0)
    single = JobNeeds(nodes=1, ranks_per_node=0, cores=1, memory_mb=500, minutes=1.0)
    tasks = [
        embedded.submit("python3 ranks.py 1.0", 3, needs=wide, files=files, search="wide"),
        embedded.submit("python3 ranks.py 1.0", 4, needs=tall, files=files, search="tall"),
        embedded.submit("python3 ranks.py 0.5", 1, needs=single, files=files, search="single"),
    ]
    job = allocation()
    until(lambda: all(embedded.state(task) == "done" for task in tasks))
    slurm.run("scancel", "--batch", "--signal=TERM", job)
    slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED")
    verdicts = [embedded.verdicts(task) for task in tasks]
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
    said = (tmp_path / f"pilot-{job}.log").read_text()
    assert "allocation of 2 nodes (n1, n2)" in said and "the allocation's node time: " in said and "8 finished" in said


def test_a_rank_that_dies_ends_all_and_its_words_are_the_reason(
    slurm: Slurm, embedded: Embedded, files: Path, allocation: Callable[..., str], until: Any
) -> None:
    (files / "die.py").write_text(
        "import os, sys, time\n"
        # srun, which ends the others at once, may lose what a rank says in its very last moment.
        "sys.excepthook = lambda *what: (sys.__excepthook__(*what), time.sleep(1))\n"
        "if os.environ['SLURM_PROCID'] == '1':\n"
        "    time.sleep(0.3)\n"
        "    raise ValueError('boom')\n"
        "time.sleep(300)\n"
    )
    needs = JobNeeds(nodes=2, ranks_per_node=1, cores=1, memory_mb=500, minutes=1.0)
    task = embedded.submit("python3 die.py", 1, needs=needs, files=files)
    allocation()
    until(lambda: embedded.state(task) == "done")
    (verdict,) = embedded.verdicts(task)
    assert verdict["status"] == 1 and verdict["message"].endswith("rank 1: ValueError: boom")


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_nothing_outlives_a_trial(
    slurm: Slurm, embedded: Embedded, files: Path, allocation: Callable[..., str], until: Any, ends: str
) -> None:
    """Ranks are not below the pilot, and their batch system does not end what left their session."""
    (files / "leave.py").write_text(
        "import os, subprocess, sys\n"
        "for _ in range(3):\n"
        "    words = ['env', '-i', 'setsid', '-f', 'sleep', sys.argv[1]]\n"
        "    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "if sys.argv[2] == 'badly':\n"
        "    os.kill(os.getpid(), 9)\n"
        "open('output.json', 'w').write('{\"loss\": 1}')\n"
    )
    needs, seconds = JobNeeds(nodes=2, ranks_per_node=1, cores=1, memory_mb=500, minutes=1.0), f"7{os.getpid()}"
    task = embedded.submit(f"python3 leave.py {seconds} {ends}", 2, needs=needs, files=files)
    allocation()
    until(lambda: embedded.state(task) == "done")
    assert [verdict["status"] for verdict in embedded.verdicts(task)] == [0 if ends == "well" else 1] * 2
    running = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert running.count(["sleep", seconds]) == 0


@pytest.mark.parametrize("end", [("--batch", "--signal=USR1"), ()], ids=["warned", "cancelled"])
def test_a_trial_goes_on_in_the_next_allocation(
    slurm: Slurm,
    embedded: Embedded,
    files: Path,
    allocation: Callable[..., str],
    until: Any,
    tmp_path: Path,
    end: tuple[str, ...],
) -> None:
    """Cancelled, ranks and runner hear of it when the pilot does, or before."""
    needs = JobNeeds(nodes=1, ranks_per_node=1, cores=1, memory_mb=500, minutes=1.0)
    task = embedded.submit("python3 counting.py 60", 1, needs=needs, files=files, checkpoint=["count"])
    first = allocation(warning=4)
    until(lambda: list(tmp_path.glob("work/jobs/*/*/hpo_pilot_launch.json")))
    until(lambda: slurm.run("squeue", "--steps", "--noheader", "--format=%j").count("hpo-pilot-"))
    until(lambda: any(int(path.read_text()) >= 5 for path in tmp_path.glob("work/jobs/*/*/count")))
    slurm.run("scancel", *end, first)
    slurm.wait(first, "COMPLETED" if end else "CANCELLED")
    until(lambda: "pilot ends" in (tmp_path / f"pilot-{first}.log").read_text())
    said = (tmp_path / f"pilot-{first}.log").read_text()
    assert ("the batch system warns" in said) == bool(end)
    assert "is in the queue again" in said and "1 checkpointed" in said
    allocation()
    until(lambda: embedded.state(task) == "done")
    (verdict,) = embedded.verdicts(task)
    assert verdict["metrics"]["count"] == 60 and 5 <= verdict["metrics"]["began"] < 60
    assert verdict["attempt"] in (2, 3)  # a pilot that is just ending may have been handed it, and have given it back


def test_a_training_longer_than_an_allocation_runs_across_several(
    slurm: Slurm, embedded: Embedded, files: Path, allocation: Callable[..., str], tmp_path: Path
) -> None:
    """More of them than a job has attempts: each goes on from the checkpoint, and none counts as an attempt."""
    needs = JobNeeds(nodes=1, ranks_per_node=1, cores=1, memory_mb=500, minutes=5.0, checkpoints=True)
    task = embedded.submit("python3 counting.py 420", 1, needs=needs, files=files, checkpoint=["count"])
    jobs: list[str] = []
    while embedded.state(task) != "done":
        assert len(jobs) < 16
        jobs.append(allocation("--lifetime", "12", "--checkpoint-every", "2", nodes=1))
        slurm.wait(jobs[-1], "COMPLETED")
    (verdict,) = embedded.verdicts(task)
    assert verdict["metrics"]["count"] == 420 and verdict["metrics"]["began"] > 0
    assert 3 < verdict["attempt"] <= len(jobs)
    said = [(tmp_path / f"pilot-{job}.log").read_text() for job in jobs]
    assert "1 resumed" in said[-1] and sum("1 checkpointed" in one for one in said) == verdict["attempt"] - 1


def steps_of_pilots(slurm: Slurm) -> list[str]:
    lines = slurm.run("squeue", "--steps", "--noheader", "--format=%i %j").splitlines()
    return [line.split()[0] for line in lines if " hpo-pilot-" in line]


def test_a_preempted_allocation_gives_its_trials_back(
    slurm: Slurm, embedded: Embedded, files: Path, allocation: Callable[..., str], until: Any, tmp_path: Path
) -> None:
    """Slurm signals the steps at once and the pilot after the grace time; no trial heeds the signal."""
    alone = JobNeeds(nodes=1, ranks_per_node=2, cores=2, memory_mb=500, minutes=1.0)
    across = JobNeeds(nodes=2, ranks_per_node=1, cores=1, memory_mb=500, minutes=1.0)
    given = [("dies", alone, "a"), ("dies", across, "b"), ("ignores", alone, "c")]
    tasks = [
        embedded.submit(
            f"python3 heedless.py {how}", 1, needs=needs, files=files, search=name, first=number, checkpoint=["count"]
        )
        for number, (how, needs, name) in enumerate(given)
    ]
    first = allocation()
    until(lambda: len(list(tmp_path.glob("work/checkpoints/*/t*f0/.kept/count"))) == len(tasks))
    urgent = slurm.run(
        "sbatch", "--parsable", "-N2", "--exclusive", "--partition=urgent", "--output=/dev/null", "--wrap=true"
    )
    until(lambda: "no more jobs start" in (tmp_path / f"pilot-{first}.log").read_text())
    tasks.append(embedded.submit("python3 heedless.py dies", 1, needs=alone, files=files, search="d", first=3))
    slurm.wait(first, "COMPLETED")  # by itself, in the grace time
    slurm.wait(urgent, "COMPLETED")
    said = (tmp_path / f"pilot-{first}.log").read_text()
    assert said.count("; a checkpoint is kept") == 3 and "; 3 checkpointed; 0 run, 0 wait" in said
    allocation()
    until(lambda: all(embedded.state(task) == "done" for task in tasks), 90)
    for task in tasks:
        (verdict,) = embedded.verdicts(task)
        assert verdict["status"] == 0 and (verdict["metrics"]["began"] > 0) == (task != tasks[-1])
        # A request for jobs that is open at the time may bring a job, which is given back too.
        assert verdict["attempt"] <= (2 if task == tasks[-1] else 3)


def test_a_step_that_somebody_cancels_is_no_verdict(
    slurm: Slurm, embedded: Embedded, files: Path, allocation: Callable[..., str], until: Any, tmp_path: Path
) -> None:
    """The allocation goes on, and so does the trial there: the first time uncounted, the second time not."""
    needs = JobNeeds(nodes=1, ranks_per_node=1, cores=1, memory_mb=500, minutes=1.0)
    task = embedded.submit("python3 heedless.py dies", 1, needs=needs, files=files, checkpoint=["count"])
    job = allocation("--no-agents")
    count, kept = 0, tmp_path / "work" / "checkpoints" / "1a2b3c4d" / "t0f0" / ".kept" / "count"
    for _ in range(2):
        until(lambda: kept.exists() and int(kept.read_text()) > count)  # noqa: B023
        (step,) = steps_of_pilots(slurm)
        slurm.run("scancel", step)
        until(lambda: step not in steps_of_pilots(slurm))  # noqa: B023
        count = int(kept.read_text())
    until(lambda: embedded.state(task) == "done", 90)
    (verdict,) = embedded.verdicts(task)
    assert verdict["status"] == 0, verdict["message"]
    assert verdict["attempt"] == 3 and verdict["metrics"]["began"] >= count
    said = (tmp_path / f"pilot-{job}.log").read_text()
    assert said.count("is in the queue again") == 1 and "no more jobs start" not in said


def test_what_cannot_run_fails_alone(
    slurm: Slurm, panda: FakePanda, allocation: Callable[..., str], tmp_path: Path
) -> None:
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
    allocation(path=str(tools), launcher={"name": "horovodrun"}, containers={"runtime": "charliecloud"})
    assert f"and this machine is {platform.machine()}" in str(panda.final(other)["meta_data"])
    for job, reason in reasons.items():
        report = panda.final(job)
        assert report["job_status"] == "failed" and reason in report["pilot_error_diag"]
    program = tools / "horovodrun"
    program.write_text('#!/bin/sh\nshift 4\nexec srun -N1 -n1 --exact --mem=100M "$@"\n')
    program.chmod(0o755)
    assert panda.final(panda.add_job(good))["job_status"] == "finished"


@pytest.mark.parametrize("how", ["killed", "set down"])
def test_a_node_that_is_lost_takes_its_own_jobs_along(
    three: Slurm,
    embedded: Embedded,
    files: Path,
    allocation: Callable[..., str],
    until: Any,
    tmp_path: Path,
    how: str,
) -> None:
    """n1 runs a long job, n2 is lost under another, n3 has nothing to do: the next run on n3, and on n1 again."""
    needs = JobNeeds(nodes=1, ranks_per_node=1, cores=CPUS, memory_mb=500, minutes=5.0)

    def running() -> dict[str, str]:
        steps = three.run("squeue", "--steps", "--noheader", "--format=%j %N").splitlines()
        return dict(reversed(line.split()) for line in steps if line.startswith("hpo-pilot-"))  # by node

    def said() -> str:
        return (tmp_path / f"pilot-{job}.log").read_text()

    go, waits = tmp_path / "go", "while [ ! -e {} ]; do sleep 0.2; done; echo '{{\"loss\": 1.5}}' > output.json"
    long = embedded.submit(waits.format(go), 1, needs=needs, search="long")
    job = allocation("--no-agents", nodes=3)
    until(lambda: set(running()) == {"n1"})
    counting = {"needs": needs, "files": files, "checkpoint": ["count"]}
    lost = embedded.submit("python3 counting.py 100", 1, first=1, **counting)
    until(lambda: set(running()) == {"n1", "n2"})
    until(lambda: any(int(path.read_text()) >= 5 for path in tmp_path.glob("work/jobs/*/*/count")))
    if how == "killed":
        three.kill_node("n2")
    else:
        three.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    until(lambda: "node n2 gets no more jobs, 2 nodes are left: the batch system took it away" in said(), 90)
    # Idle ones go on, though Slurm keeps the cores of n1.
    until(lambda: embedded.state(lost) == "done")
    assert "n1" in running()
    assert "1 nodes (n1) get no new jobs until their jobs have ended" in said()
    go.touch()
    until(lambda: embedded.state(long) == "done")
    # So does n1 when its own job has ended: a job that needs both comes to its end.
    wide = JobNeeds(nodes=2, ranks_per_node=1, cores=CPUS, memory_mb=500, minutes=5.0)
    last = embedded.submit("python3 ranks.py 1.0", 2, needs=wide, files=files, first=2)
    until(lambda: embedded.state(last) == "done")
    for verdict in embedded.verdicts(last):
        assert {"on_n1", "on_n3"} <= verdict["metrics"].keys()
    (verdict,) = embedded.verdicts(long)
    assert verdict["attempt"] == 1
    (verdict,) = embedded.verdicts(lost)
    assert verdict["attempt"] == 2
    three.run("scancel", "--batch", "--signal=TERM", job)
    three.wait(job, "COMPLETED", "FAILED", "CANCELLED")
    assert "3 finished, 1 lost, 1 resumed" in said() and "srun: error: Node failure on n2" in said()


def test_jobs_wait_while_slurms_controller_is_away(
    slurm: Slurm, embedded: Embedded, files: Path, allocation: Callable[..., str], until: Any, tmp_path: Path
) -> None:
    """What runs goes on; no attempt is used up by launches that nobody can make."""
    needs = JobNeeds(nodes=1, ranks_per_node=1, cores=1, memory_mb=500, minutes=5.0)
    running = embedded.submit("python3 counting.py 80", 1, needs=needs, files=files)
    job = allocation("--no-agents")
    until(lambda: slurm.run("squeue", "--steps", "--noheader", "--format=%j").count("hpo-pilot-") == 1)
    slurm.stop_controller()
    later = embedded.submit("python3 counting.py 1", 5, needs=needs, files=files, search="later")

    def said() -> str:
        return (tmp_path / f"pilot-{job}.log").read_text()

    until(lambda: "so the pilot takes no jobs for now: srun: error: Unable to" in said())
    until(lambda: embedded.state(running) == "done")
    slurm.start_controller()
    until(lambda: "the launcher works again after" in said(), 90)
    until(lambda: embedded.state(later) == "done")
    assert all(verdict["status"] == 0 for verdict in [*embedded.verdicts(running), *embedded.verdicts(later)])
