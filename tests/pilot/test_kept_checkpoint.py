"""What a job's points keep, packed here and put in its place there."""

from __future__ import annotations

import base64
import fcntl
import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from hpo_pilot.pilot.checkpoints import CheckpointTooLarge, FilesChanging, KeptCheckpoint, kept_checkpoint
from hpo_pilot.pilot.job import Job, parse_job
from hpo_pilot.transformation.sandbox import UnsafeArchive


def job(jobs: Any, number: int = 1, *, uid: str = "1a2b3c4d", levels: Any = None, **more: Any) -> tuple[Job, str]:
    """A job, and its `--task`."""
    table = {"search": "s", "uid": uid, "generation": 1, "folds": 1, "jobs": jobs, "points": {}}
    table |= {"levels": levels} if levels else {}
    task = base64.urlsafe_b64encode(zlib.compress(json.dumps(table).encode())).decode()
    line = quote(f"python3 -I -S hpo_pilot_runner.py --task {task} --number ") + str(number)
    return parse_job({"PandaID": 7, "attemptNr": 1, "taskID": 5, "jobPars": f'-p "{line}"', **more}), task


def kept(root: Path) -> KeptCheckpoint:
    found = kept_checkpoint(job([[3, 1, 99]])[0], root)
    assert found is not None
    return found


def put(root: Path, name: str, text: str, at: float = 1e9) -> None:
    path, new = root / "1a2b3c4d" / "t3f1" / name, root / "new"
    path.parent.mkdir(parents=True, exist_ok=True)
    new.write_text(text)
    os.utime(new, (at, at))
    new.replace(path)  # in one step: a thread may look


def read(root: Path) -> dict[str, str]:
    folder = root / "1a2b3c4d"
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def archive_with(folder: Path, *names: str) -> Path:
    archive = folder / "made.tar.gz"
    with gzip.open(archive, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.mtime = 9
            tar.addfile(info, io.BytesIO())
    return archive


def packed(checkpoint: KeptCheckpoint, folder: Path, limit: int = 1 << 20) -> Path:
    archive = folder / "packed.tar.gz"
    with archive.open("wb") as file:
        checkpoint.pack(file, limit)
    return archive


def test_the_folders_are_those_of_the_runner(tmp_path, monkeypatch):
    single = kept_checkpoint(job([[3, 1, 99], [4, 0, 98]], 2)[0], tmp_path)
    assert single == KeptCheckpoint(tmp_path / "1a2b3c4d", ("t4f0",), 5, "2")
    with monkeypatch.context() as patch:  # its table is unpacked once
        patch.setattr(zlib, "decompressobj", None)
        assert kept_checkpoint(job([[3, 1, 99], [4, 0, 98]], 2)[0], tmp_path) is single
    several, task = job([[[3, 0, 9], [4, 0, 8]]])
    digest = hashlib.sha256(f"{task}\0001\0005".encode()).hexdigest()[:16]
    found = kept_checkpoint(several, tmp_path)
    assert found is not None
    assert found.names == ("t3f0", "t4f0", f"series-{digest}")


def test_a_trial_with_a_level_has_a_folder_beside_those_of_its_chain(tmp_path):
    levels = {3: {"level": 1, "keep_checkpoint": True}, 8: {"level": 9, "chain": 3}, 9: {"level": 1, "chain": 0}}
    found = kept_checkpoint(job([[[3, 1, 9], [8, 0, 8], [9, 0, 7], [7, 0, 6]]], levels=levels)[0], tmp_path)
    assert found is not None
    assert found.names[:4] == ("t3f1", "t3f0.8", "t0f0.9", "t7f0")
    assert found.levels == (("t3f1", 3, 1, 3, True), ("t3f0.8", 8, 0, 3, False), ("t0f0.9", 9, 0, 0, False))


@pytest.mark.parametrize(
    "parsed",
    [
        job([[3, 1, 99]], 2)[0],
        job([["x", 1, 2]])[0],
        job([])[0],
        job([[1, 0, 1]], uid="../up")[0],
        job({})[0],
        job([[3, 1, 99]], levels={"3": 9})[0],
        job([[3, 1, 99]], levels={"3": {"chain": "../up"}})[0],
        parse_job({"PandaID": 7, "taskID": 5, "jobPars": '-p "echo"'}),
        parse_job({"PandaID": 7, "taskID": 5, "jobPars": '-p "hpo_pilot_runner.py --task AAAA --number 1"'}),
    ],
    ids=[
        *("no such number", "no numbers", "no jobs", "a uid that leads out", "no list"),
        *("no level", "a chain that leads out", "no runner", "no table"),
    ],
)
def test_what_is_no_job_of_ours_has_none(tmp_path, parsed):
    assert kept_checkpoint(parsed, tmp_path) is None


def test_it_comes_to_another_folder(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    put(here, ".kept/model/weights", "kept")
    put(here, ".new/model/weights", "half")
    put(here, ".old/model/weights", "old")
    put(here, "own", "the payload's")
    (here / "1a2b3c4d" / "t3f1" / "link").symlink_to("/etc/passwd")
    (here / "1a2b3c4d" / "t9f9").mkdir()
    (here / "1a2b3c4d" / "t9f9" / "x").write_text("another trial's")
    assert kept(there).place(packed(kept(here), tmp_path), 1 << 20)
    assert read(there) == {"t3f1/.kept/model/weights": "kept", "t3f1/own": "the payload's"}
    assert kept(there).signature() == kept(here).signature()
    assert [path.name for path in (there / "1a2b3c4d").iterdir()] == ["t3f1"], "nothing is left beside it"


def test_where_there_is_only_the_copy_before_that_is_it(tmp_path):
    put(tmp_path, ".old/weights", "old")
    assert [name for name, _, _ in kept(tmp_path).signature()] == ["t3f1/.old/weights"]


@pytest.mark.parametrize(("at", "wins"), [(1e9 - 60, True), (1e9, False), (1e9 + 60, False)])
def test_the_newer_one_stays(tmp_path, at, wins):
    here, there = tmp_path / "here", tmp_path / "there"
    put(here, ".kept/w", "fetched", 1e9)
    put(there, ".kept/w", "local", at)
    put(there, "own", "local", 1.0)
    assert kept(there).place(packed(kept(here), tmp_path), 1 << 20) is wins
    expected = {"t3f1/.kept/w": "fetched"} if wins else {"t3f1/.kept/w": "local", "t3f1/own": "local"}
    assert read(there) == expected


def test_what_an_attempt_is_still_saving_is_left_alone(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    put(here, ".kept/w", "fetched", 1e9)
    put(there, ".kept/w", "local", 1.0)
    lock = os.open(there / "1a2b3c4d" / "t3f1", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    archive = packed(kept(here), tmp_path)
    assert not kept(there).place(archive, 1 << 20)
    os.close(lock)
    assert kept(there).place(archive, 1 << 20)


def test_limits(tmp_path):
    put(tmp_path, ".kept/w", os.urandom(40_000).hex())
    with pytest.raises(CheckpointTooLarge):
        packed(kept(tmp_path), tmp_path, 40_000)
    archive = packed(kept(tmp_path), tmp_path, 80_000)
    assert archive.stat().st_size <= 80_000
    with pytest.raises(UnsafeArchive):
        kept(tmp_path / "there").place(archive, 70_000)
    assert list((tmp_path / "there" / "1a2b3c4d").iterdir()) == []


def test_what_is_written_meanwhile_is_not_sent(tmp_path):
    put(tmp_path, "w", "x")
    checkpoint = kept(tmp_path)

    class Writing(io.BytesIO):
        def write(self, data: Any) -> int:
            put(tmp_path, "w", "xy")
            return super().write(data)

    with pytest.raises(FilesChanging):
        checkpoint.pack(Writing(), 1 << 20)


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil-hpo-pilot", "t3f1/../../../evil"])
def test_a_wicked_archive_changes_nothing(tmp_path, name):
    archive = archive_with(tmp_path, "t3f1/w", name)
    root = tmp_path / "root"
    put(root, ".kept/w", "local", 1.0)
    with pytest.raises(UnsafeArchive):
        kept(root).place(archive, 1 << 20)
    assert read(root) == {"t3f1/.kept/w": "local"}
    assert not list(tmp_path.rglob("evil"))


def test_only_the_jobs_own_folders_are_taken(tmp_path):
    assert kept(tmp_path).place(archive_with(tmp_path, "t4f0/w", "t3f1/w", "w"), 1 << 20)
    assert read(tmp_path) == {"t3f1/w": ""}


def test_what_a_dead_pilot_was_unpacking_goes(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    put(here, "w", "x")
    (there / "1a2b3c4d" / ".fetched-00").mkdir(parents=True)
    os.utime(there / "1a2b3c4d" / ".fetched-00", (1.0, 1.0))
    kept(there).place(packed(kept(here), tmp_path), 1 << 20)
    assert [path.name for path in (there / "1a2b3c4d").iterdir()] == ["t3f1"]
