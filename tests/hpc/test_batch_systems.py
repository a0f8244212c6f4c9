"""Batch systems against commands that print what is written here, LSF against ones that check what they are told.

Slurm and HTCondor themselves are in tests/real.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.hpc.allocations import AllocationFile, AllocationManager
from hpo_pilot.hpc.batch_system import AllocationSpec, BatchState, CommandFailedError, ask_batch_system, run_command
from hpo_pilot.hpc.batch_systems import make_batch_system
from hpo_pilot.hpc.site_files import find_site

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


@pytest.mark.parametrize(
    ("system", "command"), [("slurm", "sbatch"), ("pbs", "qsub"), ("flux", "flux"), ("htcondor", "condor_submit")]
)
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


def test_htcondor(says: Says, calls: Path, spec: AllocationSpec) -> None:
    """As HTCondor 23.9.6 answers."""
    common = {"ProcId": 0, "JobBatchName": "hpo-1", "ExitBySignal": False, "RemoteWallClockTime": 8.0, "MaxRuntime": 10}
    removed = {"JobStatus": 3, "RemoveReason": "via condor_rm (by user daemon)"}
    given: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"JobStatus": 1}, "waiting", ""),
        ({"JobStatus": 2}, "running", ""),
        (
            {"JobStatus": 5, "HoldReason": "submitted on hold at user's request"},
            "held",
            "submitted on hold at user's request",
        ),
        (removed, "running", "via condor_rm (by user daemon)"),
        ({"JobStatus": 7}, "running", ""),
    )
    ended: tuple[tuple[dict[str, Any], str, str], ...] = (
        (removed, "cancelled", "via condor_rm (by user daemon)"),
        ({**removed, "RemoteWallClockTime": 15.0}, "timed out", "via condor_rm (by user daemon)"),
        ({"JobStatus": 4, "ExitCode": 0}, "ended", ""),
        ({"JobStatus": 4, "ExitCode": 7}, "failed", "exit status 7"),
        ({"JobStatus": 4, "ExitBySignal": True, "ExitSignal": 9}, "failed", "signal 9"),
    )
    htcondor = make_batch_system("htcondor")
    for program, rows in (("condor_q", given), ("condor_history", ended)):
        says(program, json.dumps([{**common, **said, "ClusterId": place} for place, (said, _, _) in enumerate(rows)]))
        found = htcondor.jobs() if program == "condor_q" else htcondor.earlier(["0.0", "1.0"])
        assert [(job.state.value, job.reason) for job in found.values()] == [(state, why) for _, state, why in rows]
    assert (found["4.0"].id, found["4.0"].name) == ("4.0", "hpo-1")
    asked = calls.read_text().splitlines()
    assert asked[0].startswith("condor_q -json -attributes ClusterId,") and asked[1].endswith(" 0.0 1.0")
    says("condor_submit", "12.0 - 12.0\n")
    assert htcondor.submit(spec) == "12.0"
    says("condor_q", "")
    assert htcondor.jobs() == {}
    says("condor_history", "no history here", 1)
    assert htcondor.earlier(["1.0"]) == {}
    says("condor_rm", "Job 12.0 not found\n", 1)
    htcondor.cancel(["12.0"])


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


# --- LSF ---


STUB = Path(__file__).parent / "stubs" / "lsf.py"


@pytest.fixture
def lsf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an LSF's state; its commands are first in PATH."""
    folder = tmp_path / "lsf"
    folder.mkdir()
    for program in ("bsub", "bjobs", "bkill"):
        (folder / program).write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {STUB} "$0" "$@"\n')
        (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("LSF_STUB", str(folder))
    return folder


@pytest.fixture
def summit(tmp_path: Path) -> AllocationSpec:
    site = find_site("summit")
    folder = tmp_path / "shared"
    return AllocationSpec(site, 92, 720, "hpo-1", folder, ("hpo-pilot", "pilot"), account="ABC123")


def jobs(lsf: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((lsf / "jobs.json").read_text())
    return found


def test_a_life_in_lsf(lsf: Path, summit: AllocationSpec, tmp_path: Path) -> None:
    manager = AllocationManager(AllocationFile(tmp_path / "work"))
    done = manager.submit(summit, server="https://here", panda_queue="Q")
    assert done.job_id == "1000" and done.state is BatchState.WAITING
    kept = jobs(lsf)["1000"]
    assert kept["script"] == summit.script_file.read_text()
    assert kept["options"] == {
        "J": "hpo-1",
        "nnodes": "92",
        "W": "12:00",
        "q": "batch",
        "P": "ABC123",
        "wa": "USR1",
        "wt": "5",
        "rn": True,
        "o": str(summit.output),
        "alloc_flags": "NVME smt1",
    }
    (lsf / "jobs.json").write_text(json.dumps({"1000": {**kept, "stat": "RUN"}}))
    assert manager.refresh()[0].state is BatchState.RUNNING
    (one,) = manager.cancel(["1000"])
    assert one.state is BatchState.CANCELLED and one.reason == "TERM_OWNER: job killed by owner"
    assert manager.cancel(["hpo-1"]) == []


@pytest.mark.parametrize(
    ("stat", "reason", "state"),
    [
        ("PSUSP", "-", BatchState.HELD),
        ("SSUSP", "-", BatchState.RUNNING),
        ("DONE", "-", BatchState.ENDED),
        ("EXIT", "-", BatchState.FAILED),
        ("EXIT", "TERM_RUNLIMIT: job killed after reaching LSF run time limit", BatchState.TIMED_OUT),
        ("EXIT", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit", BatchState.FAILED),
    ],
)
def test_states_of_lsf(stat: str, reason: str, state: BatchState, lsf: Path) -> None:
    job = {"name": "a|b", "queue": "batch", "stat": stat, "reason": reason}
    (lsf / "jobs.json").write_text(json.dumps({"7": job}))
    (found,) = make_batch_system("lsf").jobs().values()
    assert (found.id, found.name, found.state, found.queue) == ("7", "a|b", state, ("batch",))


def test_of_several_some_are_over(lsf: Path) -> None:
    (lsf / "jobs.json").write_text(
        json.dumps({n: {"name": n, "queue": "q", "stat": s, "reason": "-"} for n, s in (("1", "DONE"), ("2", "RUN"))})
    )
    make_batch_system("lsf").cancel(["1", "2"])
    assert jobs(lsf)["2"]["stat"] == "EXIT"


# --- commands of batch systems ---


SHOW = (sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))")


def test_users_settings_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of login nodes' commands and of those that a pilot asks."""
    for name in ("SQUEUE_FORMAT", "SLURM_TIME_FORMAT", "SBATCH_ACCOUNT", "FLUX_JOBS_FORMAT"):
        monkeypatch.setenv(name, "odd")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    for said in (run_command(SHOW), ask_batch_system(SHOW)):
        seen = json.loads(said)
        assert seen["LC_ALL"] == "C.UTF-8" and "odd" not in seen.values() and "PATH" in seen


def test_one_that_hangs_with_children() -> None:
    """A wrapper around the real command: what it leaves behind holds its output open."""
    began = time.monotonic()
    with pytest.raises(TryAgainError, match=r"sh has not answered for 0 s"):
        run_command(("sh", "-c", "sleep 600 & sleep 600"), seconds=0.3)
    assert time.monotonic() - began < 500


def test_what_goes_wrong() -> None:
    with pytest.raises(InputError, match=r"there is no no-such-command in PATH here: .* on a login node"):
        run_command(("no-such-command",))
    with pytest.raises(CommandFailedError, match="sh ended with status 3: what is wrong"):
        run_command(("sh", "-c", "echo what is wrong >&2; exit 3"))
    for words in (("no-such-command",), ("sh", "-c", "exit 3")):
        with pytest.raises(InputError):
            ask_batch_system(words)
