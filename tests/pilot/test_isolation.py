"""Jobs cannot reach the pilot's files and those of other searches."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.pilot.execution import Execution, InContainer
from hpo_pilot.pilot.isolation import Isolation
from hpo_pilot.pilot.job import JobFailure, parse_job
from hpo_pilot.pilot.settings import PilotWorkDir
from hpo_pilot.transformation import landlock
from hpo_pilot.transformation.job import PayloadSettings
from hpo_pilot.transformation.transformation import Prepared
from tests.pilot.conftest import GOOD

PROBE = """
import json, os, subprocess, sys, tempfile
from pathlib import Path

def attempt(do):
    try:
        do()
        return "done"
    except PermissionError:
        return "denied"

def probe():
    asked = json.loads(Path({asked!r}).read_text())
    own = Path(os.environ["HPO_PILOT_CHECKPOINT_ROOT"], "1a2b3c4d", "own")
    def temporary():
        with tempfile.NamedTemporaryFile("w+") as file:
            file.write("x")
    seen = {{path: attempt(lambda: open(path).close()) for path in asked["read"]}}
    seen |= {{"rm " + path: attempt(lambda: os.unlink(path)) for path in asked["remove"]}}
    seen["kill"] = attempt(lambda: os.kill(asked["pilot"], 0))
    seen["root"] = attempt(lambda: os.readlink("/proc/%d/root" % asked["pilot"]))
    seen["checkpoint"] = attempt(lambda: own.write_text("x"))
    seen["move"] = attempt(lambda: os.replace(own, "moved"))
    seen["temporary"] = attempt(temporary)
    seen["folder"] = tempfile.gettempdir()
    seen["program"] = attempt(lambda: subprocess.run(["/bin/sh", "-c", "exit 0"], check=True))
    Path({answer!r}).write_text(json.dumps(seen))

def objective(point):
    probe()
    return 1.0
"""


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Path]:
    """Files of a pilot and of another search's jobs, and some of everybody."""
    found = {
        "key": tmp_path / "work" / "jobs" / "other.key",
        "job": tmp_path / "work" / "jobs" / "worker" / "another" / "7.1" / "input.json",
        "checkpoint": tmp_path / "work" / "checkpoints" / "9e9e9e9e" / "t1f0" / "model.pt",
        "report": tmp_path / "work" / "unsent" / "worker" / "7.1.json",
        "given": tmp_path / "keys" / "user.pem",
        "data": tmp_path / "data" / "events.csv",
    }
    for path in found.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return found


def asked_of(tmp_path: Path, pilot: Any, place: dict[str, Path]) -> tuple[dict[str, Any], Path]:
    asked = tmp_path / "data" / "asked.json"
    read = [str(pilot.token_file), *map(str, place.values())]
    asked.write_text(json.dumps({"read": read, "remove": [str(place["report"])], "pilot": pilot.processes[-1].pid}))
    return {"asked": str(asked), "answer": str(tmp_path / "data" / "answer.json")}, tmp_path / "data" / "answer.json"


@pytest.mark.usefixtures("needs_landlock")
@pytest.mark.parametrize("kind", ["command", "kept interpreter"])
def test_what_a_payload_can_reach(panda, pilot, tmp_path, place, kind):
    pilot.start("--hide", str(place["given"].parent), slots=1, isolated=True)
    names, answer = asked_of(tmp_path, pilot, place)
    files = {"probe.py": PROBE.format(**names)}
    if kind == "command":
        job = panda.add_job(f"{sys.executable} -c 'import probe; probe.probe()' && {GOOD}", files)
    else:
        options = {"function": "probe:objective", "objectives": ["loss"], "python": sys.executable}
        job = panda.add_job(f"{sys.executable} hpo_pilot_function.py probe:objective", files, **options)
    report = panda.final(job)
    assert report["job_status"] == "finished", pilot.said()
    seen = json.loads(answer.read_text())
    temporary = seen.pop("folder")
    hidden = {str(pilot.token_file), f"rm {place['report']}", "root", *(str(place[name]) for name in place)}
    hidden = hidden - {str(place["data"])} | ({"kill"} if landlock.version() >= 6 else set())
    assert {name for name, answer in seen.items() if answer == "denied"} == hidden
    assert pilot.end() == 0
    assert not Path(temporary).exists() and not list((tmp_path / "work/jobs").glob("hpo*/*"))


@pytest.mark.usefixtures("needs_landlock")
@pytest.mark.parametrize("target", ["runner.log", "payload.log", "userJobMetadata.json", "outputs.tar.gz", "."])
def test_what_a_payload_links_to_is_not_sent(panda, pilot, place, target):
    """The pilot reads these files, and may read more than the payload."""
    secret = place["job"].parent / (target if target != "." else "payload.log")
    for name in ("runner.log", "payload.log", "userJobMetadata.json"):
        (secret.parent / name).write_text('{"secret": "geheim"}')
    link = f"ln -sf {secret} {target}"
    if target == ".":
        link = f'here=$PWD; mv "$here" ../gone; ln -s {secret.parent} "$here"'
    pilot.start(slots=1, isolated=True)
    report = panda.final(panda.add_job(f"{link}; {GOOD}; kill -9 $PPID"))
    assert pilot.end() == 0
    assert "geheim" not in json.dumps(panda.reports) + "".join(map(repr, panda.stored.values())), report
    assert (secret.parent / "payload.log").read_text() == '{"secret": "geheim"}'


@pytest.mark.parametrize("link", ["runner.log", "hpo_pilot_ca.pem", "hpo_pilot_stop.txt", "../7.1"])
def test_the_pilot_writes_through_no_link(make_settings, panda, tmp_path, link):
    """Other jobs of the search can put links into the folder of one that is being prepared."""
    (secret := tmp_path / "secret").mkdir()
    (folder := tmp_path / "jobs" / "7.1").mkdir(parents=True)
    for name in ("runner.log", "hpo_pilot_ca.pem", "hpo_pilot_stop.txt", "ca"):
        (secret / name).write_text("whole")
    panda.add_job("true")
    (job,) = map(parse_job, panda.waiting)
    settings, given = make_settings(ca=secret / "ca"), Prepared(str(folder), ["true"], "true", [])
    root = tmp_path / "jobs" / ".." / "jobs" / "7.1"  # as --workdir may be written
    execution = Execution(settings, job, PayloadSettings("true"), given, root, 0, {}, InContainer("auto", ""))
    if link == "../7.1":
        folder.rename(tmp_path / "gone")
        folder.symlink_to(secret)
        with pytest.raises((OSError, JobFailure)):
            execution.start()
    else:
        (folder / link).symlink_to(secret / link)
        execution.start()
        execution.stop_payload("too much")
        execution.wait()
        assert not (folder / link).is_symlink() and (folder / "hpo_pilot_stop.txt").read_text() == "too much"
    assert {path.read_text() for path in secret.iterdir()} == {"whole"}


@pytest.mark.usefixtures("needs_landlock")
def test_a_hidden_input_is_refused(make_settings, panda, place):
    settings = make_settings(panda.url)
    isolation = Isolation(settings, PilotWorkDir(settings))
    assert [isolation.hides(path) for path in (settings.token_file, place["job"], place["data"])] == [True, True, False]


@pytest.mark.usefixtures("needs_landlock")
def test_libraries_find_their_folders_in_a_closed_home(make_settings, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    isolation = Isolation(settings := make_settings(), workdir := PilotWorkDir(settings))
    assert (tmp_path / ".cache").is_dir() and (tmp_path / ".config").is_dir()
    if tmp_path.is_relative_to("/tmp"):
        assert [record.levelname for record in caplog.records if "/tmp" in record.message] == ["WARNING"]
    shutil.rmtree(workdir.jobs)
    isolation.close()


@pytest.mark.usefixtures("needs_landlock")
def test_searches_and_users_have_different_folders(make_settings, panda):
    isolation = Isolation(settings := make_settings(panda.url), PilotWorkDir(settings))
    panda.add_job("true")
    (job,) = panda.waiting
    names = {isolation.of(job | about).name for about in ({}, {"PandaID": 7}, {"prodUserID": "eve"}, {"jobPars": ""})}
    assert len(names) == 3 and "" not in names


@pytest.mark.parametrize("why", ["this kernel has no Landlock", "--no-isolation"])
def test_without_isolation_the_pilot_says_so_and_works(make_settings, monkeypatch, caplog, why):
    monkeypatch.setattr(landlock, "version", lambda: 0)
    settings = make_settings(isolation=why != "--no-isolation")
    assert Isolation(settings, PilotWorkDir(settings)).of({"PandaID": 1}).words == ()
    assert why in caplog.text


@pytest.mark.usefixtures("needs_landlock")
@pytest.mark.parametrize("account", [0, 1000])
def test_a_pilot_of_root_says_that_isolation_is_not_enough(make_settings, monkeypatch, caplog, account):
    monkeypatch.setattr("os.geteuid", lambda: account)
    is_whole = Path("/proc/self/uid_map").read_text().split()[-1] == "4294967295"
    settings = make_settings(isolation=True)
    Isolation(settings, PilotWorkDir(settings))
    assert ("setpriv" in caplog.text) == (account == 0 and is_whole)
