"""Downloads files, and unpacks sandboxes safely."""

import errno
import gzip
import http.client
import os
import socket
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from contextlib import contextmanager
from email.message import Message
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple, Type
from urllib.parse import quote, urlsplit

from hpo_pilot.transformation.job import ExitCode, TransformationFailure

_TRIES = 4  # of a download
_STALLED = 60.0  # seconds without data after which a download fails
_LATER = frozenset([408, 425, 429, 500, 502, 503, 504, 507])
_BLOCK = 1 << 20
_BESIDE = ("OIDC_AUTH_DIR", "PANDA_AUTH_DIR", "X509_USER_PROXY")


class DownloadFailed(Exception):
    """The download failed.

    Attributes:
        status: HTTP status of a refusal; 0: a retry may succeed.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def download(
    request: urllib.request.Request,
    redirects: Type[urllib.request.HTTPRedirectHandler],
    target: str,
    check: Callable[[int], None],
) -> Message:
    """Downloads a file; tries again if a retry may succeed.

    Args:
        request: with an http or https URL.
        redirects: handles redirects.
        target: path of the file.
        check: is called with the announced size, again and again with the size so far, and with 0 between tries; it
            may raise.

    Returns:
        The answer's headers.

    Raises:
        DownloadFailed: every try failed, or the server refuses the request.
        OSError: reading or writing a file failed.
    """
    opener = urllib.request.build_opener(redirects)
    attempt = 0
    while True:
        try:
            return _try(opener, request, target, check)
        except DownloadFailed as error:
            attempt += 1
            if error.status or attempt == _TRIES:
                raise
        wake = time.monotonic() + 2 ** (attempt - 1)
        while time.monotonic() < wake:
            check(0)
            time.sleep(0.1)


def _try(opener: Any, request: urllib.request.Request, target: str, check: Callable[[int], None]) -> Message:
    try:
        with opener.open(request, timeout=_STALLED) as answer:
            announced = answer.headers.get("Content-Length")
            check(int(announced or 0))
            size = 0
            with open(target, "wb") as file:
                for block in iter(lambda: _read(answer), b""):
                    size += len(block)
                    check(size)
                    file.write(block)
            if announced is not None and int(announced) != size:
                raise DownloadFailed("it broke off after %d of %s bytes" % (size, announced))
            return answer.headers  # type: ignore[no-any-return]
    except urllib.error.HTTPError as error:
        status = 0 if error.code in _LATER else error.code
        raise DownloadFailed("the server answered %s %s" % (error.code, error.reason), status) from error
    except urllib.error.URLError as error:
        raise DownloadFailed(str(error.reason)) from error
    except (http.client.HTTPException, ConnectionError, socket.timeout, ValueError) as error:
        raise DownloadFailed(str(error) or type(error).__name__) from error


def _read(answer: Any) -> bytes:
    """Reads the next block. Errors here are errors of the network, not of the disk."""
    try:
        return bytes(answer.read(_BLOCK))
    except (OSError, http.client.HTTPException) as error:
        raise DownloadFailed(str(error) or type(error).__name__) from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a redirect would send the token to another server."""

    def redirect_request(self, *_: object) -> None:
        return None


def fetch_sandbox(source_url: str, name: str, target: str, limit: int, environment: Mapping[str, str]) -> None:
    """Downloads a file from a server's cache.

    Args:
        source_url: the server that the job names.
        name: name of the file.
        target: path of the downloaded file.
        limit: largest size in bytes.
        environment: environment of the pilot. It may name a token, which is sent only to the pilot's own server.

    Raises:
        TransformationFailure: the download failed.
        OSError: reading or writing a file failed.
    """
    url = "%s/cache/%s" % (source_url, quote(name))
    if urlsplit(url).scheme not in ("http", "https"):
        raise TransformationFailure(ExitCode.NO_SANDBOX, "--sourceURL %r is not an http(s) address" % source_url)
    request = urllib.request.Request(url, headers=_headers(source_url, environment))  # noqa: S310  checked above

    def check(size: int) -> None:
        if size > limit:
            raise TransformationFailure(ExitCode.NO_SANDBOX, "%s: larger than %d MB" % (url, limit >> 20))

    try:
        download(request, _NoRedirects, target, check)
    except DownloadFailed as error:
        raise TransformationFailure(ExitCode.NO_SANDBOX, "%s: %s" % (url, error)) from error


def _headers(source_url: str, environment: Mapping[str, str]) -> Dict[str, str]:
    """Returns headers with the pilot's token, only for the pilot's own server: the URL comes from a user's task."""
    found = environment.get("OIDC_AUTH_TOKEN") or environment.get("PANDA_AUTH_TOKEN") or ""
    server = environment.get("PANDA_SERVER_URL", "")
    if not found or _place(server) != _place(source_url):
        return {}
    # The variable names a file. Pilot 3 looks for it in these folders (`locate_token` of its `pilot/util/https.py`).
    beside = next((environment[key] for key in _BESIDE if key in environment), "")
    folders = [os.path.dirname(beside)] + [environment.get(key, "") for key in ("PILOT_SOURCE_DIR", "PILOT_WORK_DIR")]
    for folder in folders:
        path = os.path.join(folder, found)
        if os.path.isfile(path):
            with open(path) as file:
                headers = {"Authorization": "Bearer " + file.read().strip()}
            origin = environment.get("OIDC_AUTH_ORIGIN") or environment.get("PANDA_AUTH_ORIGIN")
            return dict(headers, Origin=origin) if origin else headers
    return {}


def _place(url: str) -> Tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


# Archives come from users and are not trusted.

_MEMBERS = 100000
_HEADER = 1 << 20  # bytes: tarfile reads contents in small blocks, but an extended header at once

_IMPOSSIBLE = frozenset([errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL])

#: Python's own filter, if it has one (3.12 and earlier security releases); `_check` does not rely on it.
_FILTER: Dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


class UnsafeArchive(TransformationFailure):
    """The archive is refused."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.BAD_SANDBOX, message)


class TooLarge(UnsafeArchive):
    """The archive has too many members or bytes."""


class _Guarded(gzip.GzipFile):
    """Unpacks at most `allowed` bytes."""

    allowed = 0

    def read(self, size: Optional[int] = -1) -> bytes:
        if size is None or size > _HEADER:
            raise UnsafeArchive("a header of %s bytes" % size)
        data = super().read(size)
        if self.tell() > self.allowed:
            raise TooLarge("more than %d MB unpacked" % (self.allowed >> 20))
        return data


def unpack(archive: str, target: str, limit: int) -> None:
    """Unpacks a .tar.gz of an untrusted source into an empty folder.

    It refuses absolute names, `..`, links that lead out of the folder, devices and pipes, too many members, too many
    bytes, large headers, and files that are not archives.

    Args:
        archive: the file.
        target: an existing empty folder.
        limit: largest unpacked size in bytes.

    Raises:
        UnsafeArchive: the archive is refused; `target` may hold a part of it.
        OSError: reading or writing a file failed.
    """
    root = os.path.realpath(target)
    with opened(archive, limit) as members:
        for member in bounded(members, limit):
            _check(member, root)
            # The modes of `filter="data"`: no set-user-id, no writing by others, readable by the owner.
            member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
            member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
            members.extract(member, root, **_FILTER)


def check_bounds(archive: str, limit: int) -> None:
    """Refuses an archive with too many members or bytes before any of it is unpacked; see `unpack`.

    Raises:
        UnsafeArchive: the archive is refused.
        OSError: reading the file failed.
    """
    with opened(archive, limit) as members:
        for _ in bounded(members, limit):
            pass


def bounded(members: tarfile.TarFile, limit: int) -> Iterator[tarfile.TarInfo]:
    """Yields the members of an archive from `opened`; refuses too many of them, and more than `limit` bytes."""
    total = 0
    for count, member in enumerate(members):
        total += member.size
        if count >= _MEMBERS or total > limit:
            raise TooLarge("more than %d members or %d MB" % (_MEMBERS, limit >> 20))
        yield member


@contextmanager
def opened(archive: str, limit: int) -> Iterator[tarfile.TarFile]:
    """Opens a .tar.gz of an untrusted source; errors that it causes within the ``with`` block become UnsafeArchive.

    At most `limit` bytes of its members are read, and no large headers: tarfile would keep one in memory.
    """
    try:
        with _Guarded(archive) as raw:
            raw.allowed = limit + (limit >> 3) + (1 << 20)  # tar's own blocks
            with tarfile.open(fileobj=raw, mode="r:") as members:
                yield members
    except (tarfile.TarError, UnsafeArchive, EOFError, zlib.error, KeyError, RecursionError, ValueError) as error:
        # tarfile raises the last three for links to themselves and impossible file names.
        raise _refused(archive, error) from error
    except OSError as error:
        # Without an error number: gzip's "Not a gzipped file". Impossible numbers: no disk could hold these members.
        if error.errno is None or error.errno in _IMPOSSIBLE:
            raise _refused(archive, error) from error
        raise


def _refused(archive: str, error: Exception) -> UnsafeArchive:
    kind = TooLarge if isinstance(error, TooLarge) else UnsafeArchive
    return kind("%s is refused: %s" % (os.path.basename(archive), error or type(error).__name__))


def _check(member: tarfile.TarInfo, root: str) -> None:
    parts = member.name.split("/")
    if member.name.startswith("/") or ".." in parts:
        raise UnsafeArchive("%r leads out of the folder" % member.name)
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise UnsafeArchive("%r is neither file, folder nor link" % member.name)
    # Earlier members may be links, so the real path counts.
    folder = os.path.realpath(os.path.join(root, *parts[:-1]))
    where = [folder]
    if member.issym():
        where.append(os.path.realpath(os.path.join(folder, member.linkname)))
    elif member.islnk():
        where.append(os.path.realpath(os.path.join(root, member.linkname)))
    else:
        where.append(os.path.realpath(os.path.join(root, member.name)))
    for path in where:
        if path != root and not path.startswith(root + os.sep):
            raise UnsafeArchive("%r leads out of the folder, through a link" % member.name)
