"""Agents on the nodes of an allocation, whose batch system is a stub: nodes are folders of this machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from hpo_pilot.files import try_lock
from hpo_pilot.hpc.launchers import make_launcher
from hpo_pilot.pilot.agent import remove_left
from hpo_pilot.pilot.agents import Pace
from hpo_pilot.pilot.execution import InContainer
from hpo_pilot.pilot.isolation import temporary_folder
from hpo_pilot.pilot.job import parse_job
from hpo_pilot.pilot.launch import WithLauncher
from hpo_pilot.pilot.machine import AssignedResources
from hpo_pilot.pilot.settings import Site
from hpo_pilot.transformation.job import PayloadSettings
from tests.pilot.conftest import GOOD, PilotProcess, slurm_stubs, verdict
from tests.programs import program

#: Starts its command once for each node, side by side, as `srun --no-kill --kill-on-bad-exit=0` does.
SRUN = """printf '%s\n' "$*" >> {folder}/launched
while :; do case "$1" in -*) shift ;; *) break ;; esac; done
trap 'kill $(jobs -p)' TERM
for node in n1 n2; do
    [ -e {folder}/no-$node ] || SLURM_PROCID=0 SLURM_NTASKS=2 SLURMD_NODENAME=$node "$@" &
done
wait
"""

SLURM = {"batch": {"system": "slurm", "job_steps": 2}}

#: The only process of `mpiexec --ppn 1` and of `flux exec`. Their nodes have the name of this machine, or a longer one.
MPIEXEC = """echo "$*" >> {folder}/launched
until [ "$1" = --no-abort-on-failure ]; do shift; done
shift
PALS_RANKID=0 PMI_RANK=0 PMIX_RANK=0 MPI_LOCALRANKID=0 exec "$@"
"""
FLUX = """case "$1" in
hostlist) uname -n ;;
job) echo 3600 ;;
exec) echo "$*" >> {folder}/launched; shift 3; exec "$@" ;;
esac
"""
QSTAT = """echo "    Resource_List.walltime = 01:00:00"; LC_ALL=C date '+    stime = %a %b %e %H:%M:%S %Y'"""
OTHERS = {
    "pals": ("pbs", {"mpiexec": MPIEXEC, "qstat": QSTAT}, {"PBS_JOBID": "7"}),
    "flux": ("flux", {"flux": FLUX}, {"FLUX_URI": "local:///x"}),
}


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Stubs of Slurm's commands, for an allocation of two nodes that ends in an hour."""
    return slurm_stubs(tmp_path / "tools", srun=SRUN.format(folder=tmp_path / "tools"))


@pytest.fixture
def begin(pilot: PilotProcess, tools: Path):
    """Starts a pilot in the allocation, with agents."""

    def start(*options: str, variables: dict[str, str] | None = None, **profile: object):
        scratch = {"node": str(pilot.folder / "disk")}
        said = {"name": "here", "launcher": {"name": "srun"}, "node": {"cores": 4, "memory_mb": 4000}, **SLURM}
        (pilot.folder / "site.json").write_text(json.dumps({**said, "scratch": scratch, **profile}))
        in_slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
        variables = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", **(variables or in_slurm)}
        named = ["--site", str(pilot.folder / "site.json"), "--allocation", "--heartbeat", "0.3", "--debug"]
        return pilot.start(*named, *options, variables=variables)

    return start


def agents(folder: Path) -> dict[str, psutil.Process]:
    """The agents of the test, by node."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if line[1:3] == ["-m", "hpo_pilot.pilot.agent"] and line[-1].startswith(str(folder)):
            found[process.environ()["SLURMD_NODENAME"]] = process
    return found


def test_folders_of_killed_agents_are_removed_a_day_later(tmp_path):
    old = time.time() - 90_000
    ages = {"1-w-1-n1": time.time(), "2-w-1-n1": old, "3-w-1-n2": old, "4-w-1-n1": old, "mine-n1": old}
    for name, when in ages.items():
        (tmp_path / name / "jobs").mkdir(parents=True)
        (tmp_path / name / "jobs" / "w.lock").touch()
        os.utime(tmp_path / name / "jobs" / "w.lock", (when, when))
    temporary = [Path(temporary_folder(tmp_path / name, "w")) for name in ("1-w-1-n1", "2-w-1-n1")]
    for path in temporary:
        path.mkdir()
    with (tmp_path / "4-w-1-n1" / "jobs" / "w.lock").open() as lives:
        assert try_lock(lives.fileno())
        remove_left(tmp_path / "mine-n1", "n1")
    assert {path.name for path in tmp_path.iterdir()} == ages.keys() - {"2-w-1-n1"}
    assert [path.exists() for path in temporary] == [True, False]
    temporary[0].rmdir()


def test_many_jobs_take_one_job_step(panda, pilot, begin, tools):
    """Job folders are on the nodes' own disks, and variables of the agent's step are not in the payload."""
    found = """{"loss": '$?.5', "metrics": {"on_'$SLURMD_NODENAME'": 1}}"""
    command = f"test -z $SLURM_NTASKS; echo '{found}' > output.json"
    jobs = [panda.add_job(command, outputs=["output.json"]) for _ in range(12)]
    process = begin()
    found = [verdict(panda.final(job)) for job in jobs]
    assert [one["value"] for one in found] == [0.5] * 12
    assert {name for one in found for name in one["metrics"] if name.startswith("on_")} == {"on_n1", "on_n2"}
    (line,) = (tools / "launched").read_text().splitlines()
    assert "--overlap" in line and "--kill-on-bad-exit=0" in line
    assert not list(pilot.workdir.glob("jobs/*/*.*/input.json"))
    assert {panda.final(job)["node"] for job in jobs} == {"n1", "n2"}
    assert pilot.end() == 0 and process.returncode == 0
    assert "12 finished" in pilot.said() and "geheim" not in pilot.said() and "is lost" not in pilot.said()
    assert not agents(pilot.folder) and not list((pilot.folder / "disk").iterdir())


@pytest.mark.parametrize("launcher", OTHERS)
def test_other_launchers_start_agents(panda, pilot, begin, tools, launcher):
    system, scripts, variables = OTHERS[launcher]
    for name, text in scripts.items():
        program(tools / name, text.replace("{folder}", str(tools)))
    (tools / "nodes").write_text(f"{platform.node()}.example.org\n")
    command = f"test -z $PALS_RANKID$PMI_RANK$PMIX_RANK$MPI_LOCALRANKID && {GOOD}"
    jobs = [panda.add_job(command) for _ in range(3)]
    begin(
        # No name server may know the node's name, and one that does not answer is asked for half a minute.
        variables={"PBS_NODEFILE": str(tools / "nodes"), "RES_OPTIONS": "timeout:1 attempts:1", **variables},
        launcher={"name": launcher},
        batch={"system": system},
    )
    assert [verdict(panda.final(job))["value"] for job in jobs] == [0.5] * 3
    assert pilot.end() == 0 and "is lost" not in pilot.said()
    (line,) = (tools / "launched").read_text().splitlines()
    assert "hpo_pilot.pilot.agent" in line


def test_jobs_on_several_nodes_and_with_ranks_take_job_steps(panda, begin, tools):
    """Those with ranks on one node do not where the profile names a launcher for that."""
    program(tools / "horovodrun", f'echo horovodrun "$@" >> {tools}/launched\nshift 4\nexec "$@"')
    wide = panda.add_job(GOOD, nodes=2, ranks_per_node=1)
    ranks = panda.add_job(GOOD, ranks_per_node=2, job={"coreCount": 2})
    begin(launcher={"name": "srun", "on_node": "horovodrun"})
    assert verdict(panda.final(wide))["value"] == verdict(panda.final(ranks))["value"] == 0.5
    lines = (tools / "launched").read_text().splitlines()
    assert sum("--job-name=hpo-pilot-agents" in line for line in lines) == 1
    assert sum(f"--job-name=hpo-pilot-{wide}-1" in line for line in lines) == 1
    assert sum(line.startswith("horovodrun -np 2 -H localhost:2 ") for line in lines) == 1 and len(lines) == 3


TORCHRUN = """echo "$SLURMD_NODENAME starts ranks"
until [ "$1" = --no-python ]; do shift; done; shift
[ $SLURMD_NODENAME = n1 ] && exec "$@"
{other}
"""


@pytest.mark.parametrize(
    ("other", "said"), [("exec true", ""), ("exit 3", "ended with exit code 3"), ("kill -9 $$", "137")]
)
def test_agents_start_torchrun_on_several_nodes(panda, pilot, begin, tools, other, said):
    program(tools / "torchrun", TORCHRUN.format(other=other))
    command = GOOD if not said else "trap '' TERM; sleep 300"  # it is killed then, and its node is not lost
    job = panda.add_job(f"printenv PANDAID; {command}", nodes=2, ranks_per_node=1, minutes=5.0)
    begin("--keep", launcher={"name": "torchrun", "starter": "srun"})
    found = verdict(panda.final(job))
    assert (found["value"], said in found["message"]) == (None if said else 0.5, True), found
    (log,) = pilot.workdir.glob("jobs/*/*/payload.log")
    lines = {"n2 starts ranks"} if said else {"n1 starts ranks", "n2 starts ranks", str(job)}  # n1 may be ended before
    assert set(log.read_text().splitlines()) >= lines
    (line,) = (tools / "launched").read_text().splitlines()
    assert "--job-name=hpo-pilot-agents" in line and pilot.end() == 0


def test_an_image_is_copied_to_the_nodes_once(panda, pilot, begin, tools):
    image = pilot.folder / "image.sif"
    image.write_text("")
    program(
        tools / "apptainer", f"""until [ -f "$1" ]; do shift; done\necho "$1" >> {tools}/images\nshift\nexec "$@" """
    )
    jobs = [panda.add_job(GOOD, job={"container_name": str(image)}) for _ in range(3)]
    begin(containers={"runtime": "apptainer"})
    assert [verdict(panda.final(job))["value"] for job in jobs] == [0.5] * 3
    used = set((tools / "images").read_text().splitlines())
    assert all(one.startswith(str(pilot.folder / "disk")) and one.endswith("image.sif") for one in used)
    assert len(used) <= 2


def test_a_job_that_waits_for_agents_goes_back_if_none_can_be_started(panda, pilot, begin, tools, until):
    panda.takes_back = True
    once = 'case "$*" in *pilot-agents*) while [ ! -e {0}/asked ]; do sleep 0.1; done; exit 1 ;; esac\n'
    program(tools / "srun", once.format(tools) + (tools / "srun").read_text().removeprefix("#!/bin/sh\n"))
    program(tools / "torchrun", TORCHRUN.format(other="exec true"))
    job = panda.add_job(GOOD, nodes=2, ranks_per_node=1, minutes=5.0)
    begin(launcher={"name": "torchrun", "starter": "srun"})
    until(lambda: panda.of(job, "running"))
    (tools / "asked").touch()
    until(lambda: panda.given_back == [[job, 1]])
    assert not panda.of(job, "failed")


def test_without_agents_jobs_take_job_steps(panda, pilot, begin, tools, until):
    once = 'case "$*" in *pilot-agents*) echo "srun: unrecognized option --overlap" >&2; exit 1 ;; esac\n'
    text = (tools / "srun").read_text()
    program(tools / "srun", once + text.removeprefix("#!/bin/sh\n"))
    (tools / "no-n2").touch()
    begin()
    until(lambda: "no agents can be started on the nodes" in pilot.said() and "unrecognized option" in pilot.said())
    assert verdict(panda.final(panda.add_job(GOOD)))["value"] == 0.5


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_end_of_the_allocation_keeps_checkpoints_on_shared_storage(panda, pilot, begin, until, is_kept):
    """A job whose checkpoint shared storage does not take would be given back for ever."""
    panda.takes_back = True
    saves = panda.add_job("echo 1 > ckpt; exec sleep 300", checkpoint=["ckpt"], job={"prodUserID": "jane"})
    does_not = panda.add_job("exec sleep 300", job={"prodUserID": "jane"})
    begin()
    until(lambda: panda.of(saves, "running") and panda.of(does_not, "running"))
    until(lambda: list(pilot.folder.glob("disk/*/checkpoints/*/*/*/.kept/ckpt")))
    if not is_kept:
        (pilot.workdir / "checkpoints").rmdir()
        (pilot.workdir / "checkpoints").touch()
    assert pilot.end() == 0
    assert panda.given_back == [[saves, 1]] * is_kept and panda.of(does_not, "failed")
    assert bool(panda.of(saves, "failed")) != is_kept
    assert ("1 checkpointed" in pilot.said()) == is_kept
    assert bool(list(pilot.workdir.glob("checkpoints/*/*/*/.kept/ckpt"))) == is_kept


def test_a_level_goes_on_at_any_node(panda, pilot, begin, until):
    begin("--checkpoints", str(pilot.folder / "shared"))
    train = "i=$(cat ckpt || echo 0); echo $HPO_PILOT_LEVEL > ckpt; echo '{\"loss\": '$i'}' > output.json"
    diverges = f"{train}; exit 1"

    def run(command: str = train, **level: Any) -> int:
        job = panda.add_job(command, checkpoint=["ckpt"], level=level)
        if command == diverges:
            assert verdict(panda.final(job))["value"] is None
            return int(job)
        assert verdict(panda.final(job))["value"] == done[-1]
        done.append(level["level"])
        return job

    def kept() -> list[str]:
        return sorted(path.name for path in pilot.folder.glob("shared/1a2b3c4d/*"))

    done = [0]
    first = run(level=1, keep_checkpoint=True)
    second = run(level=3, keep_checkpoint=True, chain=first)
    until(lambda: kept() == [f"t{first}f0.{second}"])
    run(diverges, level=9, chain=first)
    until(lambda: kept() == [f"t{first}f0.{second}"])
    run(level=9, chain=first)
    until(lambda: kept() == [])


def test_heartbeats_of_agents_go_together(panda, pilot, begin, until):
    jobs = [panda.add_job("exec sleep 300") for _ in range(8)]
    begin("--heartbeat", "2")  # at 0.3 s, agents may take turns: a call lasts 0.2 s and more
    until(lambda: max(panda.lists, default=0) > 4)  # an agent has four jobs
    killed, *others = jobs
    panda.commands[killed] = "tobekilled"
    assert panda.final(killed)["pilot_error_code"] == 1144
    panda.lists = None  # its next release
    seen = len(panda.reports)
    until(lambda: all(panda.reports[seen:].count(panda.of(job)[-1]) and not panda.of(job, "failed") for job in others))


def test_the_server_is_away_for_a_time(panda, pilot, begin, until):
    job = panda.add_job("while [ ! -e ../../go ]; do sleep 0.1; done; " + GOOD)
    begin()
    until(lambda: panda.of(job, "running"))
    panda.down()
    (folder,) = pilot.folder.glob("disk/*/jobs/*/*")
    (folder.parent.parent / "go").touch()
    until(lambda: "the server is away" in pilot.said())
    panda.up()
    assert verdict(panda.final(job))["value"] == 0.5


def test_the_pilot_of_the_allocation_answers_only_its_agents(panda, pilot, begin, until):
    begin()
    until(lambda: len(agents(pilot.folder)) == 2)
    (file,) = pilot.workdir.glob("agents/*/agents.json")
    assert all(
        path.stat().st_mode & 0o77 == 0 for path in (file, *(file.parent / name for name in ("token", "key.pem")))
    )
    url, trusted = json.loads(file.read_text())["server"], str(file.parent / "certificate.pem")
    assert url.startswith("https://127.0.0.1:")
    for path in ("/api/v1/pilot/acquire_jobs", "/cache/x", "/points/../api/v1/pilot/update_job", "/points/%2e%2e/api"):
        answer = requests.Request("POST", url, headers={"Authorization": "Bearer x"}, json={}).prepare()
        answer.url = url + path
        with requests.Session() as session:
            assert session.send(answer, verify=trusted).status_code == 401, path


@pytest.mark.parametrize(
    ("launcher", "beside", "rank_of"),
    [("srun", "--overlap", "SLURM_LOCALID"), ("flux", "gpu-affinity=off", "FLUX_TASK_LOCAL_ID")],
)
def test_ranks_on_shared_nodes_see_the_gpus_that_the_pilot_has_chosen(tmp_path, launcher, beside, rank_of):
    """The launcher does not choose them there, and does not know of the agents' jobs."""
    job = parse_job({"PandaID": 1, "attemptNr": 1, "jobPars": "-a s.tar.gz -p x"})
    site = Site(launcher=make_launcher({"name": launcher}), gpu_kind="nvidia")
    gpus = {"n1": ("0", "1"), "n2": ("2", "3")}
    given = AssignedResources(("n1", "n2"), {}, 4, gpus=gpus, allocation=("n1", "n2", "n3"), is_shared=True)
    launched = WithLauncher(
        site, job, given, PayloadSettings(nodes=2, ranks_per_node=2, gpus=2), InContainer("auto", "")
    )
    path = f"{program(tmp_path / 'tools' / launcher, '').parent}:{os.environ['PATH']}"
    words, _ = launched.wrap(["payload"], {"PATH": path}, [], tmp_path)
    assert beside in words and not any(word.startswith(("--gpu", "-g")) for word in words)
    around = words[words.index("/bin/sh") : -1]
    for rank, gpu in enumerate(("2", "3")):
        env = {"PATH": path, "SLURMD_NODENAME": "n2", rank_of: str(rank)}
        assert subprocess.check_output([*around, "printenv", "CUDA_VISIBLE_DEVICES"], env=env).decode().strip() == gpu


def test_the_pace_of_checkpoints():
    pace = Pace(100.0)
    assert pace.turn(50) < 0.1
    assert 0.4 < pace.turn(100) <= 0.5
    assert 1.4 < pace.turn(1) <= 1.5
    pace.bytes_per_second = float("inf")
    assert pace.turn(10**12) == 0.0


@pytest.mark.parametrize(
    ("launcher", "nodes", "ranks", "takes"),
    [
        ({"name": "srun"}, 1, 0, False),
        ({"name": "srun"}, 1, 2, True),
        ({"name": "srun"}, 2, 1, True),
        ({"name": "srun", "on_node": "torchrun"}, 1, 8, False),
        ({"name": "torchrun", "starter": "srun"}, 1, 8, False),
        ({"name": "torchrun", "starter": "srun"}, 2, 8, False),
        ({"name": "torchrun", "starter": "jsrun"}, 2, 8, True),
        ({"name": "srun", "on_node": "torchrun"}, 2, 8, True),
        ({"name": "pals"}, 1, 0, False),
        ({"name": "torchrun", "starter": "flux"}, 1, 8, False),
        ({"name": "flux"}, 2, 1, True),
        ({"name": "jsrun"}, 1, 0, True),
    ],
)
def test_which_jobs_take_a_job_step(launcher, nodes, ranks, takes):
    assert make_launcher(launcher).needs_step(nodes, ranks) == takes
