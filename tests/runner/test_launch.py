"""A payload that a launcher starts."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.hpc.launcher import LauncherSettings
from hpo_pilot.hpc.launchers import LAUNCHERS
from hpo_pilot.pilot.launch import STEP_CANCELLED
from tests.programs import program
from tests.runner.conftest import RUNNER

#: What real ones left when rank 1 raised ValueError: Slurm 22.05, Flux 0.88, Horovod 0.28.1, Open MPI 4.1, MPICH 4.0,
#: torch 2.13. PALS as in HPE's craycli, cray/pals.py.
LOGS = {
    "srun": """\
0: hello
1: Traceback (most recent call last):
1:   File "r.py", line 11, in <module>
1: ValueError: boom
srun: error: n2: task 1: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=1.0
0: slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-22T00:02:21 ***
0: rank 0 was told to stop
0: saved
srun: Force Terminated StepId=1.0
""",
    "flux": """\
0: hello
1: Traceback (most recent call last):
1: ValueError: boom
1.708s: flux-shell[0]: FATAL: task-exit: python3: task rank 1 on host n2 failed (Exit 1) and exit-on-error is set
1.708s: job.exception f4Vn2maX type=exec severity=0 python3: task rank 1 on host n2 failed (Exit 1)
flux-job: task(s) exited with exit code 1
""",
    "pals": """\
x1c0s1b0n0.hsn 0: hello
x1c0s2b0n0.hsn 1: ValueError: boom
x1c0s2b0n0.hsn: rank 1 exited with code 1
x1c0s1b0n0.hsn 0: saved
x1c0s1b0n0.hsn: rank 0 died from signal 15
""",
    "horovodrun": """\
[0]<stdout>:hello
[1]<stderr>:Traceback (most recent call last):
[1]<stderr>:ValueError: boom
Process 1 exit with status code 1.
Terminating remaining workers after failure of Process 1.
[0]<stdout>:saved
Traceback (most recent call last):
  File "bin/horovodrun", line 8, in <module>
    sys.exit(run_commandline())
RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job to be \
terminated. The first process to do so was:
Process name: 1
Exit code: 1

""",
    "mpirun": """\
[1,0]<stdout>:hello
[1,1]<stderr>:ValueError: boom
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
[1,0]<stdout>:saved
mpirun.openmpi detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[21694,1],1]
  Exit code:    1
--------------------------------------------------------------------------
""",
    "mpich": """\
[0] hello
[1] ValueError: boom

===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 14490 RUNNING AT vm
=   EXIT CODE: 9
===================================================================================
[0] saved
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)
""",
    "torchrun": """\
hello
ValueError: boom
W1122 00:02:18.075000 14573 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1 closing signal
saved
E1122 00:02:18.390000 14573 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
""",
}
#: Of a rank that was killed: rank 0 of DDP over gloo then has an exception of its own.
KILLED = """\
1 epoch 1
I am rank 1
[rank0]: Traceback (most recent call last):
[rank0]:     model(torch.ones(4, 8)).sum().backward()
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:36256: Connection reset by peer. This is
W1127 23:30:44.942000 13029 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 13250 closing signal
E1127 23:30:45.139000 13029 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1
"""


def launch(folder: Path, **said: Any) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "hpo_pilot_launch.json").write_text(json.dumps({"before": [], **said}))
    return runpy.run_path(str(RUNNER.parent / "hpo_pilot_launch.py"))["Launch"](str(folder), set("$'\""))


def log_patterns(name: str) -> dict[str, str]:
    found = LAUNCHERS["mpirun"](LauncherSettings(mpi=name)) if name == "mpich" else LAUNCHERS[name]()
    return {key: getattr(found.log_patterns, key) for key in ("label", "dead", "own", "cancelled")}


@pytest.mark.parametrize("name", list(LOGS))
def test_the_message_is_of_the_rank_that_failed(name, tmp_path):
    said = launch(tmp_path, **log_patterns(name)).last_words(LOGS[name])
    assert said == ("ValueError: boom" if name in ("mpich", "torchrun") else "rank 1: ValueError: boom")


def test_a_rank_that_lost_its_partner_is_not_the_message(tmp_path):
    launched = launch(tmp_path, **log_patterns("torchrun"))
    assert launched.last_words(KILLED) == "I am rank 1"
    raised = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: its images are lost\n"
    assert launched.last_words(KILLED.replace("[rank0]: Tr", raised + "[rank0]: Tr")) == (
        "rank 1: ValueError: its images are lost"
    )


def test_without_output_of_ranks_the_launcher_s_error_is_the_message(tmp_path):
    launched = launch(tmp_path, **log_patterns("srun"))
    refused = "srun: error: Unable to create step for job 1: More processors requested than permitted"
    assert launched.last_words(refused + "\n") == refused
    missing = "0: slurmstepd-n1: error: execve(): nosuch: No such file or directory\nsrun: error: n1: task 0: Exited\n"
    assert launched.last_words(missing).startswith("rank 0: slurmstepd-n1: error: execve(): nosuch")
    assert launched.last_words("") == ""


def test_the_command_follows_the_launcher(tmp_path, monkeypatch):
    launched = launch(tmp_path, before=["srun", "--chdir=%FOLDER", "--"])
    monkeypatch.chdir(tmp_path)
    assert launched.words("python train.py") == ["srun", f"--chdir={tmp_path}", "--", "python", "train.py"]
    assert launched.words("a '$B'")[3:] == ["/bin/sh", "-c", "a '$B'"]


STUB = """# A launcher that does not pass signals on, like srun: its rank is a session of its own.
echo "$HPO_PILOT_SEED $PWD" > told
setsid "$@" &
echo $! > {folder}/rank.pid
wait $!
"""


#: What Slurm 22.05 left of steps that it preempted, on one node and on two, and of one that a user cancelled.
CANCELLED = {
    "preempted": """\
0: epoch 1
0: slurmstepd-n1: error: *** STEP 1.2 ON n1 CANCELLED AT 2026-11-23T14:41:50 ***
srun: error: n1: tasks 0-1: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=1.2
""",
    "preempted, the other node first": """\
srun: error: n2: task 1: Terminated
srun: launch/slurm: _step_signal: Terminating StepId=1.5
0: slurmstepd-n1: error: *** STEP 1.5 ON n1 CANCELLED AT 2026-11-23T14:41:50 ***
srun: error: n1: task 0: Terminated
""",
    "cancelled alone": """\
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
srun: error: n2: task 1: Killed
0: slurmstepd-n1: error: *** STEP 1.3 ON n1 CANCELLED AT 2026-11-23T14:41:48 ***
""",
}
#: The payload's own failures, after which Slurm ends the rest of the step; the second by its src/interfaces.
FAILED = {
    "a rank failed": LOGS["srun"],
    "memory": """\
0: slurmstepd: error: StepId=1.3 exceeded memory limit (1100 > 1000), being killed
0: slurmstepd: error: *** STEP 1.3 ON n1 CANCELLED AT 2026-11-23T14:41:48 ***
srun: error: n1: task 0: Killed
""",
    "a signal to one rank": "srun: error: n1: task 0: Terminated\nsrun: Force Terminated StepId=1.5\n",
    "a later version": "0: slurmstepd: error: *** STEP 1.3 ON n1 CANCELLED AT 2026-11-23 DUE TO TASK FAILURE ***\n",
}


@pytest.mark.parametrize(("log", "is_verdict"), [(log, 0) for log in CANCELLED] + [(log, 1) for log in FAILED])
def test_a_cancelled_step_is_no_verdict_on_the_payload(log, is_verdict, bench, tmp_path):
    (tmp_path / "said").write_text((CANCELLED | FAILED)[log])
    program(tmp_path / "srun", f"cat {tmp_path}/said; exit 143\n")
    files = {"hpo_pilot_launch.json": json.dumps({"before": [str(tmp_path / "srun")], **log_patterns("srun")})}
    process, folder = bench.start("true", files=files)
    said, _ = process.communicate(timeout=600)
    assert (folder / "userJobMetadata.json").exists() == bool(is_verdict)
    assert (process.returncode, said) == ((0, "") if is_verdict else (1, f"hpo_pilot_runner: {STEP_CANCELLED}\n"))


def test_a_cancelled_flux_job(tmp_path):
    """Flux 0.88, `flux cancel`."""
    launched = launch(tmp_path, **log_patterns("flux"))
    assert launched.was_cancelled("4.647s: job.exception f8K1Tbd1 type=cancel severity=0 \nflux-job: Terminated\n")
    assert not launched.was_cancelled(LOGS["flux"])


@pytest.fixture
def stubbed(bench, tmp_path):
    """Runs with a launcher, a lister of its steps, and a sender of signals to them."""
    tools = tmp_path / "tools"
    scripts = {
        "launch": STUB.format(folder=tools),
        "steps": f"[ -e {tools}/rank.pid ] && echo '1.0 mine' && echo '1.1 other'\n",
        "signal": f"echo $1 $2 >> {tools}/sent; kill -$1 $(cat {tools}/rank.pid)\n",
    }
    for name, text in scripts.items():
        program(tools / name, text)
    said = {"before": [str(tools / "launch")], "name": "mine", "steps": [str(tools / "steps")]}
    said["signal"] = [str(tools / "signal"), "%SIGNAL"]
    return bench, tools, {"hpo_pilot_launch.json": json.dumps(said)}


def test_signals_are_sent_to_the_step_and_not_to_its_launcher(stubbed):
    bench, tools, files = stubbed
    assert bench.run("""echo '{"loss": 0.5}' > output.json""", files=files).verdict["value"] == 0.5
    assert not (tools / "sent").exists()
    ended = bench.run("trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done", minutes=0.01, files=files)
    assert ended.verdict["cause"] == "limit" and "saved" in ended.verdict["log_tail"]
    assert (tools / "sent").read_text() == "TERM 1.0\n"


def test_an_exit_status_of_the_signal_command_is_ignored(stubbed):
    bench, tools, files = stubbed
    program(tools / "signal", f"kill -$1 $(cat {tools}/rank.pid); exit 225\n")
    saves = "trap 'sleep 0.5; echo saved; exit 0' TERM; while :; do sleep 0.05; done"
    assert "saved" in bench.run(saves, minutes=0.01, files=files).verdict["log_tail"]


def test_a_launcher_that_is_missing_is_named(bench):
    files = {"hpo_pilot_launch.json": json.dumps({"before": ["no-such-launcher"]})}
    ended = bench.run("true", files=files)
    assert "no-such-launcher: not found" in ended.verdict["message"]
    assert shutil.which("no-such-launcher") is None


#: Real ones, shortened: rank 0 waited for rank 1 and ended first; the two streams of a rank come in no order.
CONSEQUENCES = """\
[1]<stderr>:Traceback (most recent call last):
[1]<stderr>:  File "train.py", line 13, in run_epoch
[1]<stdout>:epoch 1
[1]<stderr>:    raise ValueError("its images are lost")
[1]<stderr>:ValueError: its images are lost
[1]<stdout>:I am rank 1
[0]<stderr>:Traceback (most recent call last):
[0]<stderr>:RuntimeError: Horovod has been shut down. This was caused by an exception on one of the ranks
[0]<stderr>:
[0]<stderr>:During handling of the above exception, another exception occurred:
[0]<stderr>:
[0]<stderr>:Traceback (most recent call last):
[0]<stderr>:horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.
Process 0 exit with status code 1.
Terminating remaining workers after failure of Process 0.
Process 1 exit with status code 1.
Traceback (most recent call last):
  File "bin/horovodrun", line 8, in <module>
RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job to be \
terminated. The first process to do so was:
Process name: 0
Exit code: 1
"""


def test_an_exception_comes_before_its_consequences(tmp_path):
    launched = launch(tmp_path, **log_patterns("horovodrun"))
    assert launched.last_words(CONSEQUENCES) == "rank 1: ValueError: its images are lost"
    caught = '[0]<stderr>:Traceback (most recent call last):\n[0]<stderr>:KeyError: "no cache, it goes on without"\n'
    of_dead = CONSEQUENCES.replace("Process 0 exit", "Process 1 exit")
    assert launched.last_words(caught + of_dead) == "rank 1: ValueError: its images are lost"
    later = '[0]<stderr>:Traceback (most recent call last):\n[0]<stderr>:KeyError: "ended by the other"\n'
    assert launched.last_words(of_dead + later) == "rank 1: ValueError: its images are lost"
    waited = CONSEQUENCES.replace("ValueError: its images are lost", "")
    assert launched.last_words(waited).startswith("rank 0: horovod.common.exceptions.HorovodInternalError: ")


def test_the_signal_that_ended_a_rank_is_the_message(tmp_path):
    launched = launch(tmp_path, **log_patterns("horovodrun"))
    log = "[1]<stderr>:Killed\n[1]<stdout>:I am rank 1\n[0]<stdout>:epoch 1\nProcess 1 exit with status code 137.\n"
    assert launched.last_words(log) == "rank 1: Killed"
