"""The copies of an allocation of one node, which is this machine: its launcher starts processes here."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.hpc.launcher import Placement
from hpo_pilot.hpc.launchers import Plain
from hpo_pilot.pilot.execution import InContainer
from hpo_pilot.pilot.job import GivenBack, JobFailure, PilotErrorCode, parse_job
from hpo_pilot.pilot.launch import NOTHING_STAGED, Staged, WithLauncher
from hpo_pilot.pilot.machine import AssignedResources
from hpo_pilot.pilot.report import StartingJob
from hpo_pilot.pilot.settings import Site
from hpo_pilot.pilot.staging import NodeCopies, Staging
from hpo_pilot.transformation.job import PayloadSettings
from tests.pilot.conftest import in_background
from tests.programs import program

MB = 1 << 20


class Counted(Plain):
    """Counts what it starts; `before` stands before each command."""

    name = "counted"

    def __init__(self) -> None:
        super().__init__()
        self.started: list[list[str]] = []
        self.before: list[str] = []

    def command(self, argv: Any, placement: Placement) -> list[str]:
        self.started.append(list(argv)[4:5])
        return [*self.before, *super().command(argv, placement)]


class Here:
    """An allocation."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder, self.launcher = folder, Counted()
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.site = Site(launcher=self.launcher, scratch=str(self.scratch))
        said = {"job": "7.pbs", "seconds": 1e4, "limit_mb": 100, **more}
        self.staging = Staging(self.site, folder / "shared", ["n1"], **said)
        self.draining = threading.Event()
        self.data = folder / "data.bin"
        self.data.write_bytes(b"x" * 2 * MB)

    def job(
        self, number: int, *inputs: Path, image: str = "", **document: Any
    ) -> tuple[WithLauncher, Path, StartingJob]:
        root = self.folder / f"job{number}"
        root.mkdir()
        for path in inputs:
            (root / path.name).symlink_to(path)
        (root / "hpo_pilot_inputs.json").write_text(json.dumps([path.name for path in inputs]))
        job = parse_job({"PandaID": number, "attemptNr": 1, "jobPars": "-a s.tar.gz -p x"})
        assignment = AssignedResources(("n1",), {}, 1, allocation=("n1",))
        launched = WithLauncher(self.site, job, assignment, PayloadSettings(**document), InContainer("auto", image))
        return launched, root, StartingJob(job, root, self.draining)

    def stage(self, number: int, *inputs: Path, large: tuple[Path, ...] = (), image: str = "") -> Staged:
        launched, root, starting = self.job(number, *inputs, image=image)
        for path in large:
            (root / path.name).hardlink_to(path)
        return self.staging.stage(launched, root, root, [root / path.name for path in large], starting)

    def copy_of(self, number: int, name: str = "data.bin") -> Path:
        return (self.folder / f"job{number}" / name).readlink()


@pytest.fixture
def here(tmp_path):
    return Here(tmp_path)


def test_many_jobs_share_a_copy(here):
    staged = [in_background(here.stage, number, here.data) for number in range(8)]
    folders = [one.result(600).folders for one in staged]
    assert here.launcher.started == [["copy"]]
    (path,) = {here.copy_of(number) for number in range(8)}
    assert path.is_relative_to(here.scratch) and path.read_bytes() == here.data.read_bytes()
    assert folders == [(path.parent,)] * 8
    here.staging.remove(["n1"])
    assert not list(here.scratch.iterdir()) and not (here.folder / "shared").exists()


def test_a_changed_file_is_another_one(here):
    here.stage(1, here.data)
    here.data.write_bytes(b"y" * 2 * MB)
    here.stage(2, here.data)
    assert here.copy_of(1) != here.copy_of(2) and here.copy_of(2).read_bytes()[:1] == b"y"


def test_a_folder_and_what_is_small_or_the_jobs_own(here):
    set_ = here.folder / "set"
    (set_ / "part").mkdir(parents=True)
    (set_ / "part" / "1").write_bytes(b"z" * 2 * MB)
    small = here.folder / "small.csv"
    small.write_text("1,2\n")
    launched, root, starting = here.job(1, set_, small)
    (root / "own.bin").write_bytes(b"o" * 2 * MB)
    (root / "hpo_pilot_inputs.json").write_text(json.dumps(["set", "small.csv", "own.bin"]))
    here.staging.stage(launched, root, root, [], starting)
    assert (here.copy_of(1, "set") / "part" / "1").read_bytes() == b"z" * 2 * MB
    assert here.copy_of(1, "small.csv") == small and not (root / "own.bin").is_symlink()


def test_large_files_of_a_sandbox(here):
    """A link to the node's copy; its own copy where the job writes it, or nothing is staged."""
    cached, model = here.folder / "weights.bin", here.folder / "model.npz"
    for path in (cached, model):
        path.write_bytes(b"w" * 2 * MB)
    launched, root, starting = here.job(1, outputs=["model.npz"])
    for path in (cached, model):
        (root / path.name).hardlink_to(path)
    here.staging.stage(launched, root, root, [root / cached.name, root / model.name], starting)
    assert here.copy_of(1, "weights.bin").is_relative_to(here.scratch)
    assert not (root / "model.npz").is_symlink() and not (root / "model.npz").samefile(model)
    here.launcher.before = ["false"]
    other = here.folder / "other.bin"
    other.write_bytes(b"o" * 2 * MB)
    here.stage(2, large=(other,))
    mine = here.folder / "job2" / "other.bin"
    assert not mine.is_symlink() and not mine.samefile(other) and mine.read_bytes() == other.read_bytes()


def test_a_job_that_agents_start_gets_its_own_copies_without_a_job_step(here):
    launched, root, starting = here.job(1, here.data)
    launched = replace(launched, assignment=replace(launched.assignment, spread=("starter",)))
    (root / "weights.bin").hardlink_to(here.data)
    here.staging.stage(launched, root, root, [root / "weights.bin"], starting)
    assert here.copy_of(1) == here.data and not (root / "weights.bin").samefile(here.data)
    assert not here.launcher.started


def test_an_image_of_one_file(here, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{program(tmp_path / 'tools' / 'apptainer').parent}:/usr/bin:/bin")
    image = tmp_path / "image.sif"
    image.write_bytes(b"i" * 2 * MB)
    staged = here.stage(1, image=str(image))
    assert staged.image_copy.endswith("/image.sif") and Path(staged.image_copy).read_bytes() == image.read_bytes()
    words = ["apptainer", "exec", "--bind", "/x:/x", str(image), f"{image}/usr", f"{image}:O", f"{image}2", "env"]
    copy = staged.image_copy
    assert staged.words(words) == [*words[:4], copy, f"{copy}/usr", f"{copy}:O", f"{image}2", "env"]


def test_a_job_with_nothing_to_stage(here):
    assert here.stage(1) is NOTHING_STAGED and here.stage(2).seconds is None
    assert NOTHING_STAGED.words(["a", ""]) == ["a", ""] and not here.launcher.started
    here.staging.remove(["n1"])
    assert not here.launcher.started


@pytest.mark.parametrize(
    "before", [["false"], ["/nowhere/launcher"], ["sh", "-c", "echo 'srun: error: n1 is down' >&2"]]
)
def test_a_launcher_that_fails(here, caplog, before):
    """Tried again once, in case; what is shared is used."""
    here.launcher.before = before
    for number in range(4):
        here.stage(number, here.data)
        assert here.copy_of(number) == here.data
    assert here.launcher.started == [["copy"]] * 2
    assert caplog.text.count("is not staged, and read where it is: ") == 1


def test_more_than_it_may_have(here, tmp_path, caplog):
    (tmp_path / "other").mkdir()
    small = Here(tmp_path / "other", limit_mb=3)
    first, second = small.data, small.folder / "more.bin"
    second.write_bytes(b"m" * 2 * MB)
    for number in range(3):
        small.stage(number, first)
        small.stage(10 + number, second)
        assert small.copy_of(number).is_relative_to(small.scratch) and small.copy_of(10 + number, "more.bin") == second
    assert len(small.launcher.started) == 2, "a disk that is full is not tried again"
    assert caplog.text.count("with it, 4 MB would be staged on the node, more than --staging-mb") == 1
    folder = small.folder / "set"
    folder.mkdir()
    (folder / "1").write_bytes(b"1" * 4 * MB)
    small.stage(20, folder)
    assert small.copy_of(20, "set") == folder and "it has more than --staging-mb, 3 MB" in caplog.text


def test_all_nodes_of_a_job_must_have_it():
    book = NodeCopies()
    a, b = ("n1", "k"), ("n2", "k")
    book.take([a, b])
    book.settle([a, b], {a: "/x"})
    assert book.paths(["n1"], "k") == {"/x"} and book.paths(["n1", "n2"], "k") == set()
    book.take([b])
    book.settle([b], {b: "/y"})
    assert book.paths(["n1", "n2"], "k") == {"/x", "/y"}, "a scratch whose path differs"


@pytest.mark.parametrize("killed", [False, True])
def test_a_job_that_is_wanted_no_more(here, killed, until):
    here.launcher.before = ["sh", "-c", "sleep 60"]
    launched, root, starting = here.job(1, here.data)
    staged = in_background(here.staging.stage, launched, root, root, [], starting)
    until(lambda: here.launcher.started)
    if killed:
        starting.stop(JobFailure("killed", PilotErrorCode.PANDA_KILL))
    else:
        here.draining.set()
    assert type(staged.exception(600)) is (JobFailure if killed else GivenBack)
