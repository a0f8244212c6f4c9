"""A backup restores what it was made of, or says why not."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import tarfile
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import insert, select, update

from hpo_pilot.databases import version_table
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.jobs import task_name
from hpo_pilot.pilot.checkpoints import LIFE
from hpo_pilot.server import DATABASE_VARIABLE, chains, database
from hpo_pilot.server.database import Database, engine_of
from hpo_pilot.steering import backup as backups
from hpo_pilot.steering.invariants import check_all
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import EMBEDDED, Store
from hpo_pilot.store.database import writing
from hpo_pilot.store.lease import held_lease
from tests.postgresql import BASE, new_database
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
def work(steer, store, panda, panda_place, tmp_path):
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
    with closing(Database(panda_place)) as opened, opened.writing() as tx:
        tx.connection.execute(insert(database.tasks), [COMMON | task | {"name": name} for name in names])
        jobs = [COMMON | job | {"task_id": number, "heartbeat": 4e9, "max_walltime": 1} for number in (1, 2)]
        tx.connection.execute(insert(database.jobs), jobs)
    return WorkDir(tmp_path)


@pytest.fixture
def save(work, store, panda_place, monkeypatch):
    """Writes a backup of the work folder."""

    def write(file):
        monkeypatch.setenv(DATABASE_VARIABLE, str(panda_place))
        backups.backup(work, url_of(store), file)
        return file

    return write


@pytest.fixture
def saved(save, tmp_path_factory):
    file = save(tmp_path_factory.mktemp("saved") / "scan.tar")
    assert file.stat().st_mode & 0o777 == 0o600
    return file


@dataclass
class Restored:
    """A work folder, and the URL of its store."""

    root: Path
    store: str
    server: str
    former: Path | None = None


@pytest.fixture
def restored(monkeypatch):
    """Restores a backup into a folder; with PostgreSQL the folder gets databases of its own."""
    with ExitStack() as stack:
        known = {}

        def restore(file, root, **options):
            if root not in known and BASE:
                known[root] = Restored(root, *(stack.enter_context(new_database()) for _ in range(2)))
            folder = known.setdefault(root, Restored(root, f"sqlite:///{root}/hpo-pilot.db", f"{root}/panda.db"))
            monkeypatch.setenv(DATABASE_VARIABLE, folder.server)
            folder.former = backups.restore(WorkDir(root), folder.store, file, **options)
            return folder

        yield restore


def url_of(store):
    return store.engine.url.render_as_string(hide_password=False)


def test_a_restored_folder_has_everything_that_a_service_needs(saved, store, panda_place, restored):
    folder = restored(saved, saved.parent / "again")
    there = {path.relative_to(folder.root).as_posix() for path in folder.root.rglob("*") if path.is_file()}
    assert there & FILES.keys() == FILES.keys() - {"logs/service.log"} and folder.former is None
    kept = sorted(path.parents[2].name for path in folder.root.glob("checkpoints/restored.*/u/t2f0/c"))
    assert len(kept) == 2 and "restored.7" in kept, "the jobs of new tasks go on from it too"
    assert (folder.root / "tokens/signing-key.pem").read_bytes() == b"key"
    assert {path.stat().st_mode & 0o077 for path in folder.root.rglob("*")} == {0}
    opened = Store.open(folder.store)
    assert opened.trials(1) == store.trials(1)
    assert [one.what for one in check_all(store, panda_place) if one.invariant == "known-tasks"]
    assert check_all(opened, folder.server) == [], "the task that only the server has is ended"
    opened.close()
    with closing(Database(folder.server)) as server, server.writing() as tx:
        new = COMMON | {"task_id": 1, "number": 2, "attempt_nr": 1, "max_attempt": 3, "status": "activated"}
        new |= {"core_count": 1, "ram_mb": 1, "max_walltime": 1}
        given = tx.connection.execute(insert(database.jobs).values(new)).inserted_primary_key[0]
        assert LIFE < given < 2**53, "JSON's numbers are exact up to there"
        states = dict(tx.connection.execute(select(database.tasks.c.task_id, database.tasks.c.status)).all())
    assert states == {1: "running", 2: "aborted"}


def test_a_folder_in_use_is_refused_and_another_one_is_kept(saved, save, restored):
    again = saved.parent / "again"
    folder = restored(saved, again)
    (again / "logs").mkdir()
    (again / "logs" / "service.log").write_bytes(b"")
    with pytest.raises(InputError, match="--replace"):
        restored(saved, again)
    other = Store.open(folder.store)
    with held_lease(other.engine, "serve"), pytest.raises(TryAgainError, match="serve"):
        restored(saved, again, replace=True)
    other.close()
    with closing(Database(folder.server)) as server:
        with server.writing() as tx:
            tx.connection.execute(update(database.tasks).values(queue="kept"))
        with pytest.raises(TryAgainError, match="another hpo-pilot server"):
            restored(saved, again, replace=True)
        with server.reading() as tx:
            assert set(tx.connection.scalars(select(database.tasks.c.queue))) == {"kept"}
    former = restored(saved, again, replace=True).former
    Store.open(folder.store).close()
    assert (former / "logs" / "service.log").exists()
    assert former.parent == again
    with pytest.raises(InputError, match="another file"):
        save(saved)


def test_databases_that_are_not_empty_are_replaced_only_if_told(saved, restored, monkeypatch):
    if not BASE:
        pytest.skip("a file in SQLite is moved aside with its work folder")
    folder = restored(saved, saved.parent / "again")
    shutil.rmtree(folder.root)
    with pytest.raises(InputError, match="has tables"):
        restored(saved, folder.root)
    Store.open(folder.store).close()
    restored(saved, folder.root, replace=True)
    with closing(Store.open(folder.store)) as opened:
        assert check_all(opened, folder.server) == []


@pytest.mark.parametrize("state", ["damaged", "older", "older and used"])
def test_a_folder_whose_store_cannot_be_used_is_replaced(saved, restored, state):
    if BASE:
        pytest.skip("the store is no file in the folder")
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
        former = restored(saved, root, replace=True).former
    finally:
        root.parent.chmod(0o700)
    assert root.stat().st_ino == folder and (former / "hpo-pilot.db").exists()
    Store.open(f"sqlite:///{root / 'hpo-pilot.db'}").close()


def test_a_restored_search_goes_on_from_no_checkpoint_of_a_later_trial(work, store, save, restored):
    start = chains.files_of("me", store.search(1).uid)
    cache = work.panda_files / "cache"
    cache.mkdir()
    for trial in (1, 60):
        (cache / f"{start}t1f0.{trial}").write_bytes(b"level")
    os.link(cache / f"{start}t1f0.1", cache / "another")  # it is kept as a file
    folder = restored(save(work.root / "scan.tar"), work.root / "again")
    assert {path.name: path.read_bytes() for path in folder.root.glob("panda-files/cache/*")} == {
        f"{start}t1f0.1": b"level",
        "another": b"level",
    }


def test_a_checkpoint_is_saved_whole_or_not_at_all(work, save, restored, monkeypatch):
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
        root = restored(save(work.root / f"{name}.tar"), work.root / name).root / "checkpoints"
        found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        assert found == ({"u/t1f0.1/c": b"half", "u/t1f0.1/.kept/model": b"2" * 9} if name == "once" else {})


def test_a_backup_without_the_servers_database_is_refused(work, store):
    work.panda_database.unlink(missing_ok=True)
    with pytest.raises(InputError, match="HPO_PILOT_SERVER_DATABASE"):
        backups.backup(work, url_of(store), work.root / "scan.tar")


def test_a_flipped_bit_is_found_wherever_it_counts(saved, restored):
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
        backups.restore(WorkDir(tmp_path / "again"), f"sqlite:///{tmp_path}/again/hpo-pilot.db", file)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("part", ["format", "store", "server"])
def test_a_backup_of_a_newer_version_is_refused(store, panda_place, saved, save, restored, part):
    if part == "format":
        with tarfile.open(saved, "w") as archive:
            content = json.dumps({"format": 2, "hpo_pilot": "9.9", "sha256": {}}).encode()
            info = tarfile.TarInfo("manifest.json")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    else:
        engine, number = store.engine if part == "store" else engine_of(panda_place), version_table.c.version_num
        with writing(engine) as connection:
            known = connection.scalar(select(number))
            connection.execute(update(version_table).values({number: "9999"}))
        saved.unlink()
        save(saved)
        with writing(engine) as connection:
            connection.execute(update(version_table).values({number: known}))
        if part == "server":
            engine.dispose()
    with pytest.raises(InputError, match="upgrade"):
        restored(saved, saved.parent / "again")
