"""Files on disk: sandboxes, checkpoints, outputs; and receiving them from a form."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from hpo_pilot.errors import InputError
from hpo_pilot.files import rename_whole

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

log = logging.getLogger(__name__)

# Sandboxes are in ``cache/``, outputs and logs of jobs in ``storage/``. A file is written under another name and then
# renamed, so it is never there in part. Names come from clients: only a single, plain path component is accepted.

MB = 1024 * 1024
SOURCES_LIMIT = 768 * MB  # of sandboxes called sources.*
CACHE_LIMIT = 10 * MB  # of other cache files
LOG_LIMIT = 100 * MB  # of cache files called *.out
CHECKPOINT_LIMIT = 500 * MB  # of one hyper-parameter point's checkpoint
STORAGE_LIMIT = 4096 * MB  # of one output

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+:@=-]{0,199}")
CHECKPOINT_START = "hpo_cp_"
#: Checkpoints of trials that later trials go on from; see `chains`.
CHAIN_START = f"{CHECKPOINT_START}of_"
_CHECKPOINT_IDS = re.compile(r"(\d{1,18})_([A-Za-z0-9.-]{1,100})", re.ASCII)
_DIGEST_NAME = re.compile(r"sources\.([0-9a-f]{64})(?:\.\d+)?\.tar\.gz")  # of hpo-pilot's sandboxes
_PART = ".part"  # no finished file ends so: see `is_safe`


class FileRefused(Exception):
    """The file is refused; the message says why."""


def is_safe(name: str) -> bool:
    """Returns whether a name is one plain path component: no folder, no hidden file, no unusual characters."""
    return _NAME.fullmatch(name) is not None and not name.endswith(_PART)


def plain_name(name: str) -> str:
    """Returns a file's name without folders."""
    return name.rsplit("/", 1)[-1]


def checkpoint_name(task_id: str, sub_id: str) -> str | None:
    """Returns the cache file of a point's checkpoint; None: the ids are not valid."""
    return f"{CHECKPOINT_START}{task_id}_{sub_id}" if _CHECKPOINT_IDS.fullmatch(f"{task_id}_{sub_id}") else None


def checkpoint_task(name: str) -> int:
    """Returns the task of a checkpoint's cache file."""
    return int(name.removeprefix(CHECKPOINT_START).partition("_")[0])


def is_sandbox_name(name: str) -> bool:
    """Returns whether users may upload under this name. Names of checkpoints are refused: jobs would use the file."""
    return is_safe(name) and not name.startswith(CHECKPOINT_START)


def names_content(name: str) -> bool:
    """Returns whether a sandbox's name is the digest of its content: then nobody can take it for another content."""
    return _DIGEST_NAME.fullmatch(name) is not None


def cache_limit(name: str) -> int:
    """Returns the largest size of a cache file with this name, in bytes."""
    if name.endswith(".out"):
        return LOG_LIMIT
    return SOURCES_LIMIT if name.startswith("sources.") else CACHE_LIMIT


class Folder:
    """A folder of files with safe names."""

    def __init__(self, path: Path, *, clean: bool = True) -> None:
        """Makes the folder, readable only by its owner.

        Args:
            path: the folder.
            clean: whether to remove incomplete files of a killed server.

        Raises:
            InputError: it cannot be written.
        """
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for left in path.glob(f"*{_PART}") if clean else ():
                left.unlink()
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; name a writable folder with --files") from error

    def find(self, name: str) -> Path | None:
        """Returns the file with this name; None: there is none, or the name is not safe."""
        path = self.path / name
        return path if is_safe(name) and path.is_file() else None

    def find_whole(self, name: str) -> Path | None:
        """Returns the file with this name as `find` does; one that is not what its name says is damaged and removed."""
        path = self.find(name)
        if path is None or _is_named_rightly(path, name):
            return path
        log.warning("%s is damaged, and is removed: its owner sends it again", path)
        self.remove(name)
        return None

    def __iter__(self) -> Iterator[Path]:
        return (path for path in self.path.iterdir() if is_safe(path.name) and path.is_file())

    def remove(self, name: str) -> bool:
        """Removes a file.

        Returns:
            False: there was none.
        """
        if (path := self.find(name)) is None:
            return False
        path.unlink(missing_ok=True)
        return True

    @contextmanager
    def writing(self) -> Iterator[Upload]:
        """Opens a new file; it is removed at the end unless `Upload.keep` was called."""
        part = self.path / f"{os.urandom(12).hex()}{_PART}"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        upload = Upload(self.path, part, os.fdopen(descriptor, "wb"))
        try:
            yield upload
        finally:
            # Before it is closed, because closing may fail on a full disk.
            part.unlink(missing_ok=True)
            upload.stream.close()


class Upload:
    """A file that is being received."""

    def __init__(self, folder: Path, part: Path, stream: BinaryIO) -> None:
        self._folder = folder
        self._part = part
        self.stream = stream
        self.size = 0
        self._tail = b""

    def write(self, chunk: bytes, limit: int) -> None:
        """Appends a part of the content.

        Raises:
            FileRefused: the file has grown above `limit` bytes.
        """
        self.size += len(chunk)
        if self.size > limit:
            raise FileRefused(f"Exceeded size limit {self.size // MB} MB > {limit // MB} MB.")
        self.stream.write(chunk)
        self._tail = (self._tail + chunk)[-8:]

    def is_named_rightly(self, name: str) -> bool:
        """Returns False if the name is the digest of other content. It reads the file: not for the event loop."""
        self.stream.flush()
        return _is_named_rightly(self._part, name)

    def keep(self, name: str) -> None:
        """Gives the file its name; an older file of this name is replaced. It waits for the disk."""
        self.stream.close()
        rename_whole(self._part, self._folder / name)

    @property
    def checksum(self) -> str | None:
        """Returns the CRC in a gzip file's footer, which panda-client compares; None: the file is too short."""
        return _crc(self._tail)


def _is_named_rightly(path: Path, name: str) -> bool:
    """Returns False if the name is the digest of other content than the file has."""
    if (named := _DIGEST_NAME.fullmatch(name)) is None:
        return True
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == named[1]


def checksum_of(path: Path) -> str | None:
    """Returns `Upload.checksum` of a stored file."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 8))
        return _crc(stream.read(8))


def _crc(footer: bytes) -> str | None:
    return str(struct.unpack("II", footer)[0]) if len(footer) == 8 else None


# Receiving a file that comes as multipart/form-data. panda-client sends sandboxes this way, up to 768 MB, so the
# file is written straight into its place: it is neither kept in memory nor written twice.

_HEADER_LIMIT = 16 * 1024


class _File:
    """Collects the parser's events, which have the names of its methods, for the part named ``file``."""

    def __init__(self, upload: Upload, limit: Callable[[str], int]) -> None:
        self.name: str | None = None
        self.complete = False
        self._upload = upload
        self._limit_of = limit
        self._limit = 0
        self._field = b""
        self._value = b""
        self._disposition = b""
        self._wanted = False

    def on_part_begin(self) -> None:
        self._field = self._value = self._disposition = b""
        self._wanted = False

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]
        self._check(self._field)

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check(self._value)

    def _check(self, header: bytes) -> None:
        if len(header) > _HEADER_LIMIT:
            raise FileRefused("a part's header is too long")

    def on_header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        if options.get(b"name") != b"file" or b"filename" not in options or self.name is not None:
            return
        self.name = options[b"filename"].decode("utf-8", "replace")
        self._limit = self._limit_of(self.name)
        self._wanted = True

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._wanted:
            self._upload.write(data[start:end], self._limit)

    def on_part_end(self) -> None:
        self.complete = self.complete or self._wanted


async def receive_form_file(
    content_type: str, chunks: AsyncIterator[bytes], upload: Upload, limit: Callable[[str], int]
) -> str:
    """Writes the form's ``file`` into `upload`.

    Args:
        content_type: content type of the request.
        chunks: its body.
        upload: where to write.
        limit: bytes that a file of a given name may have; may refuse the name.

    Returns:
        The file's name as it was sent, with its folders; the caller decides whether it is safe.

    Raises:
        FileRefused: the form is malformed or has no such file, or the file is too large.
    """
    kind, options = parse_options_header(content_type.encode("latin-1", "replace"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise FileRefused("Argument error: missing a required argument: 'file'")
    file = _File(upload, limit)
    try:
        events = {name: getattr(file, name) for name in dir(file) if name.startswith("on_")}
        parser = MultipartParser(boundary, cast("MultipartCallbacks", events))
        async for chunk in chunks:
            parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise FileRefused(f"malformed upload: {error}") from error
    if file.name is None or not file.complete:
        raise FileRefused("Argument error: missing a required argument: 'file'")
    return file.name
