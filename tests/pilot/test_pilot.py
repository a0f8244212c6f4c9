"""The pilot as a process, against a server that does what each test wants."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest

from hpo_pilot.errors import GiveUpError, InputError, TryAgainError
from hpo_pilot.pilot.checkpoints import LIFE
from hpo_pilot.pilot.client import JobServer, PilotTokenRefused, ServerAway
from hpo_pilot.pilot.pilot import Pilot
from hpo_pilot.pilot.settings import PilotWorkDir, pilot_key
from tests.pilot.conftest import GOOD, archive_of, in_background, verdict
from tests.programs import program


def test_a_job_from_queue_to_report(panda, pilot, until):
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
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        env = archive.extractfile("env").read().decode()
        assert sorted(archive.getnames()) == ["env", "model"]
    assert f"PANDAID={first}\n" in env and "PanDA_TaskID=5\n" in env and "PANDA_ATTEMPTNR=1\n" in env
    assert "TOKEN" not in env and "geheim" not in env
    assert json.loads(report["job_output_report"])["user.me.outputs.tar.gz"]["fsize"] == len(packed)


def test_a_job_runs_in_the_environment_of_its_search(panda, pilot, tmp_path):
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


JANE, EVE = (hashlib.sha256(user.encode()).hexdigest()[:12] for user in ("jane", "eve"))


@pytest.mark.parametrize(
    ("user", "task", "before", "folder", "found"),
    [
        ("jane", 5, f"{JANE}.0", f"{JANE}.0", ["former"]),
        ("eve", 5, f"{JANE}.0", f"{EVE}.0", []),
        ("jane", 7 * LIFE + 5, f"{JANE}.0", f"{JANE}.7", []),
    ],
)
def test_no_checkpoint_of_another_user_or_life_is_taken(panda, pilot, user, task, before, folder, found):
    """Another user's task may name the same search; a restored server gives numbers of trials again."""
    former = pilot.workdir / "checkpoints" / before / "1a2b3c4d" / "t101f0" / "former"
    former.parent.mkdir(parents=True)
    former.write_text("of another point")
    run = "cd $HPO_PILOT_CHECKPOINT_DIR; ls > $OLDPWD/seen; pwd >> $OLDPWD/seen; cd $OLDPWD; " + GOOD
    pilot.start(isolated=True)
    job = panda.add_job(run, job={"taskID": task, "prodUserID": user}, outputs=["seen"])
    assert panda.final(job)["job_status"] == "finished"
    with tarfile.open(fileobj=io.BytesIO(panda.stored["user.me.outputs.tar.gz"])) as archive:
        seen = archive.extractfile("seen").read().decode().split()
    assert seen == [*found, str(pilot.workdir / "checkpoints" / folder / "1a2b3c4d" / "t101f0")]
    assert former.exists() == (not found)


def test_no_other_account_looks_into_its_work_folder(make_settings, tmp_path):
    """Also where the folder was there before, open, with what an earlier version had made in it."""
    for folder in (tmp_path / "work", tmp_path / "work" / "jobs"):
        folder.mkdir(mode=0o755)
    work = PilotWorkDir(make_settings())
    inside = [path for path in (tmp_path / "work").iterdir() if path.is_dir()]
    assert {path.name for path in inside} >= {"cache", "jobs", "unsent", "checkpoints"}
    assert not any(path.stat().st_mode & 0o077 for path in [*inside, work.new_job_folder(1, 1)])
    PilotWorkDir(make_settings(workdir=tmp_path / "other"))
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another account")
@pytest.mark.parametrize("whose", ["", "jobs"])
def test_a_stranger_s_work_folder_is_not_used(make_settings, tmp_path, whose):
    """On a login node somebody may have made it first."""
    (tmp_path / "work" / whose).mkdir(parents=True)
    os.chown(tmp_path / "work" / whose, 12345, 12345)
    with pytest.raises(InputError, match=r"work.* belongs to account 12345"):
        PilotWorkDir(make_settings())
    assert not list(tmp_path.glob("work/jobs/*"))


def test_one_pilot_per_name(pilot, make_settings):
    first = PilotWorkDir(make_settings())
    assert pilot.start().wait(600) == TryAgainError.exit_code
    assert "give this one another --worker-id" in pilot.said()
    assert PilotWorkDir(make_settings(worker_id=2)).key != first.key


@pytest.mark.parametrize("left", [b"", b"a key that was cu", b"\xff" * 43])
def test_a_damaged_key_is_replaced(make_settings, tmp_path, left):
    PilotWorkDir(make_settings())
    (file,) = (tmp_path / "work" / "jobs").glob("*.key")
    file.write_bytes(left)
    key = PilotWorkDir(make_settings(worker_id=2)).key and pilot_key(tmp_path / "work", file.stem)
    assert len(key) > 40 and pilot_key(tmp_path / "work", file.stem) == key
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_job_with_a_damaged_sandbox_is_not_at_fault(panda, pilot, until):
    """Neither if its program cannot be read, nor if its description cannot."""
    panda.takes_back = True
    pilot.start()
    train = "python3 -I -S train.py"
    files = {"train.py": "import json\njson.dump({'status': 0, 'loss': 0.5}, open('output.json', 'w'))\n"}
    for number, name in enumerate(("train.py", "hpo_pilot_payload.json"), 1):
        for _ in range(2):  # the first fetches it, the second has checked it
            assert verdict(panda.final(panda.add_job(train, files)))["value"] == 0.5
        path = next((pilot.workdir / "cache").rglob(name))
        os.truncate(path, path.stat().st_size // 2)
        damaged = panda.add_job(train, files)
        until(lambda number=number: len(panda.given_back) == number)
        assert panda.given_back[-1] == [damaged, 1] and not panda.of(damaged, "finished")
    assert verdict(panda.final(panda.add_job(train, files)))["value"] == 0.5


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_after_a_power_cut_the_next_pilot_runs_everything(panda, pilot, until, part):
    """All files of the work folder are empty or cut off when it starts."""
    command = "sleep $(cat seconds); " + GOOD
    process = pilot.start("--harvester-id", "one", slots=1)
    held = panda.add_job(command, {"seconds": "60"})
    until(lambda: panda.of(held, "running"))
    process.kill()
    process.wait()
    found = [path for path in pilot.workdir.rglob("*") if path.is_file()]
    assert {"one-1.key", "hpo_pilot_payload.json", "digests.json"} <= {path.name for path in found}
    for path in found:
        os.truncate(path, int(path.stat().st_size * part))
    pilot.start("--harvester-id", "one", slots=1)
    again = panda.add_job(command, {"seconds": "60"})
    until(lambda: panda.of(again, "running"))
    panda.commands[again] = "tobekilled"
    assert verdict(panda.final(panda.add_job(command, {"seconds": "0"})))["value"] == 0.5


def test_the_server_s_commands_end_an_attempt(panda, pilot, alive, until):
    commands = ("tobekilled", "badattemptnr", "alreadydone")
    jobs = [panda.add_job("sleep 300 & sleep 300") for _ in commands]
    pilot.start(slots=3)
    until(lambda: all(panda.of(job, "running") for job in jobs))
    panda.commands.update(zip(jobs, commands, strict=True))
    until(lambda: not alive(pilot.workdir))
    assert panda.final(jobs[0])["pilot_error_code"] == 1144
    assert panda.final(panda.add_job(GOOD))["job_status"] == "finished"
    forgotten = [panda.of(job, status) for job in jobs[1:] for status in ("failed", "finished")]
    assert not any(forgotten), "nobody wants to hear of these"


def test_the_server_may_be_away(panda, pilot, until):
    gates = [pilot.folder / name for name in ("short", "long")]
    short, long = (panda.add_job(f"until [ -e {gate} ]; do sleep 0.05; done; {GOOD}") for gate in gates)
    pilot.start()
    until(lambda: panda.of(long, "running") and panda.of(short, "running"))
    panda.down()
    gates[0].touch()
    until(lambda: list(pilot.workdir.glob("unsent/*/*.json")))  # kept on disk, should the pilot die as well
    until(lambda: "the server is away" in pilot.said())
    assert pilot.processes[0].poll() is None
    panda.up()
    gates[1].touch()
    assert verdict(panda.final(short))["value"] == 0.5
    assert verdict(panda.final(long))["value"] == 0.5
    assert panda.final(panda.add_job(GOOD))["job_status"] == "finished"
    until(lambda: not list(pilot.workdir.glob("unsent/*/*.json")))
    assert len(panda.of(short, "finished")) == 1
    said = pilot.said()
    assert said.count("the server is away") == 1 and said.count("the server is back") == 1
    assert "pilots-own-token" not in said


def test_the_next_pilot_sends_a_result_that_a_frozen_server_did_not_take(panda, pilot, until):
    panda.is_frozen = True
    job = panda.add_job(GOOD)
    pilot.start()
    until(lambda: panda.untaken)
    assert pilot.end() == 0
    assert panda.workers == [], "the server would give the job to another pilot"
    assert len(list(pilot.workdir.glob("unsent/*/*.json"))) == 1
    panda.is_frozen = False
    pilot.start()
    assert verdict(panda.final(job))["value"] == 0.5


def test_drain_lets_running_jobs_end(panda, pilot, until):
    gate = pilot.folder / "gate"
    job = panda.add_job(f"until [ -e {gate} ]; do sleep 0.05; done; {GOOD}")
    process = pilot.start("--drain-seconds", "300", slots=1)
    until(lambda: panda.of(job, "running"))
    waiting = panda.add_job(GOOD)
    process.terminate()
    until(lambda: "no more jobs" in pilot.said())
    gate.touch()
    assert process.wait(600) == 0
    assert panda.final(job)["job_status"] == "finished"
    assert not panda.of(waiting) and [j["PandaID"] for j in panda.waiting] == [waiting]


@pytest.mark.parametrize("how", ["drain is over", "second signal"])
def test_a_drained_job_is_given_back(panda, pilot, alive, until, how):
    job = panda.add_job("sleep 300 & wait", checkpoint=["ckpt"], files={"x": "y"})
    process = pilot.start("--drain-seconds", "0.2" if how == "drain is over" else "100")
    until(lambda: panda.of(job, "running"))
    process.terminate()
    if how == "second signal":
        until(lambda: "no more jobs" in pilot.said())
        process.terminate()
    assert process.wait(600) == 0
    report = panda.final(job)
    assert report["job_status"] == "failed" and report["pilot_error_code"] == 1201
    assert panda.workers[-1]["status"] == "finished"
    assert not alive(pilot.workdir)


def test_a_job_that_comes_when_the_pilot_has_ended_goes_back(make_settings):
    asked, ended = threading.Event(), threading.Event()
    told: list[bool] = []
    given: list[tuple[int, int]] = []

    class LateServer(JobServer):
        def acquire(self, *_: Any) -> list[dict[str, Any]]:
            asked.set()
            ended.wait(600)
            return [{"PandaID": 1, "attemptNr": 2}]

        def worker_finished(self) -> None:
            told.append(ended.is_set())

        def give_back(self, attempts: Sequence[tuple[int, int]]) -> list[int]:
            given.extend(attempts)
            return [1]

    settings = make_settings()
    pilot = Pilot(settings, LateServer(settings))
    running = in_background(pilot.run)
    assert asked.wait(600)
    pilot.stop()
    running.result(600)
    assert told == [False]
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "acquire":
            thread.join(600)
    assert (told, given) == ([False], [(1, 2)]), "the server must hear at once that nobody runs the job"


def test_an_error_in_a_thread_ends_the_pilot(make_settings, monkeypatch):
    """A pilot without heartbeats would lose every job."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    pilot = Pilot(make_settings(drain=0.1))
    pilot.handle_signals()
    monkeypatch.setattr(pilot._server, "update_all", lambda _: 1 / 0)
    pilot._parts.heartbeats._next = lambda _: []
    with pytest.raises(GiveUpError, match=r"ZeroDivisionError.* in heartbeats"):
        in_background(pilot.run).result(600)


def test_a_token_refused_now_and_then_ends_no_pilot(make_settings):
    answers = [PilotTokenRefused("401"), ServerAway("down"), PilotTokenRefused("401"), ServerAway("down")]
    asked = threading.Event()

    class Moody(JobServer):
        def acquire(self, *_: Any) -> list[dict[str, Any]]:
            if len(answers) == 1:
                asked.set()
            raise answers[0] if len(answers) == 1 else answers.pop(0)

    settings = make_settings(refused=0.2)
    pilot = Pilot(settings, Moody(settings))
    running = in_background(pilot.run)
    assert asked.wait(600)
    pilot.stop()
    assert running.result(600) == 0


def test_the_starters_death_is_the_pilots_end(panda, pilot, alive, until):
    reading, writing = os.pipe()
    job = panda.add_job("sleep 300")
    process = pilot.start("--lifeline-fd", str(reading), "--drain-seconds", "100", pass_fds=[reading])
    os.close(reading)
    until(lambda: panda.of(job, "running"))
    os.close(writing)
    assert process.wait(600) == 0
    assert panda.final(job)["pilot_error_code"] == 1201
    assert not alive(pilot.workdir)


def test_a_pilot_that_waits_begins_when_its_starter_lets_it(panda, pilot):
    job = panda.add_job("true")
    reading, writing = os.pipe()
    waits = pilot.start("--lifeline-fd", str(reading), "--wait", pass_fds=[reading])
    os.close(reading)
    os.close(writing)  # its starter has died before
    assert waits.wait(600) == 0
    assert not panda.of(job, "running")
    reading, writing = os.pipe()
    pilot.start("--lifeline-fd", str(reading), "--wait", pass_fds=[reading])
    os.write(writing, b"\n")
    assert panda.final(job)["job_status"] == "finished"
    os.close(reading)
    os.close(writing)


def test_too_much_memory_is_the_payloads_own_fault(panda, pilot):
    script = "x = bytearray(120 << 20)\nimport time\ntime.sleep(60)\n"
    job = panda.add_job(f"{sys.executable} eat.py", {"eat.py": script}, {"minRamCount": 60})
    pilot.start()
    report = panda.final(job)
    assert report["job_status"] == "finished"  # a verdict: a retry would only repeat it
    assert "MB of memory, more than the 60 MB that it asked for" in verdict(report)["message"]


def test_a_job_over_its_walltime_is_ended(panda, until, make_settings):
    job = panda.add_job("sleep 60", job={"maxWalltime": 1})
    inside = Pilot(make_settings(panda.url, walltime_grace=0.5, grace=3.0, drain=0.1))
    running = in_background(inside.run)
    report = panda.final(job)
    assert report["job_status"] == "failed" and report["pilot_error_code"] == 1213
    assert f"user.me.{job}.log.tgz" in panda.stored
    inside.stop()
    assert running.result(600) == 0
    until(lambda: "watchdog" not in {each.name for each in threading.enumerate()})


def test_jobs_that_cannot_run_fail_with_a_reason(panda, pilot):
    table = [
        ({"container_name": "image.sif"}, 1325, "no container runtime here can run it"),
        ({"jobPars": "-a x"}, 1305, "the job parameters are invalid"),
        ({"jobPars": "-a gone.tar.gz -p ls"}, 1099, "404"),
        ({"jobPars": "-p no-such-program"}, 1305, "no-such-program: not found"),
        ({"jobPars": '-p "sh%20-c%20false"'}, 1305, "status 1"),
    ]
    jobs = [panda.add_job(GOOD, job=change) for change, _, _ in table]
    pilot.start("--container-runtime", "auto", slots=5)
    for job, (change, code, said) in zip(jobs, table, strict=True):
        report = panda.final(job)
        assert (report["job_status"], report["pilot_error_code"]) == ("failed", code), change
        assert said in report["pilot_error_diag"], change


def test_an_image_that_cannot_be_used_is_a_verdict(panda, pilot, tmp_path):
    """PanDA does not repeat such a job; one without our runner has no verdict, and fails."""
    (tmp_path / "image.sif").touch()
    fatal = "FATAL:   the image's architecture (ppc64le) could not run on the host's (amd64)"
    program(tmp_path / "tools" / "apptainer", f"""echo "{fatal}" >&2; exit 255""")
    missing, foreign = (
        panda.add_job(GOOD, job={"container_name": "/no/such/image.sif", **more})
        for more in ({}, {"jobPars": "-p true"})
    )
    other = panda.add_job(GOOD, job={"container_name": str(tmp_path / "image.sif")})
    pilot.start(variables={"PATH": f"{tmp_path / 'tools'}{os.pathsep}{os.environ['PATH']}"})
    for job, reason in ((missing, "there is no image '/no/such/image.sif' on "), (other, fatal)):
        report = panda.final(job)
        assert report["job_status"] == "finished"
        found = verdict(report)
        assert (found["status"], found["value"]) == (1, None) and reason in found["message"]
    report = panda.final(foreign)
    assert (report["job_status"], report["pilot_error_code"]) == ("failed", 1325)
    assert "there is no image" in report["pilot_error_diag"]


def test_a_refused_token_ends_the_pilot_with_a_clear_line(panda, make_settings):
    panda.tokens = {"another"}
    with pytest.raises(InputError, match=r"401.*must hold a pilot's token"):
        Pilot(make_settings(panda.url, refused=0.5)).run()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"server": "panda.example.org"}, "--server 'panda.example.org': give a URL"),
        ({"ca": "nothing.pem"}, "--ca .*nothing.pem: there is no such file"),
        ({"slots": 0}, "--slots 0: at least one"),
        ({"cores": -1}, "--cores -1: at least one"),
        ({"heartbeat": 0.0}, "--heartbeat"),
        ({"checkpoint_every": 0.0}, "--checkpoint-every"),
        ({"checkpoint_mb": -1}, "--checkpoint-mb"),
        ({"metrics_port": 70000}, "--metrics-port 70000"),
        ({"staging_mb": 0}, "--staging-mb 0: a size in MB; --no-staging stages nothing"),
        (
            {"container_runtime": "docker"},
            "--container-runtime: there is no container runtime 'docker'; there is auto, none, apptainer",
        ),
        ({"allocation": True}, "--allocation: give --site FILE as well"),
    ],
)
def test_wrong_settings_are_named(make_settings, changes, why):
    with pytest.raises(InputError, match=why):
        make_settings(**changes)


def test_a_job_of_prun(panda, pilot):
    """A shell command of its owner's, in a folder of the sandbox, with outputs under other names."""
    script = tarfile.TarInfo("sub/run.sh")
    panda.cache["jobO.1.tar.gz"] = archive_of((script, b'#!/bin/sh\necho "$1" > out.txt; touch a.log b.log\n'))
    line = quote('run.sh "$PANDAID" && [ -s out.txt ]')
    outputs = "{'out.txt': 'user.me.9.out.txt', '*.log': 'user.me.9.logs.tgz'}"
    parameters = f'-j "" --sourceURL {panda.url} -r sub -a jobO.1.tar.gz -o "{outputs}" -p "{line}"'
    job = panda.add_job("true", job={"jobPars": parameters})
    pilot.start()
    report = panda.final(job)
    assert report["job_status"] == "finished", report
    assert set(panda.stored) == {"user.me.9.out.txt", "user.me.9.logs.tgz"}
    assert panda.stored["user.me.9.out.txt"] == b"%d\n" % job
    assert json.loads(report["job_output_report"])["user.me.9.out.txt"]["fsize"] == 4


def test_a_folder_that_cannot_be_used_for_a_time(panda, pilot, until):
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
