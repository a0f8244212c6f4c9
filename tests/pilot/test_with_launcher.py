"""Pilots that start ranks: on this machine, and in an allocation whose commands are stubs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.hpc.launchers import make_launcher
from hpo_pilot.pilot.execution import InContainer
from hpo_pilot.pilot.job import parse_job
from hpo_pilot.pilot.launch import WithLauncher
from hpo_pilot.pilot.machine import AssignedResources
from hpo_pilot.pilot.settings import Site
from hpo_pilot.transformation.job import PayloadSettings
from tests.pilot.conftest import GOOD, PilotProcess, slurm_stubs, verdict
from tests.programs import program

#: Runs the ranks here, one after another; the options that it was given are kept.
LAUNCHER = """line=$(printf '%s ' "$0" "$@")
printf '%s\n' "$line" >> {folder}/launched  # in one piece: several run side by side
ranks=1
while :; do
    case "$1" in
        -np) ranks=$2; shift 2 ;;
        -n[0-9]*) ranks=${{1#-n}}; shift ;;
        -H) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
rank=0
while [ $rank -lt $ranks ]; do
    SLURM_PROCID=$rank "$@" || {{ echo "srun: error: n1: task $rank: Exited with exit code 3" >&2; exit 3; }}
    rank=$((rank + 1))
done
"""

#: Says that one node is broken.
BROKEN = """#!/bin/sh
echo "srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection failure" >&2
exit 1
"""


#: Says that nothing can be started anywhere, as Slurm 22.05 does.
AWAY = """#!/bin/sh
echo "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)" >&2
exit 1
"""

#: Fails without a word that is known.
BAFFLING = """#!/bin/sh
echo "srun: fatal: something that nobody has heard of" >&2
exit 1
"""


@pytest.fixture
def tools(tmp_path):
    """Stubs of Slurm's commands and of horovodrun, for an allocation of two nodes that ends in an hour."""
    folder = tmp_path / "tools"
    launcher = LAUNCHER.format(folder=folder)
    return slurm_stubs(folder, srun=launcher, horovodrun=launcher, scancel=f'echo "$@" >> {folder}/cancelled')


def site(tmp_path: Path, launcher: str, **more: Any) -> list[str]:
    """The options that name a site."""
    profile = {"name": "here", "launcher": {"name": launcher}, "node": {"cores": 4, "memory_mb": 4000}, **more}
    (tmp_path / "site.json").write_text(json.dumps(profile))
    return ["--site", str(tmp_path / "site.json")]


def inside(tools: Path) -> Mapping[str, str]:
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


SLURM = {"batch": {"system": "slurm", "warning": {"signal": "USR1", "seconds": 4}}}


def begin(pilot: PilotProcess, tools: Path, *options: str, **profile: Any) -> subprocess.Popen[bytes]:
    """Starts a pilot in the allocation, where each job is a job step."""
    named = site(pilot.folder, "srun", **SLURM, **profile)
    return pilot.start(*named, "--allocation", "--no-agents", *options, variables=inside(tools))


def replace(path: Path, text: str) -> str:
    """Writes a stub; returns what it was."""
    before = path.read_text()
    path.write_text(text)
    return before


def launched(tools: Path) -> list[str]:
    return (tools / "launched").read_text().splitlines() if (tools / "launched").exists() else []


def test_ranks_on_one_machine(panda, pilot, tools, tmp_path):
    few = panda.add_job(GOOD, ranks_per_node=2)
    enough = panda.add_job(GOOD, ranks_per_node=2, job={"coreCount": 2})
    pilot.start(*site(tmp_path, "horovodrun"), "--cores", "2", variables=inside(tools))
    report = panda.final(few)
    assert report["job_status"] == "failed" and "has 1 cores on each node, and 2 ranks" in report["pilot_error_diag"]
    assert verdict(panda.final(enough))["value"] == 0.5
    (line,) = launched(tools)
    assert "-np 2 -H localhost:2 /bin/sh -c echo" in line


def test_each_rank_has_the_gpus_of_its_node_and_its_own_cores(tmp_path):
    site = Site(launcher=make_launcher({"name": "mpirun"}), gpu_kind="nvidia")
    job = parse_job({"PandaID": 1, "attemptNr": 1, "jobPars": "-a s.tar.gz -p x"})
    given = AssignedResources(("n1", "n2"), {}, 4, gpus={"n1": ("0", "1"), "n2": ("2", "3")}, allocation=("n1", "n2"))
    document = PayloadSettings(nodes=2, ranks_per_node=2, gpus=2)
    launched = WithLauncher(site, job, given, document, InContainer("auto", ""))
    tools = program(tmp_path / "tools" / "mpirun", "").parent
    program(tools / "uname", "echo n2.example.org")
    path = f"{tools}:{os.environ['PATH']}"
    words, env = launched.wrap(["payload"], {"PATH": path, "OMP_NUM_THREADS": "64"}, [], tmp_path)
    assert env["OMP_NUM_THREADS"] == "2"
    around = words[words.index("/bin/sh", words.index("mpirun") + 1) : -1]
    assert subprocess.check_output([*around, "printenv", "CUDA_VISIBLE_DEVICES"], env={"PATH": path}) == b"2,3\n"


def bare(tmp_path: Path) -> str:
    """A PATH without launchers, whatever the machine has."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("sh", "python3", "cat"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return str(folder)


def test_a_missing_launcher_costs_no_attempt(panda, pilot, tmp_path, until):
    """Its search is left to others for a while; other jobs go on."""
    panda.takes_back = True
    job, good = panda.add_job(GOOD, ranks_per_node=2, job={"coreCount": 2}), panda.add_job(GOOD)
    pilot.start(*site(tmp_path, "horovodrun"), "--cores", "2", variables={"PATH": bare(tmp_path)})
    until(lambda: panda.given_back == [[job, 1]])
    assert verdict(panda.final(good))["value"] == 0.5
    until(lambda: "X-HPO-Pilot-Avoids" in panda.headers[-1])
    said = json.loads(panda.headers[-1]["X-HPO-Pilot-Avoids"])
    assert said["tasks"] == [5] and "horovodrun" in said["why"] and "`make horovod`" in said["why"]
    assert panda.headers[-1]["X-HPO-Pilot-Site"] == "here"
    assert not panda.of(job, "failed")


def test_a_command_that_runs_once_needs_no_launcher_of_ranks(panda, pilot, tools, tmp_path):
    job = panda.add_job(GOOD)
    launcher = {"name": "torchrun", "starter": "srun"}
    profile = {"name": "here", "launcher": launcher, "node": {"cores": 4, "memory_mb": 4000}, **SLURM}
    (tmp_path / "site.json").write_text(json.dumps(profile))
    environment = {**inside(tools), "PATH": f"{tools}{os.pathsep}{bare(tmp_path)}"}
    pilot.start("--site", str(tmp_path / "site.json"), "--allocation", "--no-agents", variables=environment)
    assert verdict(panda.final(job))["value"] == 0.5
    (line,) = launched(tools)
    assert "/srun -N1 -n1 " in line and "torchrun" not in line


@pytest.mark.parametrize(
    ("launcher", "table"),
    [
        (
            None,
            [
                ({"ranks_per_node": 2}, "does not know the launcher: start the pilot with --site"),
                ({"nodes": 2, "ranks_per_node": 1}, "needs 2 nodes, and this pilot has one machine"),
            ],
        ),
        (
            "mpirun",
            [
                (
                    {"ranks_per_node": 1},
                    "at site 'here' mpirun, which starts the ranks, is not in PATH: load its module",
                ),
                ({"ranks_per_node": 1, "gpus_per_node": 99}, "needs 99 GPUs, and this pilot has"),
            ],
        ),
    ],
    ids=["no site", "mpirun is missing"],
)
def test_what_cannot_be_started_fails_alone(panda, pilot, tmp_path, launcher, table):
    jobs, good = [panda.add_job(GOOD, **document) for document, _ in table], panda.add_job(GOOD)
    pilot.start(*(site(tmp_path, launcher) if launcher else []), variables={"PATH": bare(tmp_path)})
    for job, (document, why) in zip(jobs, table, strict=True):
        report = panda.final(job)
        assert report["job_status"] == "failed" and why in report["pilot_error_diag"], document
    assert verdict(panda.final(good))["value"] == 0.5


def test_an_allocation_is_shared_out(panda, pilot, tools, tmp_path, until):
    command = "echo $SLURM_PROCID >> ranks; sleep 0.3; " + GOOD
    wide = panda.add_job(command, nodes=2, ranks_per_node=1, outputs=["ranks"])
    small = [panda.add_job(command, job={"coreCount": 2, "hpoCampaign": "small"}) for _ in range(4)]
    large = panda.add_job(GOOD, nodes=3, ranks_per_node=1)
    gpu = panda.add_job(GOOD, gpus_per_node=1)
    begin(pilot, tools)
    for job in (wide, *small):
        assert verdict(panda.final(job))["value"] == 0.5
    for job, why in ((large, "needs 3 nodes with 0 GPUs"), (gpu, "with 1 GPUs, 1 cores")):
        report = panda.final(job)
        assert report["job_status"] == "failed" and why in report["pilot_error_diag"]
    lines = launched(tools)
    assert len(lines) == 5
    assert sum("-N2 -n2 --ntasks-per-node=1 -c1" in line and "--nodelist" not in line for line in lines) == 1
    assert {line.split("--nodelist=")[1][:2] for line in lines if "-N1 " in line} == {"n1", "n2"}
    assert all(f"--job-name=hpo-pilot-{job}-1" in "\n".join(lines) for job in (wide, *small))
    assert all("HPO_PILOT_SEED" in line and "PANDAID" in line and "HPO_PILOT_LIFELINE_FD" not in line for line in lines)
    wish = json.loads(panda.headers[0]["X-HPO-Pilot-Openings"])
    assert wish["now"][0][:4] == [2, [], 4, 4000]
    assert pilot.end() == 0
    assert "the allocation's node time: " in pilot.said() and "5 finished" in pilot.said()


def test_the_launcher_stands_around_the_container(panda, pilot, tools, tmp_path):
    """And the runner outside of both, so that the image needs no Python for it."""
    image = tmp_path / "image.sif"
    image.write_text("")
    program(tools / "apptainer", f'while [ "$1" != {image} ]; do shift; done\nshift\nINSIDE=yes exec "$@"')
    command = """echo '{"status": 0, "loss": '${INSIDE:+0.25}'}' > output.json"""
    job = panda.add_job(command, job={"container_name": str(image)}, nodes=2, ranks_per_node=1)
    containers = {"containers": {"runtime": "apptainer", "read_only": [str(tools)]}}
    begin(pilot, tools, **containers)
    assert verdict(panda.final(job))["value"] == 0.25
    (line,) = launched(tools)
    folder = f"{tmp_path}/work/jobs/"
    before, after = line.split(f" {tools}/apptainer exec ")
    assert before.startswith(f"{tools}/srun -N2 -n2 ") and "apptainer" not in before
    assert f"--bind {folder}" in after and f"--bind {tools}:{tools}:ro" in after and f"--pwd {folder}" in after
    assert f" {image} env /bin/sh -c echo " in after and "%FOLDER" not in line


def test_a_warning_ends_it_and_what_kept_a_checkpoint_goes_back(panda, pilot, tools, tmp_path, until):
    panda.takes_back = True
    saved = tmp_path / "saved"
    saves = panda.add_job(f"echo 1 > ckpt; touch {saved}; exec sleep 300", checkpoint=["ckpt"])
    does_not = panda.add_job("sleep 300")
    waits = panda.add_job(GOOD, job={"coreCount": 4}, nodes=2, ranks_per_node=1)
    process = begin(pilot, tools, "--heartbeat", "0.2")
    until(lambda: panda.of(saves, "running") and panda.of(does_not, "running") and panda.of(waits, "starting"))
    until(saved.exists)
    process.send_signal(signal.SIGUSR1)
    until(lambda: [waits, 1] in panda.given_back)
    assert process.poll() is None
    assert process.wait(600) == 0
    assert sorted(panda.given_back) == [[saves, 1], [waits, 1]]
    report = panda.final(does_not)
    assert report["pilot_error_code"] == 1201 and "the allocation came to its end" in report["pilot_error_diag"]
    assert not panda.of(saves, "failed") and not panda.of(waits, "failed")
    assert "1 checkpointed, 2 cut" in pilot.said() or "1 checkpointed, 1 cut" in pilot.said()


def test_a_broken_node_is_left_out(panda, pilot, tools, tmp_path, until):
    good = replace(tools / "srun", BROKEN)
    first = panda.add_job(GOOD, nodes=2, ranks_per_node=1)
    begin(pilot, tools)
    report = panda.final(first)
    assert report["job_status"] == "failed", "a launcher that fails is no verdict on the payload"
    assert "the launcher failed, not the payload" in report["pilot_error_diag"] and "n2" in report["pilot_error_diag"]
    panda.final(panda.add_job(GOOD, nodes=2, ranks_per_node=1))
    until(lambda: "node n2 gets no more jobs, 1 nodes are left" in pilot.said())
    (tools / "srun").write_text(good)
    assert verdict(panda.final(panda.add_job(GOOD)))["value"] == 0.5
    wide = panda.final(panda.add_job(GOOD, nodes=2, ranks_per_node=1))
    assert "1 of the allocation's 2 nodes have this" in wide["pilot_error_diag"]


@pytest.mark.parametrize("text", [AWAY, BAFFLING], ids=["it says so", "a try fails too"])
def test_a_launcher_that_is_away_uses_up_no_attempts(text, panda, pilot, tools, tmp_path, until):
    panda.takes_back = True
    good = replace(tools / "srun", text)
    jobs = [panda.add_job(GOOD, job={"coreCount": 4}) for _ in range(6)]
    begin(pilot, tools)
    until(lambda: "the launcher cannot start anything, so the pilot takes no jobs for now: srun: " in pilot.said())
    until(lambda: panda.given_back and len(panda.waiting) + len(panda.given_back) == len(jobs))
    asked = len(panda.acquired)
    until(lambda: "the launcher still starts nothing, it is tried again in 4 s" in pilot.said())
    assert len(panda.acquired) == asked, "it goes on asking for jobs that it cannot start"
    (tools / "srun").write_text(good)
    until(lambda: "the launcher works again after" in pilot.said())
    assert not [report for report in panda.reports if report["job_status"] == "failed"]
    assert panda.final(panda.add_job(GOOD))["job_status"] == "finished"


def test_a_trial_that_alone_cannot_be_launched_fails(panda, pilot, tools, tmp_path):
    """The launcher starts others."""
    panda.takes_back = True
    good = (tools / "srun").read_text()
    refuses = 'case "$*" in *-c3*) echo "srun: error: Unable to create step for job 7: no" >&2; exit 1 ;; esac\n'
    (tools / "srun").write_text(good.replace("ranks=1\n", refuses + "ranks=1\n"))
    job = panda.add_job(GOOD, job={"coreCount": 3})
    begin(pilot, tools)
    report = panda.final(job)
    assert "the launcher failed, not the payload: srun: error: Unable to create step" in report["pilot_error_diag"]
    assert panda.final(panda.add_job(GOOD))["job_status"] == "finished" and not panda.given_back
