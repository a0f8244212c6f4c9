"""Backups of a work folder while its service works, and their restoration.

A backup is a tar archive of checkpoints, store, the embedded server's database and files, in this order, and a manifest
with their SHA-256. The order makes it consistent without a lock. What is copied later knows all that is copied before:
a trial is committed before it has a checkpoint; the store registers a task before the server gets it, and never forgets
one; the server names a file after the file is whole. So results that the server has and the store does not are
collected again. Tasks that the server alone knows are ended, and its checkpoints of later trials are removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from sqlalchemy import URL, Engine, column, delete, func, insert, inspect, make_url, select, table, update

from hpo_pilot import __version__
from hpo_pilot.databases import Kind, tables_are_current
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.files import rename_whole
from hpo_pilot.jobs import OVER_JOBS, JobState, TaskState
from hpo_pilot.pilot.checkpoints import LIFE, KeptCheckpoint, search_folders
from hpo_pilot.server import DATABASE_VARIABLE, chains
from hpo_pilot.server.database import Database, jobs, lock_server, tasks
from hpo_pilot.server.file_store import Folder
from hpo_pilot.steering.invariants import open_at_embedded, unknown_tasks
from hpo_pilot.steering.workdir import WorkDir, nickname
from hpo_pilot.store import Store
from hpo_pilot.store import tables as t
from hpo_pilot.store.database import database_errors, engine_for, read_rows, url_without_password, writing
from hpo_pilot.store.lease import lease_holder_in

log = logging.getLogger(__name__)

_FORMAT = 1
_MANIFEST = "manifest.json"
_DUMP = "store.pgdump"
_PLACES = WorkDir(Path())
_CHECKPOINTS = _PLACES.checkpoints.name
_LATER = [
    str(each) for each in (_PLACES.panda_files, _PLACES.sandboxes, _PLACES.environments, _PLACES.tokens, _PLACES.tls)
]
_PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds, between copies of a checkpoint that changes

#: Folders in a work folder: its contents before a restoration, and a backup that is being unpacked.
_FORMER, _SCRATCH = "before-", ".restore-"


def backup(workdir: WorkDir, url: str, file: Path) -> int:
    """Writes a backup, mode 0600; returns the number of files in it.

    Raises:
        InputError: the file exists or cannot be written, a program is missing, or the server's database is elsewhere.
        TryAgainError: a database cannot be copied now.
    """
    if file.exists():
        raise InputError(f"{file} exists: name another file")
    _refuse_other_database(workdir)
    if not workdir.panda_database.exists():
        _refuse_missing_database(url)
    part = file.with_name(f".{file.name}.part")
    digests: dict[str, str] = {}
    try:
        with (
            tempfile.TemporaryDirectory(dir=file.parent, prefix=".backup-") as scratch,
            os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream,
            # Dereferenced, the second of two hard links is a file of its own.
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, dereference=True) as archive,
        ):
            for search in sorted(search_folders(workdir.checkpoints)):
                for point in sorted(search.glob("[!.]*")) if not search.is_symlink() else ():
                    place = point.relative_to(workdir.root).parent
                    digests |= _add_checkpoint(archive, point, place, Path(scratch))
            copy = Path(scratch) / "copy"
            if make_url(url).get_backend_name() == "sqlite":
                _copy_database(Path(make_url(url).database or ""), copy)
                digests |= _add(archive, copy, workdir.store_file.name)
            else:
                _run_postgresql("pg_dump", url, "--format=custom", f"--file={copy}")
                digests |= _add(archive, copy, _DUMP)
            if workdir.panda_database.exists():
                copy.unlink()
                _copy_database(workdir.panda_database, copy)
                digests |= _add(archive, copy, workdir.panda_database.name)
            for folder in _LATER:
                digests |= _add_folder(archive, workdir.root, folder)
            manifest = {"format": _FORMAT, "hpo_pilot": __version__, "created": time.time(), "sha256": digests}
            copy.write_text(json.dumps(manifest))
            _add(archive, copy, _MANIFEST)
        rename_whole(part, file)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return len(digests)


def restore(workdir: WorkDir, url: str, file: Path, *, replace: bool = False) -> Path | None:
    """Makes a work folder of a backup.

    Args:
        workdir: the work folder.
        url: the URL of its store.
        file: the backup.
        replace: whether the work folder's contents may be moved aside, or the tables in PostgreSQL be replaced.

    Returns:
        The folder in it with its former contents; None: it was empty.

    Raises:
        InputError: the backup is damaged or of a newer version, the work folder or the database is not empty,
            or the work folder cannot be written.
        TryAgainError: a service uses them.
    """
    _refuse_other_database(workdir)
    root, is_file = workdir.root, make_url(url).get_backend_name() == "sqlite"
    is_new = not root.exists()
    if is_file and Path(make_url(url).database or "").absolute() != workdir.store_file:
        raise InputError("a SQLite store is restored into its work folder: leave out --store")
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (used := bool(_entries(root))) and not replace:
            raise InputError(
                f"the work folder {root} is not empty: name another --workdir, or --replace moves its files aside"
            )
        # In `root`, which may be a mount point, or in a folder that only its administrator can write.
        with _unused(workdir, url, used), tempfile.TemporaryDirectory(dir=root, prefix=_SCRATCH) as scratch:
            fresh = WorkDir(Path(scratch) / "work")
            _unpack(file, fresh.root)
            dump = fresh.root / _DUMP
            if dump.exists() == is_file:
                has = "PostgreSQL: name its new database with --store" if is_file else "SQLite: leave out --store"
                raise InputError(f"the store in {file} is of {has}")
            for kind, path in (("store", fresh.store_file), ("server", fresh.panda_database)):
                if path.exists():
                    _check_database(cast(Kind, kind), path)
            if not is_file:
                _restore_postgresql(url, dump, replace=replace)
                dump.unlink()
            _prepare(Store.open(f"sqlite:///{fresh.store_file}" if is_file else url), fresh)
            former = root / f"{_FORMER}{time.strftime('%Y%m%d-%H%M%S')}" if used else None
            if former is not None:
                former.mkdir(mode=0o700)
                for path in _entries(root):
                    path.rename(former / path.name)
            # The store comes last: without it nothing takes the folder for a whole one.
            for path in sorted(_entries(fresh.root), key=lambda path: path.name == fresh.store_file.name):
                path.rename(root / path.name)
            return former
    except OSError as error:
        raise InputError(f"cannot restore into {root}: {error.filename or ''} {error.strerror or error}") from error
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty: all went well
                root.rmdir()


def _entries(root: Path) -> list[Path]:
    """Returns what is in a work folder, without former contents, a file system's own folder, and the server's lock."""
    others = ("lost+found", f"{_PLACES.panda_database}.lock")
    return sorted(
        path for path in root.iterdir() if path.name not in others and not path.name.startswith((_FORMER, _SCRATCH))
    )


def _refuse_other_database(workdir: WorkDir) -> None:
    if "://" in workdir.server_database:
        raise InputError(
            f"the server's database is in PostgreSQL ({DATABASE_VARIABLE}), which this command does not copy: stop the "
            "service, and copy both databases with pg_dump and the work folder with tar"
        )


def _refuse_missing_database(url: str) -> None:
    with engine_for(url) as engine:
        is_used = bool(open_at_embedded(engine))
    if is_used:
        raise InputError(
            "the store has tasks at the embedded server, whose database is not in the work folder: if it is in "
            f"PostgreSQL, set {DATABASE_VARIABLE} as for the service; if it is lost, start the service first"
        )


def _copy_database(source: Path, target: Path) -> None:
    """Copies a SQLite database in one read transaction, which no writer waits for."""
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        raise TryAgainError(
            f"{source} cannot be copied: {error}; `hpo-pilot doctor` and `db check` say more"
        ) from error


def _add_folder(archive: tarfile.TarFile, root: Path, folder: str) -> dict[str, str]:
    """Adds the plain files of a folder that are there when their turn comes."""
    digests: dict[str, str] = {}
    for path in sorted((root / folder).rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix != ".part":
            with suppress(FileNotFoundError):
                digests |= _add(archive, path, path.relative_to(root).as_posix())
    return digests


def _add_checkpoint(archive: tarfile.TarFile, point: Path, place: Path, scratch: Path) -> dict[str, str]:
    """Adds the checkpoint of one point, whose job may write it meanwhile, if it stays the same for one copy of it."""
    kept = KeptCheckpoint(point.parent, (point.name,), 0, "")
    for pause in _PAUSES:
        with tempfile.TemporaryDirectory(dir=scratch) as copy, suppress(FileNotFoundError):
            before = kept.signature()
            for name, _, _ in before:
                target = Path(copy, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(point.parent / name, target)
            if kept.signature() == before:
                added = [_add(archive, Path(copy, name), f"{place}/{name}") for name, _, _ in before]
                return {name: digest for each in added for name, digest in each.items()}
        time.sleep(pause)
    log.warning("%s is not in the backup, because its files change all the time: that trial starts anew", point)
    return {}


class _Hashing:
    """A file that is read to its end at a size that is known before; a file that shrinks is filled with zeros."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.digest = stream, hashlib.sha256()

    def read(self, size: int) -> bytes:
        content = self._stream.read(size).ljust(size, b"\0")
        self.digest.update(content)
        return content


def _add(archive: tarfile.TarFile, path: Path, name: str) -> dict[str, str]:
    with path.open("rb") as stream:
        info = archive.gettarinfo(arcname=name, fileobj=stream)
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        source = _Hashing(stream)
        archive.addfile(info, cast(IO[bytes], source))
    return {name: source.digest.hexdigest()}


def _unpack(file: Path, root: Path) -> None:
    """Unpacks a backup into a new folder: plain files with plain names only, each compared with its digest."""
    found: dict[str, str] = {}
    manifest: Mapping[str, Any] = {}
    root.mkdir(mode=0o700)
    damaged = f"{file} is damaged, or is no backup of hpo-pilot"
    try:
        with tarfile.open(file, "r|") as archive:
            for info in archive:
                parts = PurePosixPath(info.name).parts
                content = archive.extractfile(info) if info.isreg() else None
                if content is None or ".." in parts or not _is_known(parts):
                    raise InputError(f"{damaged}: {info.name!r} is no file of a backup")
                if info.name == _MANIFEST:
                    manifest = json.loads(content.read(1 << 28))
                    continue
                target, digest = root.joinpath(*parts), hashlib.sha256()
                for folder in reversed(target.relative_to(root).parents):
                    (root / folder).mkdir(mode=0o700, exist_ok=True)
                with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, info.mode & 0o700), "wb") as out:
                    while piece := content.read(1 << 20):
                        digest.update(piece)
                        out.write(piece)
                os.utime(target, (info.mtime, info.mtime))
                found[info.name] = digest.hexdigest()
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise InputError(f"{damaged}: {error}") from error
    except OSError as error:
        raise InputError(f"cannot restore {file}: {error.filename or ''} {error.strerror}") from error
    if manifest.get("format", 0) > _FORMAT:
        raise InputError(f"{file} is of a newer hpo-pilot ({manifest.get('hpo_pilot')}): upgrade this one first")
    if manifest.get("sha256") != found:
        raise InputError(f"{damaged}: its files are not those of its manifest")


def _is_known(parts: tuple[str, ...]) -> bool:
    if len(parts) == 1:
        return parts[0] in {_MANIFEST, _DUMP, str(_PLACES.store_file), str(_PLACES.panda_database)}
    return bool(parts) and parts[0] in (_CHECKPOINTS, *_LATER)


def _check_database(kind: Kind, path: Path) -> None:
    with engine_for(f"sqlite:///{path}") as engine, database_errors(engine), engine.connect() as connection:
        tables_are_current(connection, kind, f"{kind} database of the backup")


def _prepare(store: Store, workdir: WorkDir) -> None:
    """Makes a restored store fit to its server.

    Ends the lease, and the tasks that the server alone has; removes checkpoints of trials after the backup, whose
    numbers the store gives again to other points; raises the server's next ids, because pilots may still hold ids and
    checkpoints from after the backup, or from after its restoration before.
    """
    with closing(store):
        with writing(store.engine) as connection:
            connection.execute(delete(t.leases))
        if not workdir.panda_database.exists():
            return
        with closing(Database(workdir.panda_database)) as server, server.writing() as tx:
            at = {"modified": tx.now, "ended": tx.now}
            for number, _, _ in unknown_tasks(tx.connection, store):
                alive = (jobs.c.task_id == number, jobs.c.status.not_in(OVER_JOBS))
                tx.connection.execute(update(jobs).where(*alive).values(status=JobState.CLOSED.value, **at))
                aborted = {"status": TaskState.ABORTED.value, **at}
                tx.connection.execute(update(tasks).where(tasks.c.task_id == number).values(aborted))
            life = LIFE * (1 + secrets.randbelow(100_000))
            sequence, given = table("sqlite_sequence", column("name"), column("seq")), dict[str, int]()
            for name in (tasks.name, jobs.name):
                last = tx.connection.scalar(select(sequence.c.seq).where(sequence.c.name == name)) or 0
                given[name] = last + life
                tx.connection.execute(delete(sequence).where(sequence.c.name == name))
                tx.connection.execute(insert(sequence).values(name=name, seq=given[name]))
            _copy_to_life(workdir.checkpoints, given[tasks.name] // LIFE)
            owners = {nickname(), *tx.connection.scalars(select(tasks.c.user_name).distinct())}
            trials = select(func.max(t.trials.c.number)).where(t.trials.c.search_id == t.searches.c.id)
            found = read_rows(store.engine, select(t.searches.c.uid, func.coalesce(trials.scalar_subquery(), 0)))
            newest = {chains.files_of(owner, uid): trial for uid, trial in found for owner in owners}
            chains.forget_later(tx, Folder(workdir.panda_files / "cache"), newest)


def _copy_to_life(checkpoints: Path, life: int) -> None:
    """Links the restored checkpoints for new tasks too, whose trials may go on from them."""
    for search in search_folders(checkpoints):
        owner, has_owner, _ = search.parent.name.partition(".")
        if has_owner:
            place = checkpoints / f"{owner}.{life}" / search.name
            place.parent.mkdir(mode=0o700, exist_ok=True)
            shutil.copytree(search, place, symlinks=True, copy_function=os.link, dirs_exist_ok=True)


@contextmanager
def _unused(workdir: WorkDir, url: str, used: bool) -> Iterator[None]:
    """Refuses a store or work folder that a service uses."""
    is_file = make_url(url).get_backend_name() == "sqlite"
    if not is_file or workdir.store_file.exists():
        try:
            with engine_for(url) as engine:
                mode = _user_of(engine)
        except InputError:
            if not is_file:
                raise
            mode = None  # A damaged file is what a backup is for, and no service can work with it.
        if mode is not None:
            name = url_without_password(url)
            raise TryAgainError(f"`hpo-pilot {mode}` uses the store {name}: stop it first; after a kill, wait a minute")
    if used and workdir.panda_database.exists():
        with closing(lock_server(workdir.panda_database)):
            yield
    else:
        yield


def _user_of(engine: Engine) -> str | None:
    """Returns the command of a process that steers a store of any version; None: there is none."""
    c = t.leases.c
    with database_errors(engine), engine.connect() as connection, connection.begin():
        if not inspect(connection).has_table(t.leases.name):
            return None
        if {each["name"] for each in inspect(connection).get_columns(t.leases.name)} >= set(c.keys()):
            return holder.mode if (holder := lease_holder_in(connection)) is not None else None
        return connection.scalar(select(c.mode).where(c.expires > time.time()))


def _restore_postgresql(url: str, dump: Path, *, replace: bool) -> None:
    with engine_for(url) as engine, database_errors(engine):
        has_tables = bool(inspect(engine).get_table_names())
    if has_tables and not replace:
        raise InputError(f"the database {url_without_password(url)} has tables: name another, or give --replace")
    clean = ("--clean", "--if-exists") if replace else ()
    _run_postgresql("pg_restore", url, "--single-transaction", "--no-owner", *clean, "--exit-on-error", str(dump))


def _run_postgresql(program: str, url: str, *arguments: str) -> None:
    """Runs a program of PostgreSQL on a database; the password goes through the environment.

    Raises:
        InputError: the program is missing.
        TryAgainError: it failed.
    """
    if shutil.which(program) is None:
        raise InputError(f"{program} is not here: install PostgreSQL's client programs (postgresql-client)")
    parsed = make_url(url)
    plain = URL.create("postgresql", parsed.username, None, parsed.host, parsed.port, parsed.database, parsed.query)
    environment = os.environ | ({"PGPASSWORD": str(parsed.password)} if parsed.password else {})
    name = f"--dbname={plain.render_as_string()}"
    call = [program, name, "--no-password", *arguments]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TryAgainError(f"{program}: {done.stderr.strip()[-500:]}")
