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

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    column,
    delete,
    func,
    insert,
    inspect,
    make_url,
    select,
    table,
    update,
)

from hpo_pilot import __version__
from hpo_pilot.databases import Kind, tables_are_current
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.files import rename_whole
from hpo_pilot.jobs import OVER_JOBS, JobState, TaskState
from hpo_pilot.pilot.checkpoints import LIFE, KeptCheckpoint, search_folders
from hpo_pilot.server import DATABASE_VARIABLE, chains
from hpo_pilot.server.database import Database, engine_of, has_server, jobs, lock_server, tasks
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
#: Dumps of databases in PostgreSQL.
_DUMPS: dict[Kind, str] = {"store": "store.pgdump", "server": "server.pgdump"}
#: What names a database that is not in the work folder.
_OPTION: dict[Kind, str] = {"store": "--store", "server": DATABASE_VARIABLE}
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
        InputError: the file exists or cannot be written, a program is missing, or the server's database is not found.
        TryAgainError: a database cannot be copied now.
    """
    if file.exists():
        raise InputError(f"{file} exists: name another file")
    databases = _databases(workdir, url)
    if _is_file(databases["server"]) and not Path(databases["server"].database or "").exists():
        del databases["server"]
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
                    folder = point.relative_to(workdir.root).parent.as_posix()
                    digests |= _add_checkpoint(archive, point, folder, Path(scratch))
            copy = Path(scratch) / "copy"
            for kind, place in databases.items():
                if _is_file(place):
                    _copy_database(Path(place.database or ""), copy)
                else:
                    _run_postgresql("pg_dump", place, "--format=custom", f"--file={copy}")
                digests |= _add(archive, copy, _file_in(_PLACES, kind).name if _is_file(place) else _DUMPS[kind])
                copy.unlink()
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
    databases, root = _databases(workdir, url), workdir.root
    is_new = not root.exists()
    for kind, place in databases.items():
        if _is_file(place) and Path(place.database or "").absolute() != _file_in(workdir, kind):
            raise InputError(f"a SQLite database is restored into its work folder: leave out {_OPTION[kind]}")
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (used := bool(_entries(root))) and not replace:
            raise InputError(
                f"the work folder {root} is not empty: name another --workdir, or --replace moves its files aside"
            )
        # In `root`, which may be a mount point, or in a folder that only its administrator can write.
        with _unused(workdir, databases, used), tempfile.TemporaryDirectory(dir=root, prefix=_SCRATCH) as scratch:
            fresh = WorkDir(Path(scratch) / "work")
            _unpack(file, fresh.root)
            dumps = {}
            for kind, place in databases.items():
                path, dump = _file_in(fresh, kind), fresh.root / _DUMPS[kind]
                if (dump if _is_file(place) else path).exists():
                    has = "PostgreSQL: name its new database with" if _is_file(place) else "SQLite: leave out"
                    raise InputError(f"the {kind}'s database in {file} is of {has} {_OPTION[kind]}")
                if path.exists():
                    _check_database(kind, path)
                elif dump.exists():
                    dumps[kind] = dump
                    if not replace:
                        _refuse_tables(place)
            # The server's database comes first: without a store nothing takes the rest for a whole one.
            for kind, dump in reversed(dumps.items()):
                clean = ("--clean", "--if-exists") if replace else ()
                options = ("--single-transaction", "--no-owner", "--exit-on-error", *clean)
                _run_postgresql("pg_restore", databases[kind], *options, str(dump))
                dump.unlink()
            at_server = workdir.server_database if "server" in dumps else fresh.panda_database
            at_store = url if "store" in dumps else f"sqlite:///{fresh.store_file}"
            _prepare(Store.open(at_store), fresh, at_server)
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


def _databases(workdir: WorkDir, url: str) -> dict[Kind, URL]:
    """Returns the places of store and server's database, in the order in which they are copied."""
    return {"store": make_url(url), "server": engine_of(workdir.server_database).url}


def _is_file(place: URL) -> bool:
    return place.get_backend_name() == "sqlite"


def _file_in(workdir: WorkDir, kind: Kind) -> Path:
    return workdir.store_file if kind == "store" else workdir.panda_database


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


def _add_checkpoint(archive: tarfile.TarFile, point: Path, place: str, scratch: Path) -> dict[str, str]:
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
        return parts[0] in {_MANIFEST, *_DUMPS.values(), str(_PLACES.store_file), str(_PLACES.panda_database)}
    return bool(parts) and parts[0] in (_CHECKPOINTS, *_LATER)


def _check_database(kind: Kind, path: Path) -> None:
    with engine_for(f"sqlite:///{path}") as engine, database_errors(engine), engine.connect() as connection:
        tables_are_current(connection, kind, f"{kind} database of the backup")


def _prepare(store: Store, workdir: WorkDir, server_database: Path | str) -> None:
    """Makes a restored store fit to its server.

    Ends the lease, and the tasks that the server alone has; removes checkpoints of trials after the backup, whose
    numbers the store gives again to other points; raises the server's next ids, because pilots may still hold ids and
    checkpoints from after the backup, or from after its restoration before.
    """
    with closing(store):
        with writing(store.engine) as connection:
            connection.execute(delete(t.leases))
        if isinstance(server_database, Path) and not server_database.exists():
            return
        with closing(Database(server_database)) as server, server.writing() as tx:
            at = {"modified": tx.now, "ended": tx.now}
            for number, _, _ in unknown_tasks(tx.connection, store):
                alive = (jobs.c.task_id == number, jobs.c.status.not_in(OVER_JOBS))
                tx.connection.execute(update(jobs).where(*alive).values(status=JobState.CLOSED.value, **at))
                aborted = {"status": TaskState.ABORTED.value, **at}
                tx.connection.execute(update(tasks).where(tasks.c.task_id == number).values(aborted))
            life = LIFE * (1 + secrets.randbelow(100_000))
            given = [_raise_ids(tx.connection, key, life) for key in (tasks.c.task_id, jobs.c.panda_id)]
            _copy_to_life(workdir.checkpoints, given[0] // LIFE)
            owners = {nickname(), *tx.connection.scalars(select(tasks.c.user_name).distinct())}
            trials = select(func.max(t.trials.c.number)).where(t.trials.c.search_id == t.searches.c.id)
            found = read_rows(store.engine, select(t.searches.c.uid, func.coalesce(trials.scalar_subquery(), 0)))
            newest = {chains.files_of(owner, uid): trial for uid, trial in found for owner in owners}
            chains.forget_later(tx, Folder(workdir.panda_files / "cache"), newest)


def _raise_ids(connection: Connection, key: Column[int], by: int) -> int:
    """Raises the last id that a table of the server has given, and returns it."""
    if connection.dialect.name == "postgresql":
        sequence = func.pg_get_serial_sequence(key.table.name, key.name)
        last = connection.scalar(select(func.setval(sequence, func.nextval(sequence) + by)))
        return int(last or 0)
    table_ids = table("sqlite_sequence", column("name"), column("seq"))
    of_table = table_ids.c.name == key.table.name
    last = (connection.scalar(select(table_ids.c.seq).where(of_table)) or 0) + by
    connection.execute(delete(table_ids).where(of_table))
    connection.execute(insert(table_ids).values(name=key.table.name, seq=last))
    return last


def _copy_to_life(checkpoints: Path, life: int) -> None:
    """Links the restored checkpoints for new tasks too, whose trials may go on from them."""
    for search in search_folders(checkpoints):
        owner, has_owner, _ = search.parent.name.partition(".")
        if has_owner:
            place = checkpoints / f"{owner}.{life}" / search.name
            place.parent.mkdir(mode=0o700, exist_ok=True)
            shutil.copytree(search, place, symlinks=True, copy_function=os.link, dirs_exist_ok=True)


@contextmanager
def _unused(workdir: WorkDir, databases: Mapping[Kind, URL], used: bool) -> Iterator[None]:
    """Refuses databases that a service uses."""
    store, server = databases["store"], databases["server"]
    if not _is_file(store) or workdir.store_file.exists():
        try:
            with engine_for(store) as engine:
                mode = _user_of(engine)
        except InputError:
            if not _is_file(store):
                raise
            mode = None  # A damaged file is what a backup is for, and no service can work with it.
        if mode is not None:
            name = url_without_password(store)
            raise TryAgainError(f"`hpo-pilot {mode}` uses the store {name}: stop it first; after a kill, wait a minute")
    if not _is_file(server):
        with engine_for(server) as engine, database_errors(engine), engine.connect() as connection:
            if has_server(connection):
                name = url_without_password(server)
                raise TryAgainError(f"another hpo-pilot server uses the database {name}: stop it first")
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


def _refuse_tables(place: URL) -> None:
    with engine_for(place) as engine, database_errors(engine):
        if inspect(engine).get_table_names():
            raise InputError(f"the database {url_without_password(place)} has tables: name another, or give --replace")


def _run_postgresql(program: str, place: URL, *arguments: str) -> None:
    """Runs a program of PostgreSQL on a database; the password goes through the environment.

    Raises:
        InputError: the program is missing.
        TryAgainError: it failed.
    """
    if shutil.which(program) is None:
        raise InputError(f"{program} is not here: install PostgreSQL's client programs (postgresql-client)")
    plain = URL.create("postgresql", place.username, None, place.host, place.port, place.database, place.query)
    environment = os.environ | ({"PGPASSWORD": str(place.password)} if place.password else {})
    name = f"--dbname={plain.render_as_string()}"
    call = [program, name, "--no-password", *arguments]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TryAgainError(f"{program}: {done.stderr.strip()[-500:]}")
