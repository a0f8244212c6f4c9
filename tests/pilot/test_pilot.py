"""The pilot as a process, against a server that does what each test wants."""

from __future__ import annotations

import json
import os
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.pilot.conftest import FakePanda, PilotProcess, archive_of

GOOD = """echo '{"status": 0, "loss": 0.5}' > output.json"""


def verdict(report: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(report["meta_data"])["user_job_metadata"]["hpo_pilot"])


def test_a_job_from_queue_to_report(panda: FakePanda, pilot: PilotProcess, until: Any) -> None:
    first = panda.add_job(GOOD + "; echo m > model; env > env; sleep 0.3", outputs=["model", "env"])
    pilot.start("--worker-id", "4", "--harvester-id", "here")
    report = panda.final(first)
    assert report["job_status"] == "finished" and report["attempt_nr"] == 1 and report["trans_exit_code"] == 0
    assert verdict(report)["value"] == 0.5 and verdict(report)["trial"] == first
    second = panda.add_job("exit 3")
    assert verdict(panda.final(second))["message"] == "the payload ended with exit code 3"
    assert pilot.end() == 0
    assert panda.workers[-1] == {"worker_id": 4, "harvester_id": "here", "status": "finished"}
    assert not list(pilot.workdir.glob("jobs/*/*"))  # job folders are gone
    packed = panda.stored["user.me.outputs.tar.gz"]
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        env = archive.extractfile("env").read().decode()
        assert sorted(archive.getnames()) == ["env", "model"]
    assert f"PANDAID={first}\n" in env and "PanDA_TaskID=5\n" in env and "PANDA_ATTEMPTNR=1\n" in env
    assert "TOKEN" not in env and "geheim" not in env
    assert json.loads(report["job_output_report"])["user.me.outputs.tar.gz"]["fsize"] == len(packed)


def test_a_job_runs_in_the_environment_of_its_search(panda: FakePanda, pilot: PilotProcess, tmp_path: Path) -> None:
    """Where that is kept here; else in the pilot's own, as it is. Of a batch job only the pilot knows."""
    run = """[ "$PATH" = "$WANTED" ] && [ -z "$SLURM_JOB_ID$SHELL_TOKEN" ] && """ + GOOD
    own = f"/nowhere{os.pathsep}{os.environ['PATH']}"
    pilot.start(variables={"PATH": own, "WANTED": own})
    assert verdict(panda.final(panda.add_job(run)))["value"] == 0.5
    pilot.end()
    theirs = {"PATH": "/usr/bin:/bin:/their/bin", "WANTED": "/usr/bin:/bin:/their/bin", "SLURM_JOB_ID": "5"}
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "1a2b3c4d.json").write_text(json.dumps({**theirs, "SHELL_TOKEN": "x"}))
    pilot.start("--environments", str(tmp_path / "environments"), variables={"WANTED": "not this one"})
    assert verdict(panda.final(panda.add_job(run)))["value"] == 0.5


def test_no_other_account_looks_into_its_work_folder(
    panda: FakePanda, pilot: PilotProcess, until: Any, tmp_path: Path
) -> None:
    """Also where the folder was there before, open, with what an earlier version had made in it."""
    (pilot.workdir / "jobs").mkdir(parents=True)
    for folder in (pilot.workdir, pilot.workdir / "jobs"):
        folder.chmod(0o755)
    panda.add_job("touch here; sleep 60", outputs=["here"])
    pilot.start()
    until(lambda: list(pilot.workdir.glob("jobs/*/*/here")))
    inside = [path for path in pilot.workdir.iterdir() if path.is_dir()]
    assert {path.name for path in inside} >= {"cache", "jobs", "unsent", "checkpoints"}
    assert {path.name: path.stat().st_mode & 0o077 for path in inside} == {path.name: 0 for path in inside}
    pilot.workdir = tmp_path / "other"
    pilot.start()
    until(pilot.workdir.is_dir)
    assert pilot.workdir.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another account")
@pytest.mark.parametrize("whose", ["", "jobs"])
def test_a_stranger_s_work_folder_is_not_used(pilot: PilotProcess, whose: str) -> None:
    """On a login node somebody may have made it first."""
    (pilot.workdir / whose).mkdir(parents=True)
    os.chown(pilot.workdir / whose, 12345, 12345)
    assert pilot.start().wait(30) == 2
    assert "belongs to account 12345" in pilot.said() and "work" in pilot.said()
    assert not list(pilot.workdir.glob("jobs/*"))


def test_a_long_job_has_heartbeats_with_its_progress(panda: FakePanda, pilot: PilotProcess, until: Any) -> None:
    steps = """for i in 1 2 3 4 5 6; do echo '{"step": '$i', "value": 0.25}' >> progress.jsonl; sleep 0.3; done; """
    job = panda.add_job(steps + GOOD)
    quick = panda.add_job(GOOD)
    pilot.start()
    panda.final(job)
    metrics = [report.get("job_metrics") for report in panda.of(job, "running")]
    assert len(metrics) >= 3 and metrics[-1].startswith("hpoStep=") and len(set(metrics)) >= 2
    past = ",".join(f"{step}:0.25" for step in range(1, 6))
    assert panda.final(job)["job_metrics"] == f"hpoStep=6 hpoValue=0.25 hpoPast={past}"
    assert len(panda.of(quick)) == 1  # one report is enough for a job that is over at once


def test_tobekilled_is_obeyed(panda: FakePanda, pilot: PilotProcess, alive: Any, until: Any) -> None:
    job = panda.add_job("sleep 300 & sleep 300")
    pilot.start()
    until(lambda: panda.of(job, "running"))
    panda.commands[job] = "tobekilled"
    report = panda.final(job)
    assert report["job_status"] == "failed" and report["pilot_error_code"] == 1144
    until(lambda: not alive(pilot.workdir))


@pytest.mark.parametrize("command", ["badattemptnr", "alreadydone"])
def test_an_attempt_that_nobody_wants_is_ended_and_forgotten(
    panda: FakePanda, pilot: PilotProcess, alive: Any, until: Any, command: str
) -> None:
    job = panda.add_job("sleep 300")
    pilot.start()
    until(lambda: panda.of(job, "running"))
    panda.commands[job] = command
    until(lambda: not alive(pilot.workdir))
    after = panda.add_job(GOOD)
    assert panda.final(after)["job_status"] == "finished"
    assert not panda.of(job, "failed") and not panda.of(job, "finished")


def test_the_server_may_be_away(panda: FakePanda, pilot: PilotProcess, until: Any) -> None:
    short = panda.add_job("sleep 1; " + GOOD)
    long = panda.add_job("sleep 4; " + GOOD)
    pilot.start()
    until(lambda: panda.of(long, "running") and panda.of(short, "running"))
    panda.down()
    until(lambda: list(pilot.workdir.glob("unsent/*/*.json")))  # kept on disk, should the pilot die as well
    assert pilot.processes[0].poll() is None
    time.sleep(0.5)
    panda.up()
    assert verdict(panda.final(short))["value"] == 0.5
    assert verdict(panda.final(long))["value"] == 0.5
    assert panda.final(panda.add_job(GOOD))["job_status"] == "finished"
    until(lambda: not list(pilot.workdir.glob("unsent/*/*.json")))
    assert len(panda.of(short, "finished")) == 1
    said = pilot.said()
    assert said.count("the server is away") == 1 and said.count("the server is back") == 1
    assert "pilots-own-token" not in said


def test_drain_lets_running_jobs_end(panda: FakePanda, pilot: PilotProcess, until: Any) -> None:
    job = panda.add_job("sleep 1.5; " + GOOD)
    process = pilot.start("--drain-seconds", "20", slots=1)
    until(lambda: panda.of(job, "running"))
    waiting = panda.add_job(GOOD)
    process.terminate()
    assert process.wait(15) == 0
    assert panda.final(job)["job_status"] == "finished"
    assert not panda.of(waiting) and [j["PandaID"] for j in panda.waiting] == [waiting]


@pytest.mark.parametrize("how", ["drain is over", "second signal"])
def test_a_drained_job_is_given_back(panda: FakePanda, pilot: PilotProcess, alive: Any, until: Any, how: str) -> None:
    job = panda.add_job("sleep 300 & wait", checkpoint=["ckpt"], files={"x": "y"})
    process = pilot.start("--drain-seconds", "0.2" if how == "drain is over" else "100")
    until(lambda: panda.of(job, "running"))
    process.terminate()
    if how == "second signal":
        until(lambda: "no more jobs" in pilot.said())
        process.terminate()
    assert process.wait(15) == 0
    report = panda.final(job)
    assert report["job_status"] == "failed" and report["pilot_error_code"] == 1201
    assert panda.workers[-1]["status"] == "finished"
    assert not alive(pilot.workdir)


def test_a_job_that_comes_when_the_pilot_has_ended_goes_back(tmp_path: Path) -> None:
    from hpo_pilot.pilot.client import JobServer
    from hpo_pilot.pilot.pilot import Pilot
    from hpo_pilot.pilot.settings import PilotSettings

    asked, ended = threading.Event(), threading.Event()
    told: list[bool] = []

    class LateServer(JobServer):
        def acquire(self, *_: Any) -> list[dict[str, Any]]:
            asked.set()
            ended.wait(20)
            return [{"PandaID": 1}]

        def worker_finished(self) -> None:
            told.append(ended.is_set())

    (tmp_path / "token").write_text("x")
    settings = PilotSettings("http://127.0.0.1:9", "LOCAL", 1, tmp_path / "token", tmp_path / "work")
    pilot = Pilot(settings, LateServer(settings))
    running = threading.Thread(target=pilot.run)
    running.start()
    assert asked.wait(20)
    pilot.stop()
    running.join(20)
    assert told == [False]
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "acquire":
            thread.join(20)
    assert told == [False, True], "the server must hear at once that nobody runs the job"


def test_the_starters_death_is_the_pilots_end(panda: FakePanda, pilot: PilotProcess, alive: Any, until: Any) -> None:
    reading, writing = os.pipe()
    job = panda.add_job("sleep 300")
    process = pilot.start("--lifeline-fd", str(reading), "--drain-seconds", "100", pass_fds=[reading])
    os.close(reading)
    until(lambda: panda.of(job, "running"))
    os.close(writing)
    assert process.wait(15) == 0
    assert panda.final(job)["pilot_error_code"] == 1201
    assert not alive(pilot.workdir)


def test_too_much_memory_is_the_payloads_own_fault(panda: FakePanda, pilot: PilotProcess) -> None:
    script = "x = bytearray(120 << 20)\nimport time\ntime.sleep(60)\n"
    job = panda.add_job(f"{sys.executable} eat.py", {"eat.py": script}, {"minRamCount": 60})
    pilot.start()
    report = panda.final(job)
    assert report["job_status"] == "finished"  # a verdict: a retry would only repeat it
    assert "MB of memory, more than the 60 MB that it asked for" in verdict(report)["message"]


def test_a_job_over_its_walltime_is_ended(panda: FakePanda, pilot: PilotProcess, until: Any, tmp_path: Path) -> None:
    from hpo_pilot.pilot.pilot import Pilot
    from hpo_pilot.pilot.settings import PilotSettings

    job = panda.add_job("sleep 60", job={"maxWalltime": 1})
    settings = PilotSettings(
        panda.url, "LOCAL", 1, pilot.token_file, tmp_path / "work", walltime_grace=0.5, grace=3.0, drain=0.1
    )
    inside = Pilot(settings)
    thread = threading.Thread(target=inside.run)
    thread.start()
    report = panda.final(job)
    assert report["job_status"] == "failed" and report["pilot_error_code"] == 1213
    assert f"user.me.{job}.log.tgz" in panda.stored
    inside.stop()
    thread.join(10)
    assert not thread.is_alive()
    until(lambda: "watchdog" not in {each.name for each in threading.enumerate()})


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"container_name": "/no/such/image.sif"}, 1325, "no container runtime here can run it"),
        ({"jobPars": "-a x"}, 1305, "the job parameters are invalid"),
        ({"jobPars": "-a gone.tar.gz -p ls"}, 1099, "404"),
        ({"jobPars": "-p no-such-program"}, 1305, "no-such-program: not found"),
        ({"jobPars": '-p "sh%20-c%20false"'}, 1305, "status 1"),
    ],
)
def test_jobs_that_cannot_run_fail_with_a_reason(
    panda: FakePanda, pilot: PilotProcess, change: dict[str, str], code: int, said: str
) -> None:
    job = panda.add_job(GOOD, job=change)
    pilot.start("--container-runtime", "auto")
    report = panda.final(job)
    assert report["job_status"] == "failed" and report["pilot_error_code"] == code
    assert said in report["pilot_error_diag"]


def test_a_refused_token_ends_the_pilot_with_a_clear_line(
    panda: FakePanda, pilot: PilotProcess, tmp_path: Path
) -> None:
    from hpo_pilot.errors import InputError
    from hpo_pilot.pilot.pilot import Pilot
    from hpo_pilot.pilot.settings import PilotSettings

    panda.tokens = {"another"}
    settings = PilotSettings(panda.url, "LOCAL", 1, pilot.token_file, tmp_path / "work", refused=0.5)
    with pytest.raises(InputError, match=r"401.*must hold a pilot's token") as caught:
        Pilot(settings).run()
    assert caught.value.exit_code == 2


def test_one_pilot_per_name(panda: FakePanda, pilot: PilotProcess, until: Any) -> None:
    first = pilot.start()
    until(lambda: panda.acquired)
    assert pilot.start().wait(10) == 3
    assert "give this one another --worker-id" in pilot.said()
    second = pilot.start("--worker-id", "2")
    until(lambda: len({asked["worker_id"] for asked in panda.acquired}) == 2)
    assert first.poll() is None and second.poll() is None


def test_wrong_options_end_with_2(panda: FakePanda, pilot: PilotProcess) -> None:
    assert pilot.start(slots=0).wait(10) == 2
    pilot.token_file.unlink()
    assert pilot.start().wait(10) == 2
    assert "--slots 0: at least one" in pilot.said() and "No such file" in pilot.said()


@pytest.mark.parametrize(
    ("outputs", "allowed", "stored", "code"),
    [
        ("{'out.txt': 'user.me.9.out.txt', '*.log': 'user.me.9.logs.tgz'}", "", 2, 0),
        ("{'out.txt': 'user.me.9.out.txt', 'gone': 'user.me.9.gone'}", "", 0, 1165),
        ("{'out.txt': 'user.me.9.out.txt', 'gone': 'user.me.9.gone'}", "user.me.9.gone", 1, 0),
    ],
)
def test_a_job_of_prun(
    panda: FakePanda, pilot: PilotProcess, outputs: str, allowed: str, stored: int, code: int
) -> None:
    """A shell command of its owner's, in a folder of the sandbox, with outputs under other names."""
    script = tarfile.TarInfo("sub/run.sh")
    panda.cache["jobO.1.tar.gz"] = archive_of((script, b'#!/bin/sh\necho "$1" > out.txt; touch a.log b.log\n'))
    line = quote('run.sh "$PANDAID" && [ -s out.txt ]')
    parameters = f'-j "" --sourceURL {panda.url} -r sub -a jobO.1.tar.gz -o "{outputs}" -p "{line}"'
    job = panda.add_job("true", job={"jobPars": parameters, "allowNoOutput": allowed})
    pilot.start()
    report = panda.final(job)
    assert report["job_status"] == ("failed" if code else "finished"), report
    assert report.get("pilot_error_code", 0) == code
    assert len([name for name in panda.stored if "log.tgz" not in name]) == stored
    if stored:
        assert panda.stored["user.me.9.out.txt"] == b"%d\n" % job
        assert json.loads(report["job_output_report"])["user.me.9.out.txt"]["fsize"] == 4


def test_cores_are_never_lent_twice(panda: FakePanda, pilot: PilotProcess, until: Any, tmp_path: Path) -> None:
    """A server that knows nothing of cores hands out what it has; the pilot makes the jobs wait."""
    command = f"echo + >> {tmp_path}/log; sleep 0.3; echo - >> {tmp_path}/log; {GOOD}"
    jobs = [panda.add_job(command, job={"coreCount": cores}) for cores in (2, 2, 1, 1, 64)]
    pilot.start("--cores", "2", slots=5)
    for job in jobs:
        assert panda.final(job)["job_status"] == "finished"
    signs = (tmp_path / "log").read_text().split()
    assert signs[:4] == ["+", "-", "+", "-"] and sorted(signs[4:8]) == ["+", "+", "-", "-"] and signs[8:] == ["+", "-"]
    until(lambda: panda.headers[-1]["X-HPO-Pilot-Cores"] == "2")
    assert panda.acquired[-1]["n_jobs"] == 5


def test_a_folder_that_cannot_be_used_for_a_time(
    panda: FakePanda, pilot: PilotProcess, until: Callable[..., None]
) -> None:
    """Its disk or its shared storage is away: jobs stay with the server, and none loses an attempt."""
    panda.takes_back = True
    pilot.start()
    assert verdict(panda.final(panda.add_job(GOOD)))["value"] == 0.5
    (jobs,) = [path for path in pilot.workdir.glob("jobs/*") if path.is_dir()]
    jobs.rename(jobs.with_suffix(".away"))
    jobs.write_text("")
    job = panda.add_job(GOOD)  # a call that is under way may bring it all the same
    until(lambda: f"{jobs} cannot be written: Not a directory: no jobs are taken" in pilot.said())
    waiting = panda.add_job(GOOD)
    time.sleep(1)
    assert not panda.of(job, "failed") and not panda.of(waiting)
    jobs.unlink()
    jobs.with_suffix(".away").rename(jobs)
    assert verdict(panda.final(waiting))["value"] == 0.5
    assert "the disk has space again: jobs are taken" in pilot.said()
    assert [job, 1] in panda.given_back or panda.final(job)["job_status"] == "finished"
