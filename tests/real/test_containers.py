"""The container runtimes that can be installed here, on a real image root made from this machine's own Python."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hpo_pilot.testing.runtimes import (
    RuntimeBench,
    hides_the_machine,
    mounts_more_folders,
    passes_the_status_on,
    puts_the_machines_mpi_first,
    reports_a_missing_program,
    runs_the_command,
)
from hpo_pilot.transformation.container import RUNTIMES, ContainerStart, Inside
from tests import outliving
from tests.image_root import make_image_root
from tests.pilot.conftest import FakePanda, panda
from tests.real.processes import missing, until
from tests.transformation.test_transformation import Job

__all__ = ["panda"]

REAL = ("charliecloud", "podman")

#: What podman needs to run as root in a container of its own, without systemd.
CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""

#: Waits for the end of its lifeline, and says when it came.
WAIT = """
import os, select
poll = select.poll()
poll.register(int(os.environ["HPO_PILOT_LIFELINE_FD"]), select.POLLIN)
open("started", "w").close()
open("ended" if poll.poll(60000) else "late", "w").close()
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image_root(tmp_path_factory.mktemp("image"))


@pytest.fixture
def ship(image: Path, tmp_path: Path) -> Callable[[str], RuntimeBench]:
    def make(name: str) -> RuntimeBench:
        runtime = RUNTIMES[name]
        if not runtime.can_run(str(image)):
            missing(f"{', '.join(runtime.programs)}: `make test-real` installs it, if root")
        folder = tmp_path / "job"
        folder.mkdir()
        base = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LD_LIBRARY_PATH": "/old"}
        if name == "podman" and os.geteuid() == 0:
            (tmp_path / "containers.conf").write_text(CONTAINERS_CONF)
            base["CONTAINERS_CONF"] = str(tmp_path / "containers.conf")
        return RuntimeBench(runtime, str(image), folder, base)

    return make


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize(
    "check",
    [runs_the_command, passes_the_status_on, reports_a_missing_program, puts_the_machines_mpi_first, hides_the_machine],
)
def test_the_contract(ship: Callable[[str], RuntimeBench], name: str, check: Callable[[RuntimeBench], None]) -> None:
    check(ship(name))


@pytest.mark.parametrize("name", REAL)
def test_inputs_are_seen_and_protected(ship: Callable[[str], RuntimeBench], name: str) -> None:
    mounts_more_folders(ship(name), protects=name != "charliecloud")


def test_what_the_recipe_of_an_image_set_is_there(ship: Callable[[str], RuntimeBench], image: Path) -> None:
    """Of charliecloud: podman reads it from images of registries itself."""
    here = ship("charliecloud")
    (image / "ch").mkdir()
    (image / "ch" / "environment").write_text("PATH=/opt/its own/bin:/usr/bin:/bin\nSAID='a $b'\n\nEMPTY=\n")
    try:
        done = here.run(["/bin/sh", "-c", 'echo "$PATH|$SAID|${EMPTY-unset}|$TRIAL"'], TRIAL="7")
    finally:
        shutil.rmtree(image / "ch")
    assert (done.stdout, done.stderr) == ("/opt/its own/bin:/usr/bin:/bin|a $b||7\n", "")


@pytest.mark.parametrize("name", REAL)
def test_a_folder_that_the_image_lacks(ship: Callable[[str], RuntimeBench], name: str, image: Path) -> None:
    """Jobs are not always under /tmp."""
    here = replace(ship(name), folder=Path("/var/tmp") / f"hpo-pilot-test-{os.getpid()}-{name}")
    here.folder.mkdir()
    try:
        runs_the_command(here)
    finally:
        shutil.rmtree(here.folder)


@pytest.mark.parametrize("name", REAL)
def test_the_image_stays_as_it_is(ship: Callable[[str], RuntimeBench], name: str, image: Path) -> None:
    ship(name).run(["/bin/sh", "-c", "echo x > /etc/written; echo x > /usr/written"])
    assert not (image / "etc" / "written").exists()
    assert not (image / "usr" / "written").exists()


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("killed", [False, True])
def test_it_ends_with_whoever_started_it(ship: Callable[[str], RuntimeBench], name: str, killed: bool) -> None:
    """The lifeline closes; also where the runtime itself was killed before: podman's containers outlive it."""
    here = ship(name)
    lifeline, kept = os.pipe()
    env = {**here.base, "HPO_PILOT_LIFELINE_FD": str(lifeline)}
    inside = Inside(gpu_kind="none")
    argv = here.runtime.wrap(
        ContainerStart(["python3", "-c", WAIT], here.image, [here.folder], env, here.folder, inside)
    )
    process = subprocess.Popen(argv, cwd=here.folder, env=env, pass_fds=[lifeline], start_new_session=True)
    os.close(lifeline)
    until((here.folder / "started").exists)
    if killed:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=600)
    os.close(kept)
    if killed and name != "podman":  # they are the payload, and died with it
        return
    until((here.folder / "ended").exists)
    process.wait(timeout=600)


@pytest.mark.parametrize("name", REAL)
def test_a_trial_of_a_search(ship: Callable[[str], RuntimeBench], name: str, panda: FakePanda, tmp_path: Path) -> None:
    """The whole transformation, as a Pilot 3 starts it, with the payload in the image."""
    here = ship(name)
    panda.add_job("""test -f /etc/image && echo '{"status": 0, "loss": 0.5}' > output.json""", container=here.image)
    job = Job(tmp_path / "job")
    job.env |= {**here.base, "PATH": job.env["PATH"], "HPO_PILOT_CONTAINER_RUNTIME": name}
    done = job.run(panda.waiting[0]["jobPars"])
    assert done.returncode == 0, done.stderr
    verdict = job.report["user_job_metadata"]["hpo_pilot"]
    assert verdict["value"] == 0.5, verdict


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("kind", ["daemon", "stubborn"])
@pytest.mark.parametrize("what", ["runtime", "runner", "transformation", "all at once"])
def test_nothing_outlives_what_is_killed(
    ship: Callable[[str], RuntimeBench], name: str, kind: str, what: str, panda: FakePanda, tmp_path: Path
) -> None:
    """Podman's containers are no children of whoever started them; and the payload's child leaves its session."""
    here, lives = ship(name), tmp_path / "lives"
    job = Job(tmp_path / "job")
    job.env |= {**here.base, "PATH": job.env["PATH"], "HPO_PILOT_CONTAINER_RUNTIME": name}
    job.env |= {"HPO_PILOT_CHECKPOINT_ROOT": str(lives), "TEST_JOB": str(lives)}  # the former is seen inside
    command = outliving.command(lives, kind, "python3")
    panda.add_job(command, {outliving.NAME: outliving.SCRIPT}, container=here.image)
    process = job.start(panda.waiting[0]["jobPars"])
    try:
        until(lambda: outliving.runs(lives))
        ours = psutil.Process(process.pid)
        runtime = next(child for child in ours.children() if "HPO_PILOT_LIFELINE_FD" in _environment(child))
        inside = [each for each in psutil.process_iter() if _environment(each).get("TEST_JOB") == str(lives)]
        runners = [each for each in inside if "hpo_pilot_runner.py" in each.cmdline()]
        assert runners
        killed = {"runtime": [runtime], "runner": runners, "transformation": [ours]}
        outliving.kill_at_once(killed.get(what) or list({*runners, runtime, ours}))
        if what in ("runtime", "runner"):
            process.communicate(timeout=600)
            assert process.returncode != 0
            assert not outliving.left(lives), "its status is told when nothing runs any more"
        until(lambda: not outliving.left(lives))
    finally:
        (lives / "over").touch()
        if process.poll() is None:
            process.kill()
        process.communicate()


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}  # it ended meanwhile
