"""The sandbox: one content-addressed archive per search, with the payload's files and the runner."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from typing_extensions import Buffer

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.files import rename_whole
from hpo_pilot.transformation.sandbox import TooLarge, UnsafeArchive, check_bounds, unpack

RUNNER = "hpo_pilot_runner.py"
PAYLOAD_DOCUMENT = "hpo_pilot_payload.json"

#: The folder of the payload's files in the archive, for jobs that run several points: each point gets a copy.
SERIES_FOLDER = "payload"

#: The prefix of our own files in a job's folder.
_OURS = "hpo_pilot_"

#: panda-client refuses larger archives (`SOURCES_LIMIT`), in bytes.
SIZE_LIMIT = 768 * 1024 * 1024

#: Never part of a payload: version control, caches, and our own work folder beside the search file.
_SKIPPED = frozenset({".git", "__pycache__", ".ipynb_checkpoints", ".venv", "hpo-pilot"})


def build_sandbox(
    payload: Path | None, document: Mapping[str, Any], folder: Path, *, without: Path | None = None
) -> Path:
    """Packs the payload's folder, the runner and `document` into ``folder/sources.<sha256>.tar.gz``.

    The same files give the same archive: it has no times or owners, and a fixed order. A job always starts
    hpo_pilot_runner.py: the runner of one point or, where `document` has ``"trials_per_job"`` above 1, the one that
    starts it for each of several.

    Args:
        payload: the payload's folder; None: no files.
        document: the settings of the runner.
        folder: the folder of the archive.
        without: a file to leave out: the search file, whose budget may change while the payload stays the same.

    Raises:
        InputError: the payload cannot be read, is too large, has a file under one of the runner's names, or a link that
            leads out of it.
        TryAgainError: the archive cannot be written.
    """
    digest = hashlib.sha256()
    temporary = folder / f".sources.{os.getpid()}.{threading.get_ident()}.tmp"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with packed_into(temporary, payload) as archive:
            within = f"{SERIES_FOLDER}/" if document.get("trials_per_job", 1) > 1 else ""
            for name, path in payload_files(payload, without):
                add_file(archive, within + name, path)
            for name, program in _programs(document).items():
                _add_bytes(archive, name, (Path(__file__).parent.parent / "runner" / program).read_bytes())
            _add_bytes(archive, PAYLOAD_DOCUMENT, json.dumps(dict(document), sort_keys=True, indent=1).encode())
        with temporary.open("rb") as packed_file:
            for block in iter(lambda: packed_file.read(1 << 20), b""):
                digest.update(block)
        final = folder / f"sources.{digest.hexdigest()}.tar.gz"
        rename_whole(temporary, final)
    except OSError as error:
        raise TryAgainError(f"cannot write the sandbox to {folder}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # on a disk that is read-only now
            temporary.unlink(missing_ok=True)
    return final


def same_payload(one: Path, other: Path) -> bool:
    """Returns True if two archives of `build_sandbox` have the same payload, even with different runner versions.

    Of the runner's settings it compares the inputs: the others follow from the search's definition.

    Raises:
        InputError: an archive cannot be read.
    """
    return _payload_of(one) == _payload_of(other)


def _payload_of(archive: Path) -> dict[str, Any]:
    """Returns the digest of each of the payload's files, and its inputs."""
    found: dict[str, Any] = {}
    try:
        with tarfile.open(archive) as packed:
            for member in packed:
                content = packed.extractfile(member)
                if content is None:
                    continue
                if member.name == PAYLOAD_DOCUMENT:
                    found[PAYLOAD_DOCUMENT] = json.load(content).get("inputs") or []
                elif not member.name.startswith(_OURS):
                    found[member.name] = (
                        member.mode,
                        hashlib.file_digest(cast(io.BufferedReader, content), "sha256").hexdigest(),
                    )
    except (OSError, EOFError, tarfile.TarError, ValueError, AttributeError) as error:
        raise InputError(f"the packed payload {archive} was lost or damaged ({error})") from error
    return found


# Users' archives are unpacked, and their files packed again, in a process of their own with a low priority: the process
# that answers requests stays free.

#: Most of these processes at once, and the seconds to wait for one of them to end.
_AT_ONCE = threading.BoundedSemaphore(2)
_PATIENCE = 2.0


def unpack_payload(archive: str, folder: str, limit: int) -> str:
    """Unpacks a user's archive into a new folder, at most `limit` bytes; returns the folder.

    Raises:
        InputError: the archive is too large, or not safe to unpack.
        TryAgainError: there is no room for it.
    """
    try:
        Path(folder).mkdir()
        check_bounds(archive, limit)  # before 100,000 files are made
        unpack(archive, folder, limit)
    except TooLarge as error:
        raise InputError(
            f"the payload is refused: {error}. Move data out of it and name it under payload.inputs, or ask the "
            "operator of the service for a larger HPO_PILOT_UNPACKED_MB"
        ) from error
    except UnsafeArchive as error:
        raise InputError(f"the payload is refused: {error}") from error
    except OSError as error:
        raise TryAgainError(f"the service cannot unpack the payload: {error.strerror}") from error
    return folder


def _build(payload: str, document: Mapping[str, Any], folder: str) -> str:
    return str(build_sandbox(Path(payload), document, Path(folder)))


_FUNCTIONS: dict[str, Callable[..., str]] = {"unpack": unpack_payload, "build": _build}


def in_worker(function: Literal["unpack", "build"], *arguments: Any) -> Path:
    """Runs `unpack_payload` or `build_sandbox` in a process of its own.

    Raises:
        InputError: the archive or the payload is refused.
        TryAgainError: there is no room for it, the worker was killed, or the service unpacks too many at once.
    """
    if not _AT_ONCE.acquire(timeout=_PATIENCE):
        raise TryAgainError("the service unpacks other payloads now: try again in a few seconds")
    command, answer = [sys.executable, "-m", "hpo_pilot.panda.sandbox"], ""
    try:
        with (
            contextlib.suppress(BrokenPipeError),
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker,
        ):
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(json.dumps([function, *arguments], default=str) + "\n")
            worker.stdin.flush()  # it stays open: the worker ends with this process
            answer = worker.stdout.readline()
    finally:
        _AT_ONCE.release()
    if not answer:
        raise TryAgainError("the service could not unpack the payload: its worker was killed, see the log")
    result, refused, failed = json.loads(answer)
    if refused:
        raise InputError(refused)
    if failed:
        raise TryAgainError(failed)
    return Path(result)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _work() -> None:
    """Answers the one request of `in_worker`."""
    os.nice(5)
    function, *arguments = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    result, refused, failed = "", "", ""
    try:
        result = _FUNCTIONS[function](*arguments)
    except InputError as error:
        refused = str(error)
    except TryAgainError as error:
        failed = str(error)
    sys.stdout.write(json.dumps([result, refused, failed]) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the thread waits for more


def _programs(document: Mapping[str, Any]) -> dict[str, str]:
    """Returns our own files for the archive: name in the archive -> file of hpo_pilot/runner."""
    programs = {RUNNER: RUNNER}
    if document.get("trials_per_job", 1) > 1:
        programs = {RUNNER: "hpo_pilot_series.py", "hpo_pilot_point.py": RUNNER}
    # Only the payload decides whether it uses these or leaves processes, and only its node whether it has counters.
    names = ["hpo_pilot_hpogrid.py"] if "hyperparameters" in document else []
    names += [f"hpo_pilot_{name}.py" for name in ("results", "ranks", "energy", "orphans", "python")]
    names += ["hpo_pilot_function.py"] if document.get("function") else []
    names += ["hpo_pilot_command.py"] if document.get("placeholders") else []
    names += ["hpo_pilot_figures.py"] if document.get("result") or document.get("progress") else []
    names += ["hpo_pilot_checkpoints.py"] if document.get("checkpoint") else []
    return programs | {name: name for name in names}


def payload_files(payload: Path | None, without: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Returns the files of a payload's folder with their names in the archive, in order; not those behind links.

    Args:
        payload: the folder; None: no files.
        without: a file to leave out.

    Raises:
        InputError: the folder cannot be read, has a file under one of the runner's names, or a link to a file outside.
    """
    if payload is None:
        return
    root = payload.resolve()
    left_out = without.resolve() if without else None

    def refuse(error: OSError) -> NoReturn:
        raise InputError(f"payload.files: cannot read {error.filename}: {error.strerror}") from error

    for where, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(names):
            path = Path(where, name)
            inside = path.relative_to(root).as_posix()
            if inside.startswith(_OURS):
                raise InputError(f"payload.files: {path} has a name that the payload runner needs; rename it")
            try:
                if path.is_symlink() and not path.resolve().is_relative_to(root):
                    message = f"{path} is a link that leads out of the folder; copy the file into it"
                    raise InputError(f"payload.files: {message}")
                wanted = path.is_file() and path.resolve() != left_out
            except PermissionError as error:  # the folder may be listed but not entered
                refuse(error)
            if wanted:
                yield inside, path


class _Limited(io.BufferedWriter):
    """A new file that takes at most `SIZE_LIMIT` bytes."""

    def __init__(self, path: Path, folder: Path | None) -> None:
        """Opens the file; `folder`: the payload's folder, for the message."""
        super().__init__(io.FileIO(path, "w"))
        self._folder = folder

    def write(self, data: Buffer, /) -> int:
        if self.tell() + memoryview(data).nbytes > SIZE_LIMIT:
            raise InputError(
                f"payload.files: {self._folder} packs to more than the {SIZE_LIMIT / 1e6:.0f} MB that PanDA takes: "
                "move data out of it and name it under payload.inputs"
            )
        return super().write(data)


@contextlib.contextmanager
def packed_into(path: Path, folder: Path | None) -> Iterator[tarfile.TarFile]:
    """Yields an empty archive, a .tar.gz without a time of its own, to which the files of `folder` are added.

    Raises:
        InputError: the archive gets larger than PanDA takes; no more is read or written then.
    """
    with (
        _Limited(path, folder) as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        yield archive


def add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    """Adds a file with its content and its executable bit only, so that the same files give the same archive.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with path.open("rb") as content:
            info = tarfile.TarInfo(name)
            status = os.fstat(content.fileno())
            info.size, info.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
            archive.addfile(info, content)
    except PermissionError as error:
        raise InputError(f"payload.files: cannot read {path}: {error.strerror}") from error


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    archive.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    _work()
