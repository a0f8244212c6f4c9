"""A backup restores what it was made of, or says why not."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import tarfile
from contextlib import closing

import pytest
from sqlalchemy import insert, select

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.jobs import task_name
from hpo_pilot.pilot.checkpoints import LIFE
from hpo_pilot.server import chains, database
from hpo_pilot.server.database import Database
from hpo_pilot.steering import backup as backups
from hpo_pilot.steering.invariants import check_all
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import EMBEDDED, Store
from hpo_pilot.store.lease import held_lease
from tests.steering.memory_panda import go

FILES = {
    "checkpoints/u/t1f0.1/c": b"half",
    "checkpoints/restored.7/u/t2f0/c": b"too",
    "panda-files/storage/o.tar.gz": b"out",
    "tokens/signing-key.pem": b"key",
    "logs/service.log": b"left out",
}
COMMON = {"queue": "", "label": "user", "priority": 1, "created": 1, "modified": 1, "state_changed": 1}


@pytest.fixture
def work(steer, store, panda, tmp_path):
    """A work folder with a search whose task is at the server, and another task that only the server has."""
    go(steer({"folds": 2}, trials=2, parallel=1), 2)
    store.bind_server(1, EMBEDDED)
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    task = {"user_name": "me", "vo": "v", "status": "running", "params": "{}", "n_jobs": 1, "change": 1}
    names = panda.tasks[1].name, task_name("me", "demo", store.search(1).uid, 2, 0)
    job = {"number": 1, "attempt_nr": 1, "max_attempt": 3, "status": "running", "core_count": 1, "ram_mb": 1}
    with closing(Database(tmp_path / "panda.db")) as opened, opened.writing() as tx:
        tx.connection.execute(insert(database.tasks), [COMMON | task | {"name": name} for name in names])
        jobs = [COMMON | job | {"task_id": number, "heartbeat": 4e9, "max_walltime": 1} for number in (1, 2)]
        tx.connection.execute(insert(database.jobs), jobs)
    return WorkDir(tmp_path)


@pytest.fixture
def saved(work, tmp_path_factory):
    file = tmp_path_factory.mktemp("saved") / "scan.tar"
    backups.backup(work, work.store_url(), file)
    assert file.stat().st_mode & 0o777 == 0o600
    return file


def restored(file, root, **options):
    folder = WorkDir(root)
    return folder, backups.restore(folder, f"sqlite:///{folder.store_file}", file, **options)


def test_a_restored_folder_has_everything_that_a_service_needs(work, saved, store):
    folder, former = restored(saved, saved.parent / "again")
    there = {path.relative_to(folder.root).as_posix() for path in folder.root.rglob("*") if path.is_file()}
    assert there & FILES.keys() == FILES.keys() - {"logs/service.log"} and former is None
    kept = sorted(path.parents[2].name for path in folder.checkpoints.glob("restored.*/u/t2f0/c"))
    assert len(kept) == 2 and "restored.7" in kept, "the jobs of new tasks go on from it too"
    assert (folder.root / "tokens/signing-key.pem").read_bytes() == b"key"
    assert {path.stat().st_mode & 0o077 for path in folder.root.rglob("*")} == {0}
    opened = Store.open(f"sqlite:///{folder.store_file}")
    assert opened.trials(1) == store.trials(1)
    assert [one.what for one in check_all(store, work.panda_database) if one.invariant == "known-tasks"]
    assert check_all(opened, folder.panda_database) == [], "the task that only the server has is ended"
    opened.close()
    with closing(Database(folder.panda_database)) as server, server.writing() as tx:
        new = COMMON | {"task_id": 1, "number": 2, "attempt_nr": 1, "max_attempt": 3, "status": "activated"}
        new |= {"core_count": 1, "ram_mb": 1, "max_walltime": 1}
        given = tx.connection.execute(insert(database.jobs).values(new)).inserted_primary_key[0]
        assert LIFE < given < 2**53, "JSON's numbers are exact up to there"
        states = dict(tx.connection.execute(select(database.tasks.c.task_id, database.tasks.c.status)).all())
    assert states == {1: "running", 2: "aborted"}


def test_a_folder_in_use_is_refused_and_another_one_is_kept(work, saved, store):
    again = saved.parent / "again"
    shutil.copytree(work.root, again)
    with pytest.raises(InputError, match="--replace"):
        restored(saved, again)
    other = Store.open(f"sqlite:///{again / 'hpo-pilot.db'}")
    with held_lease(other.engine, "serve"), pytest.raises(TryAgainError, match="serve"):
        restored(saved, again, replace=True)
    other.close()
    with closing(Database(again / "panda.db")), pytest.raises(TryAgainError, match="another hpo-pilot server"):
        restored(saved, again, replace=True)
    folder, former = restored(saved, again, replace=True)
    assert folder.store_file.exists() and (former / "logs" / "service.log").exists()
    assert former.parent == again
    with pytest.raises(InputError, match="another file"):
        backups.backup(work, work.store_url(), saved)


@pytest.mark.parametrize("state", ["damaged", "older", "older and used"])
def test_a_folder_whose_store_cannot_be_used_is_replaced(saved, state):
    root = saved.parent / "again"
    root.mkdir(mode=0o700)
    if state == "damaged":
        (root / "hpo-pilot.db").write_bytes(b"garbage" * 1000)
    else:
        with closing(sqlite3.connect(root / "hpo-pilot.db")) as older, older:
            older.execute("CREATE TABLE leases (name TEXT, host TEXT, pid INTEGER, mode TEXT, expires FLOAT)")
            row = ("steering", "h", 1, "serve", 4e9 if "used" in state else 1)
            older.execute("INSERT INTO leases VALUES (?, ?, ?, ?, ?)", row)
    if "used" in state:
        with pytest.raises(TryAgainError, match="serve"):
            restored(saved, root, replace=True)
        return
    folder = root.stat().st_ino  # It stays: it may be a mount point, or in a folder that only root can write.
    root.parent.chmod(0o500)
    try:
        former = restored(saved, root, replace=True)[1]
    finally:
        root.parent.chmod(0o700)
    assert root.stat().st_ino == folder and (former / "hpo-pilot.db").exists()
    Store.open(f"sqlite:///{root / 'hpo-pilot.db'}").close()


def test_a_restored_search_goes_on_from_no_checkpoint_of_a_later_trial(work, store):
    start = chains.files_of("me", store.search(1).uid)
    cache = work.panda_files / "cache"
    cache.mkdir()
    for trial in (1, 60):
        (cache / f"{start}t1f0.{trial}").write_bytes(b"level")
    os.link(cache / f"{start}t1f0.1", cache / "another")  # it is kept as a file
    file = work.root / "scan.tar"
    backups.backup(work, work.store_url(), file)
    folder, _ = restored(file, work.root / "again")
    assert {path.name: path.read_bytes() for path in (folder.panda_files / "cache").iterdir()} == {
        f"{start}t1f0.1": b"level",
        "another": b"level",
    }


def test_a_checkpoint_is_saved_whole_or_not_at_all(work, monkeypatch):
    shutil.rmtree(work.checkpoints / "restored.7")
    point, real, copies = work.checkpoints / "u/t1f0.1", shutil.copy2, []
    changes: set[int] = set()
    (point / ".kept").mkdir()
    (point / ".kept/model").write_bytes(b"1")

    def copy(source, target):
        real(source, target)
        copies.append(source)
        if len(copies) in changes:  # the runner puts a new copy in its place
            shutil.rmtree(point / ".kept")
            (point / ".kept").mkdir()
            (point / ".kept/model").write_bytes(str(len(copies)).encode() * 9)

    monkeypatch.setattr(backups.shutil, "copy2", copy)
    monkeypatch.setattr(backups, "_PAUSES", (0, 0))
    for name, numbers in {"once": {2}, "always": range(100)}.items():
        copies.clear()
        changes.update(numbers)
        backups.backup(work, work.store_url(), work.root / f"{name}.tar")
        root = restored(work.root / f"{name}.tar", work.root / name)[0].checkpoints
        found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        assert found == ({"u/t1f0.1/c": b"half", "u/t1f0.1/.kept/model": b"2" * 9} if name == "once" else {})


def test_a_backup_without_the_servers_database_is_refused(work, store):
    work.panda_database.rename(work.root / "elsewhere")
    with pytest.raises(InputError, match="HPO_PILOT_SERVER_DATABASE"):
        backups.backup(work, work.store_url(), work.root / "scan.tar")


def test_a_flipped_bit_is_found_wherever_it_counts(saved):
    whole = saved.read_bytes()
    with tarfile.open(saved) as archive:
        places = [
            at for info in archive for at in (info.offset + 3, info.offset_data, info.offset_data + info.size - 1)
        ]
    for place in places:
        saved.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(InputError):
            restored(saved, saved.parent / "again")
        assert not (saved.parent / "again").exists()
    for length in (0, 100, len(whole) // 2):
        saved.write_bytes(whole[:length])
        with pytest.raises(InputError):
            restored(saved, saved.parent / "again")


@pytest.mark.parametrize("name", ["../tokens/x", "/tmp/x", "tokens/../../x", "other/x", "hpo-pilot.db/x", "tokens"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE])
def test_nothing_is_written_elsewhere(tmp_path, name, kind):
    file = tmp_path / "scan.tar"
    with tarfile.open(file, "w") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(InputError):
        restored(file, tmp_path / "again")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("part", ["format", "store", "server"])
def test_a_backup_of_a_newer_version_is_refused(work, saved, part):
    if part == "format":
        with tarfile.open(saved, "w") as archive:
            content = json.dumps({"format": 2, "hpo_pilot": "9.9", "sha256": {}}).encode()
            info = tarfile.TarInfo("manifest.json")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    else:
        path = work.store_file if part == "store" else work.panda_database
        with closing(sqlite3.connect(path)) as changed, changed:
            (known,) = changed.execute("SELECT version_num FROM alembic_version").fetchone()
            changed.execute("UPDATE alembic_version SET version_num = '9999'")
        saved.unlink()
        backups.backup(work, work.store_url(), saved)
        with closing(sqlite3.connect(path)) as changed, changed:
            changed.execute("UPDATE alembic_version SET version_num = ?", (known,))
    with pytest.raises(InputError, match="upgrade"):
        restored(saved, saved.parent / "again")
