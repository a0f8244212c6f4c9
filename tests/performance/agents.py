"""Agents on the nodes of an allocation, beside a job step for each trial."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from hpo_pilot.hpc.launcher import MOST_SPREAD
from hpo_pilot.hpc.site_files import load_site
from hpo_pilot.jobs.resources import JobNeeds, Node, NodeShape
from hpo_pilot.server.tokens import Role
from tests.bearer import token
from tests.hpc.checker import check
from tests.hpc.simulation import Simulation
from tests.hpc.trials import TrialServer, TrialSource
from tests.performance.allocation import FAILURES, PAUSE, SEED, used
from tests.pilot.test_with_server import Embedded
from tests.real.slurm import Slurm, running_slurm

_SITES = Path(__file__).parents[2] / "deploy" / "sites"

#: Name, nodes, shape, and job steps at once (sources in deploy/sites/). Summit's size alone: jsrun has no agents.
MACHINES = [
    ("Summit", 4608, NodeShape(cores=42, memory_mb=512_000, gpus=6, close=3), 1350),
    ("Frontier", 9400, NodeShape(cores=56, memory_mb=512_000, gpus=8, close=2), 100),
]
_MEDIAN, _HOURS = 2400.0, 2.0


def measure(*, quick: bool) -> dict[str, Any]:
    """Trials per second in a real Slurm, and the used share of the largest machines by simulation."""
    figures: dict[str, Any] = {}
    for agents in (True, False):
        figures["agents" if agents else "job steps"] = _real(agents=agents, trials=60 if quick else 400)
    rates = [figures[name]["trials_per_second"] for name in ("agents", "job steps")]
    print(f"ratio {rates[0] / rates[1]:.1f}", flush=True)
    for name, nodes, shape, steps in MACHINES:
        for gpus in (1, 6, 12, 48):
            part = 20 if quick else 1
            limits = steps // part, MOST_SPREAD // part
            figures[f"{name}, {gpus} GPUs"] = _simulated(name, nodes // part, shape, gpus, *limits)
    return figures


def _real(*, agents: bool, trials: int) -> dict[str, Any]:
    """A pilot runs trials of one core that do nothing, on four nodes of eight cores that are all this machine."""
    nodes = tuple(f"n{number}" for number in range(1, 5))
    with tempfile.TemporaryDirectory() as name, running_slurm(Path(name, "slurm"), nodes=nodes) as slurm:
        folder = Path(name)
        (folder / "server").mkdir()
        server = Embedded(folder / "server")
        try:
            needs = JobNeeds(nodes=1, cores=1, memory_mb=100, minutes=5.0)
            command = """echo '{"loss": 0.5}' > output.json"""
            warm = server.submit(f"{command}; true", len(nodes), needs=needs, search="warm")
            job = _submit(slurm, folder, server.url, len(nodes), agents=agents)
            begun = _wait(server, warm)
            task = server.submit(command, trials, needs=needs, first=1000)
            ended = _wait(server, task)
            found = _agents(folder)
            figures = {
                "trials_per_second": trials / (ended - begun),
                "files_on_shared_storage_per_trial": _shared_files(folder),
                "agent_mb": max((process.memory_info().rss / 1e6 for process in found), default=0.0),
                "agent_cpu_s": max((sum(process.cpu_times()[:2]) for process in found), default=0.0),
            }
            slurm.run("scancel", job)
        finally:
            server.kill()
    said = ", ".join(f"{what.replace('_', ' ')} {value:.3g}" for what, value in figures.items())
    print(f"{'agents' if agents else 'job steps':10} {said}", flush=True)
    return figures


def _submit(slurm: Slurm, folder: Path, url: str, nodes: int, *, agents: bool) -> str:
    profile = load_site(_SITES / "generic-slurm.yaml").model_dump(mode="json")
    profile["scratch"] = {**profile["scratch"], "node": str(folder / "disk")}
    (folder / "site.json").write_text(json.dumps(profile))
    (folder / "token").write_text(token("me", Role.PILOT))
    words = [sys.executable, "-m", "hpo_pilot.pilot", "--server", url, "--queue", "LOCAL", "--allocation", "--keep"]
    words += ["--token-file", str(folder / "token"), "--workdir", str(folder / "work")]
    words += ["--site", str(folder / "site.json"), *([] if agents else ["--no-agents"])]
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\ncd {shlex.quote(str(Path.cwd()))}\nexec {shlex.join(words)}\n")
    return slurm.run("sbatch", "--parsable", f"-N{nodes}", "--exclusive", "--time=10", f"--output={folder}/log", script)


def _wait(server: Embedded, task: int) -> float:
    """Waits for the end of a task; returns when that was."""
    give_up = time.monotonic() + 600
    while server.state(task) != "done":
        if time.monotonic() > give_up:
            raise TimeoutError(f"task {task} is {server.state(task)}")
        time.sleep(0.1)
    return time.monotonic()


def _agents(folder: Path) -> list[psutil.Process]:
    processes = psutil.process_iter(["cmdline"])
    return [
        one for one in processes if one.info["cmdline"] and one.info["cmdline"][-1].startswith(f"{folder}/work/agents")
    ]


def _shared_files(folder: Path) -> float:
    """The files that a trial has written below the work folder, which nodes share."""
    jobs = [path for path in folder.glob("work/jobs/**/[0-9]*.[0-9]*") if path.is_dir()]
    return sum(1 for job in jobs for path in job.rglob("*")) / max(1, len(jobs))


def _simulated(name: str, nodes: int, shape: NodeShape, gpus: int, steps: int, spread: int) -> dict[str, Any]:
    """One search of trials of 40 minutes, for two hours: with a job step for each trial, and with agents."""
    wide = -(-gpus // shape.gpus)
    each = gpus // wide
    needs = JobNeeds(wide, each, shape.cores * each // shape.gpus, 400_000 * each // shape.gpus, 100)
    figures = {}
    for rule, most in (("job steps", steps), ("agents", spread if wide > 1 else 10**6)):
        source = TrialSource("trials", needs, median=_MEDIAN, sigma=0.5, parallel=most)
        server = TrialServer([source], seed=SEED, failures=FAILURES, pause=PAUSE)
        named = [Node(f"n{number:04}", shape) for number in range(nodes)]
        outcome = Simulation(named, server, 3600 * _HOURS).run()
        check(named, outcome.events)
        share = used(outcome.events) / (3600 * _HOURS * nodes * shape.gpus)
        starts = sum(event.start is not None for event in outcome.events)
        cpu = sum(outcome.costs) + sum(map(sum, outcome.others.values()))
        figures[rule] = {
            "used": share,
            "at_once": outcome.most_running,
            "starts_per_second": starts / (3600 * _HOURS),
            "scheduler_us_per_trial": 1e6 * cpu / starts,
        }
        print(
            f"{name}, {nodes} nodes, trials on {gpus} GPUs, {rule:9}: {share:6.1%} used, {outcome.most_running} at "
            f"once, {starts / (3600 * _HOURS):.2f} starts/s, scheduler {1e6 * cpu / starts:.0f} µs a trial",
            flush=True,
        )
    return figures
