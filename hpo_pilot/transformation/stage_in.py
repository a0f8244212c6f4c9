"""Fetches the inputs of a payload into the job's folder before its command starts.

Fetched files are kept in a cache that many jobs share; each job gets links to them. Inputs that are paths are linked
directly. The names of all inputs are written to a file, from which the payload runner lists them for the payload.
"""

import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from enum import Enum
from typing import IO, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import unquote, urlsplit

from hpo_pilot.transformation.job import Arguments, ExitCode, PayloadSettings, TransformationFailure
from hpo_pilot.transformation.sandbox import DownloadFailed, download

#: Rucio's data identifier, scope:name.
_DID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,29}:[A-Za-z0-9][A-Za-z0-9._:+/-]{0,249}")
_FILE_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,250}")
_PATH_STARTS = ("/", "./", "../", "~")


class InputKind(Enum):
    """How an input is fetched."""

    PATH = "path"  #: a path on the worker's file system
    HTTP = "http"  #: download over http or https
    ROOT = "root"  #: with xrdcp
    RUCIO = "rucio"  #: with rucio download


class InputSource(NamedTuple):
    """One entry of a payload's inputs.

    Attributes:
        where: path, URL or data identifier.
        name: name of the file in the job's folder; None: not known before the fetch, which may give several files.
    """

    kind: InputKind
    where: str
    name: Optional[str]


def parse_source(text: str) -> InputSource:
    """Parses one entry of a payload's inputs.

    Raises:
        ValueError: the entry cannot be fetched; the message says what is wrong and what to do.
    """
    scheme, separator, rest = text.partition("://")
    if separator and re.match(r"[A-Za-z][A-Za-z0-9+.-]*$", scheme):
        return _url(text, scheme.lower(), rest)
    if not text.startswith(_PATH_STARTS) and _DID.fullmatch(text.rstrip("/")):
        return InputSource(InputKind.RUCIO, text.rstrip("/"), None)
    return _path(text)


def _url(text: str, scheme: str, rest: str) -> InputSource:
    if scheme == "file":
        return _path("/" + rest.lstrip("/"))
    if scheme not in ("http", "https", "root", "roots", "xroot"):
        raise ValueError(
            "%s:// cannot be fetched: give a path, an http, https or root URL, or a Rucio dataset (scope:name)" % scheme
        )
    try:
        parts = urlsplit(text)
        host, secret = parts.hostname, parts.password
    except ValueError as error:
        raise ValueError("is not a URL: %s" % error) from error
    if not host or any(ord(sign) <= 32 or sign == "\x7f" for sign in text):
        raise ValueError("is not a URL: it has no server name, or it contains blanks")
    if secret is not None or (parts.username is not None and scheme in ("http", "https")):
        raise ValueError(
            "contains a user name or password, which all who see the search could read: use an address without them"
        )
    name = unquote(parts.path).rstrip("/").rpartition("/")[2]
    _check_name(name)
    return InputSource(InputKind.HTTP if scheme in ("http", "https") else InputKind.ROOT, text, name)


def _path(text: str) -> InputSource:
    if glob.has_magic(text):
        return InputSource(InputKind.PATH, text, None)
    name = os.path.basename(os.path.normpath(text))
    _check_name(name)
    return InputSource(InputKind.PATH, text, name)


def _check_name(name: str) -> None:
    if name in ("", ".", "..") or not _FILE_NAME.match(name) or name.startswith("-"):
        raise ValueError("names no file")


class InputMissing(TransformationFailure):
    """An input cannot be fetched or linked."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.NO_INPUT, message)


_SAID = 400  # characters from the end of a tool's output

#: What to do if a tool is missing.
_REMEDY = {
    "xrdcp": "install xrootd-client there, or name the file by a path or an http(s) URL",
    "rucio": "install rucio-clients there and set them up, or name the files by paths or http(s) URLs",
}


class FetchLimits(NamedTuple):
    """Limits of a fetch.

    Attributes:
        size: largest size in bytes.
        until: deadline on the monotonic clock.
        stop: returns whether to give up now.
    """

    size: int
    until: float
    stop: Callable[[], bool]

    def check(self, source: str) -> None:
        """Raises TransformationFailure if the fetch must stop or its time is over."""
        if self.stop():
            raise InputMissing("%s: stopped during the download" % source)
        if time.monotonic() > self.until:
            raise InputMissing("%s: the download took too long" % source)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects between http and https, but never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Optional[urllib.request.Request]:
        allowed = ("https",) if req.type == "https" else ("http", "https")
        if urlsplit(newurl).scheme not in allowed:
            raise urllib.error.HTTPError(newurl, code, "a redirect to another protocol is not followed", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch_input(
    source: InputSource, folder: str, known: Optional[Dict[str, Any]], limits: FetchLimits
) -> Optional[Dict[str, Any]]:
    """Fetches an input.

    Args:
        source: an input of any kind except a path.
        folder: an empty folder for the files.
        known: result of the last fetch, if its files are still in the cache.
        limits: limits of size and time.

    Returns:
        Metadata that later shows whether the input has changed; None: unchanged since `known`, nothing was fetched.

    Raises:
        TransformationFailure: the fetch failed; the message says what to do.
        OSError: reading or writing a file failed.
    """
    if source.kind is InputKind.HTTP:
        return _fetch_http(source, folder, known or {}, limits)
    if source.kind is InputKind.ROOT:
        target = os.path.join(folder, source.name or "file")
        _run(["xrdcp", "--nopbar", "--force", source.where, target], source.where, limits)
    else:
        _run(["rucio", "download", "--no-subdir", "--dir", folder, source.where], source.where, limits)
    files = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
    if not files:
        raise InputMissing("%s: it has no files" % source.where)
    size = sum(os.path.getsize(path) for path in files)
    if size > limits.size:
        raise _too_large(source.where, size, limits)
    return {}


def _fetch_http(
    source: InputSource, folder: str, known: Dict[str, Any], limits: FetchLimits
) -> Optional[Dict[str, Any]]:
    headers = {"User-Agent": "hpo-pilot", "Accept-Encoding": "identity"}
    if known.get("etag"):
        headers["If-None-Match"] = known["etag"]
    elif known.get("modified"):
        headers["If-Modified-Since"] = known["modified"]
    request = urllib.request.Request(source.where, headers=headers)  # noqa: S310  http and https alone come here
    target = os.path.join(folder, source.name or "file")

    def check(size: int) -> None:
        limits.check(source.where)
        if size > limits.size:
            raise _too_large(source.where, size, limits)

    try:
        got = download(request, _Redirects, target, check)
        return {"etag": got.get("ETag"), "modified": got.get("Last-Modified"), "size": os.path.getsize(target)}
    except DownloadFailed as error:
        if error.status == 304:
            return None
        raise InputMissing("%s: %s" % (source.where, error)) from error


def _too_large(source: str, size: int, limits: FetchLimits) -> TransformationFailure:
    return InputMissing("%s: it has %d MB, and a worker keeps at most %d MB" % (source, size >> 20, limits.size >> 20))


def _run(command: Sequence[str], source: str, limits: FetchLimits) -> None:
    """Runs a tool to its end."""
    program = shutil.which(command[0])
    if program is None:
        raise InputMissing("%s: this worker has no %s: %s" % (source, command[0], _REMEDY[command[0]]))
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [program, *command[1:]], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while True:
                try:
                    status = process.wait(0.2)
                    break
                except subprocess.TimeoutExpired:
                    limits.check(source)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if status:
            output.seek(0)
            said = " ".join(output.read().decode("utf-8", "replace").split())[-_SAID:]
            raise InputMissing("%s: %s ended with %d: %s" % (source, command[0], status, said or "no message"))


_LOOK = 0.2  # seconds between tries to lock an entry that another job fetches


class CacheEntry:
    """One cached input. While it is held, no other process fetches, replaces or removes it.

    ::

        KEY/files/     the fetched files
        KEY/meta.json  the source, and metadata that show whether it has changed
        .KEY.new/      a fetch in progress
        KEY.lock
    """

    def __init__(self, cache: str, key: str) -> None:
        self.folder, self.key = os.path.join(cache, key), key
        self.new = os.path.join(cache, ".%s.new" % key)

    @property
    def meta(self) -> Optional[Dict[str, Any]]:
        """Metadata of the last fetch; None: the entry does not exist, or was damaged by a power cut."""
        try:
            with open(os.path.join(self.folder, "meta.json")) as file:
                found = json.load(file)
            return found if found["sizes"] == [os.path.getsize(path) for path in self.files()] else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def files(self) -> List[str]:
        """Returns the paths of its files, sorted."""
        return _files_in(self.folder)

    def begin(self) -> str:
        """Returns an empty folder for a fetch; the remains of an interrupted fetch are removed."""
        shutil.rmtree(self.new, ignore_errors=True)
        os.makedirs(os.path.join(self.new, "files"))
        return os.path.join(self.new, "files")

    def publish(self, meta: Dict[str, Any]) -> None:
        """Replaces the entry with the completed fetch."""
        paths = _files_in(self.new)
        for path in paths:
            os.chmod(path, 0o444)  # jobs get links to the file and must not change it
            with open(path, "rb") as file:
                os.fsync(file.fileno())  # otherwise a power cut may leave other content of the same size
        self.note(dict(meta, sizes=[os.path.getsize(path) for path in paths]), self.new)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.rename(self.new, self.folder)

    def note(self, meta: Dict[str, Any], folder: str = "") -> None:
        """Stores `meta` and the time of this check."""
        path = os.path.join(folder or self.folder, "meta.json")
        with open(path + ".new", "w") as file:
            json.dump(dict(meta, checked=time.time()), file)
        os.rename(path + ".new", path)


def _files_in(entry: str) -> List[str]:
    folders = sorted(os.walk(os.path.join(entry, "files")))
    return [os.path.join(where, name) for where, _, names in folders for name in sorted(names)]


class InputCache:
    """A folder of cached inputs; the least recently used ones are removed when it grows too large.

    Several pilots may share it.
    """

    def __init__(self, folder: str, limit: int) -> None:
        """Makes no folder yet: the first use makes it. `limit`: size of all entries in bytes."""
        self.folder, self.limit = folder, limit

    @contextmanager
    def held(self, source: str, until: float, stop: Callable[[], bool]) -> Iterator[CacheEntry]:
        """Holds the entry of a source for the length of a block.

        Args:
            source: path, URL or data identifier.
            until: deadline (`time.monotonic`) for waiting while another job fetches it.
            stop: returns whether to give up now.

        Raises:
            TransformationFailure: another job still holds the entry at the deadline.
        """
        key = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:40]
        os.makedirs(self.folder, exist_ok=True)
        lock = os.open(os.path.join(self.folder, key + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not _locked(lock):
                if stop() or time.monotonic() > until:
                    raise InputMissing("%s: another job is still fetching it" % source)
                time.sleep(_LOOK)
            entry = CacheEntry(self.folder, key)
            yield entry
            if os.path.isdir(entry.folder):
                os.utime(entry.folder, None)
        finally:
            os.close(lock)

    def make_room(self) -> None:
        """Removes entries until the rest fits; the newest entry and entries that are held stay."""
        entries = []
        for name in os.listdir(self.folder):
            path = os.path.join(self.folder, name)
            if os.path.isdir(path) and not name.startswith("."):
                with suppress(FileNotFoundError):  # another job has just removed or replaced it
                    entries.append((os.stat(path).st_mtime, name, _size(path)))
        total = sum(size for _, _, size in entries)
        for _, name, size in sorted(entries)[:-1]:
            if total <= self.limit:
                return
            lock = os.open(os.path.join(self.folder, name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if _locked(lock):
                    shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
                    total -= size
            finally:
                os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size(folder: str) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            total += os.lstat(os.path.join(where, name)).st_size
    return total


#: Names of the inputs in the job's folder, in order.
STAGED_FILE = "hpo_pilot_inputs.json"
#: Folder of the payload's files in a sandbox whose jobs run several points.
_SERIES_FOLDER = "payload"

#: Names the cache folder under a pilot that is not ours; default: the job's own folder, so that each job fetches anew.
CACHE_VARIABLE = "HPO_PILOT_INPUT_CACHE"
SIZE_LIMIT = 100000 << 20  # bytes of one input, and of all that are kept
PATIENCE = 3600.0  # seconds that one input may take
_FRESH = 600.0  # seconds for which a fetched http file counts as unchanged


class StageIn:
    """Fetches inputs; several jobs may use it at the same time."""

    def __init__(self, cache: str, limit: int = SIZE_LIMIT, stop: Callable[[], bool] = lambda: False) -> None:
        """Fetches nothing yet.

        Args:
            cache: folder of the cache; empty: the job's own folder.
            limit: largest size of one input, and of the whole cache, in bytes.
            stop: returns whether to give up now.
        """
        self._cache, self._limit, self._stop = cache, limit, stop

    def bring(self, work: str, brought: Sequence[str] = ()) -> List[str]:
        """Puts the inputs of the payload's document into `work` and lists them for the payload runner.

        Args:
            work: a job's folder with its sandbox. Nothing happens if its document names no inputs.
            brought: names of inputs that the pilot has put there; such a pilot fetches the datasets itself.

        Returns:
            Files and folders elsewhere that the inputs link to; a container must mount them.

        Raises:
            TransformationFailure: the document is invalid, or an input cannot be fetched; the message says what to do.
            OSError: reading or writing a file failed.
        """
        wanted = PayloadSettings.read(work).inputs
        if not wanted:
            return []
        cache = InputCache(self._cache or os.path.join(work, ".hpo_pilot_inputs"), self._limit)
        names, elsewhere = list(brought), []  # type: List[str], List[str]
        for text in wanted:
            try:
                source = parse_source(text)
            except ValueError as error:
                raise InputMissing("the input %s: %s" % (text, error)) from error
            if source.kind is InputKind.RUCIO and brought:
                continue
            if source.kind is InputKind.PATH:
                for path, name in _paths(source):
                    _place(path, name, work, names, os.symlink)
                    elsewhere.append(path)
            else:
                self._bring_cached(source, cache, work, names)
        with open(os.path.join(work, STAGED_FILE), "w") as file:
            json.dump(names, file)
        return elsewhere

    def _bring_cached(self, source: InputSource, cache: InputCache, work: str, names: List[str]) -> None:
        limits = FetchLimits(self._limit, time.monotonic() + PATIENCE, self._stop)
        with cache.held(source.where, limits.until, self._stop) as entry:
            fetched = self._update(source, entry, limits)
            for path in entry.files():
                _place(path, os.path.basename(path), work, names, _link_or_copy)
        if fetched:
            cache.make_room()

    @staticmethod
    def _update(source: InputSource, entry: CacheEntry, limits: FetchLimits) -> bool:
        """Fetches the entry if it is missing or out of date; returns whether anything was fetched."""
        known = entry.meta
        may_change = source.kind is InputKind.HTTP
        if known is not None and not (may_change and time.time() - known.get("checked", 0.0) > _FRESH):
            return False
        try:
            meta = fetch_input(source, entry.begin(), known, limits)
            if meta is None:
                entry.note(known or {})
                return False
            entry.publish(dict(meta, source=source.where))
            return True
        except TransformationFailure as failure:
            if known is None or limits.stop():
                raise
            print("WARNING : %s; the files of the last fetch are used" % failure)
            return False
        finally:
            shutil.rmtree(entry.new, ignore_errors=True)


def _paths(source: InputSource) -> List[Tuple[str, str]]:
    """Returns (real path, name) of the files or folders that match a path or pattern."""
    found = sorted(glob.glob(source.where)) if source.name is None else [source.where]
    found = [path for path in found if os.path.exists(path)]
    if not found:
        what = "no file matches it" if source.name is None else "it is not there"
        raise InputMissing(
            "the input %s: %s on %s: put it where every worker sees it, or name it by a URL"
            % (source.where, what, os.uname().nodename)
        )
    return [(os.path.realpath(path), os.path.basename(os.path.normpath(path))) for path in found]


def _place(path: str, name: str, work: str, names: List[str], link: Callable[[str, str], None]) -> None:
    taken = [os.path.join(work, name), os.path.join(work, _SERIES_FOLDER, name)]
    if name in names or any(map(os.path.lexists, taken)):
        whose = "two inputs have" if name in names else "the payload's files and an input have"
        raise InputMissing("%s the name %s: rename one of the two" % (whose, name))
    link(path, taken[0])
    names.append(name)


def _link_or_copy(path: str, target: str) -> None:
    try:
        os.link(path, target)
    except OSError:  # another disk, or no support for hard links
        shutil.copy(path, target)


def link_inputs(arguments: Arguments, source: str, folder: str) -> Dict[str, str]:
    """Links the job's inputs into the folder where the command runs, and writes their lists.

    Args:
        arguments: arguments of the job.
        source: folder in which the pilot put them.
        folder: where the command runs.

    Returns:
        The value of each `%NAME` in the command: file names, separated by commas.

    Raises:
        TransformationFailure: an input is missing.
    """
    streams = dict(arguments.input_map) or {"IN": arguments.inputs} if arguments.inputs or arguments.input_map else {}
    found = {}
    for name in set(arguments.inputs).union(*streams.values()):
        path, link = os.path.join(source, name), os.path.join(folder, name)
        if os.path.basename(name) != name or name in (".", "..") or not os.path.exists(path):
            raise InputMissing("the input file %s is not there" % name)
        if not os.path.lexists(link):
            os.symlink(os.path.relpath(path, os.path.realpath(folder)), link)
    for stream, names in streams.items():
        found[stream] = ",".join(names)
        if stream in arguments.input_lists:
            where = os.path.join(folder, os.path.basename(arguments.input_lists[stream]))
            with open(where, "w") as file:
                json.dump(list(names), file)
    return found
