"""PBS, Flux and Slurm against commands that print what is written here; Slurm itself is in tests/real."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_pilot.errors import TryAgainError
from hpo_pilot.hpc.batch_system import AllocationSpec, BatchState, CommandFailedError
from hpo_pilot.hpc.batch_systems import make_batch_system

Says = Callable[..., None]

#: What `call` was asked, and the answer.
_STUB = """#!/bin/sh
echo "$(basename "$0") $*" >>{calls}
[ "$1" = -x ] && [ -e {folder}/no-history ] && {{ echo "job_history_enable is set to false" >&2; exit 1; }}
cat {answer}
exit {status}
"""


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def says(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Makes a command that says something."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(program: str, text: str, status: int = 0) -> None:
        (folder / f"{program}.txt").write_text(text)
        answer = shlex.quote(str(folder / f"{program}.txt"))
        (folder / program).write_text(_STUB.format(calls=calls, answer=answer, folder=folder, status=status))
        (folder / program).chmod(0o755)

    return make


@pytest.fixture
def spec(plan: Callable[..., AllocationSpec]) -> AllocationSpec:
    made = plan("one")
    made.folder.mkdir(parents=True)
    made.script_file.write_text("")
    return made


def test_pbs(says: Says, calls: Path, spec: AllocationSpec) -> None:
    says("qsub", "12.server\n")
    says("qselect", "12.server\n13.server\n")
    says("qdel", "qdel: Job has finished 13.server\n", 35)
    states = {
        "12.server": {"job_state": "R", "Job_Name": "hpo-1", "queue": "workq"},
        "13.server": {"job_state": "F", "Exit_status": -29, "comment": "over"},
        "14.server": {"job_state": "F", "Exit_status": 271},
        "15.server": {"job_state": "F", "Exit_status": 1},
        "16.server": {"job_state": "F", "Exit_status": 0},
        "17.server": {"job_state": "H"},
        "18.server": {"job_state": "Q"},
    }
    says("qstat", json.dumps({"Jobs": states}))
    pbs = make_batch_system("pbs")
    assert pbs.submit(spec) == "12.server"
    jobs = pbs.jobs()
    assert [job.state.value for job in jobs.values()] == [
        *("running", "timed out", "cancelled", "failed", "ended", "held", "waiting")
    ]
    assert (jobs["12.server"].name, jobs["12.server"].queue) == ("hpo-1", ("workq",))
    pbs.cancel(["12.server", "13.server"])
    asked = calls.read_text().splitlines()
    assert asked[0] == f"qsub {spec.script_file}" and asked[1].startswith("qselect -x -u ")
    assert asked[2:] == ["qstat -x -f -F json 12.server 13.server", "qdel 12.server 13.server"]


def test_pbs_without_history(says: Says, calls: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "no-history").touch()
    says("qselect", "")
    assert make_batch_system("pbs").jobs() == {}
    assert [line.split()[1] for line in calls.read_text().splitlines()] == ["-x", "-u"]


@pytest.mark.parametrize("said", ["{", "[]", '{"Jobs": []}', '{"Jobs": {"7": 3}}', '{"Jobs": null}'])
def test_pbs_that_prints_no_proper_json(said: str, says: Says) -> None:
    says("qselect", "1\n")
    says("qstat", said)
    with pytest.raises(TryAgainError, match="does not print proper JSON"):
        make_batch_system("pbs").jobs()


@pytest.mark.parametrize(
    ("system", "program", "text", "number"),
    [
        ("slurm", "squeue", "Maintenance | see the news\n7|RUNNING|None|a|b|hpo-1\n8||None|a|b|x\n", "7"),
        ("lsf", "bjobs", "hello | world\n7|RUN|batch|-|hpo-1\n", "7"),
        ("flux", "flux", "hello | world\nf7|RUN|batch|hpo-1\n", "f7"),
    ],
)
def test_lines_that_describe_no_job(system: str, program: str, text: str, number: str, says: Says) -> None:
    says(program, text)
    assert list(make_batch_system(system).jobs()) == [number]


@pytest.mark.parametrize(("system", "command"), [("slurm", "sbatch"), ("pbs", "qsub"), ("flux", "flux")])
def test_a_submission_that_prints_no_job(system: str, command: str, says: Says, spec: AllocationSpec) -> None:
    """Whether there is a job now is to be looked up."""
    says(command, "")
    with pytest.raises(TryAgainError, match=f"{command} does not say which job it submitted"):
        make_batch_system(system).submit(spec)


def test_flux(says: Says, calls: Path, spec: AllocationSpec) -> None:
    says("flux", "f7Ab\n")
    flux = make_batch_system("flux")
    assert flux.submit(spec) == "f7Ab"
    says(
        "flux",
        "f7Ab|RUN|pbatch|hpo-1\nf8|SCHED||a|b\nf9|TIMEOUT|pbatch|c\nfA|CANCELED||d\nfB|DEPEND||e\nfC|FAILED||f\n",
    )
    found = [(job.id, job.name, job.state.value, job.queue) for job in flux.jobs().values()]
    assert found == [
        ("f7Ab", "hpo-1", "running", ("pbatch",)),
        ("f8", "a|b", "waiting", ()),
        ("f9", "c", "timed out", ("pbatch",)),
        ("fA", "d", "cancelled", ()),
        ("fB", "e", "held", ()),
        ("fC", "f", "failed", ()),
    ]
    says("flux", "flux-job: f7Ab: job is inactive\n", 1)
    flux.cancel(["f7Ab"])
    assert calls.read_text().splitlines() == [
        f"flux batch {spec.script_file}",
        "flux jobs -a --no-header --format={id.f58}|{status}|{queue}|{name}",
        "flux cancel f7Ab",
    ]


def test_slurm(says: Says, calls: Path, spec: AllocationSpec) -> None:
    says("sbatch", "17;frontier\n")
    says(
        "squeue",
        "17|RUNNING|None|batch|normal|a|b\n"
        "18|PENDING|Priority|batch|normal|c\n"
        "19|PENDING|QOSMaxJobsPerUserLimit|batch|debug|d\n"
        "20|OUT_OF_MEMORY|OutOfMemory|batch|normal|e\n"
        "21|FAILED|None|batch|normal|f\n"
        "22|CANCELLED|None|batch|normal|g\n",
    )
    slurm = make_batch_system("slurm")
    assert slurm.submit(spec) == "17"
    jobs = slurm.jobs()
    assert [(job.state.value, job.reason) for job in jobs.values()] == [
        ("running", ""),
        ("waiting", "Priority"),
        ("held", "QOSMaxJobsPerUserLimit"),
        ("failed", "OutOfMemory"),
        ("failed", "FAILED"),
        ("cancelled", ""),
    ]
    assert (jobs["17"].name, jobs["17"].queue) == ("a|b", ("batch", "normal"))


def test_slurms_books(says: Says) -> None:
    says("sacct", "7|CANCELLED by 1000|None|batch|normal|a\n8|NODE_FAIL|None|batch|normal|b\n")
    slurm = make_batch_system("slurm")
    assert [(job.state, job.reason) for job in slurm.earlier(["7", "8"]).values()] == [
        (BatchState.CANCELLED, ""),
        (BatchState.FAILED, "NODE_FAIL"),
    ]
    says("sacct", "Slurm accounting storage is disabled\n", 1)
    assert slurm.earlier(["7"]) == {}


def test_slurm_without_sacct(says: Says) -> None:
    assert make_batch_system("slurm").earlier(["7"]) == {}


def test_what_a_command_says_is_told(says: Says) -> None:
    says("squeue", "slurm_load_jobs error:\n Unable to contact slurm controller\n", 1)
    with pytest.raises(
        CommandFailedError, match="squeue ended with status 1: slurm_load_jobs error: Unable to contact"
    ):
        make_batch_system("slurm").jobs()
