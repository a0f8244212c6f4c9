"""Downloads a sandbox and unpacks it safely."""

import errno
import gzip
import os
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from typing import Any, Dict, Mapping, Optional, Tuple
from urllib.parse import quote, urlsplit

from hpo_pilot.transformation.job import ExitCode, TransformationFailure

_TRIES = 4
_SECONDS = 60.0
_LATER = frozenset([408, 425, 429, 500, 502, 503, 504, 507])
_BLOCK = 1 << 20
_BESIDE = ("OIDC_AUTH_DIR", "PANDA_AUTH_DIR", "X509_USER_PROXY")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to where the redirect leads."""

    def redirect_request(self, *_: object) -> None:
        return None


def fetch_sandbox(source_url: str, name: str, target: str, limit: int, environment: Mapping[str, str]) -> None:
    """Downloads a file of a server's cache.

    Args:
        source_url: the server, as the job names it.
        name: of the file.
        target: path where it goes.
        limit: bytes that it may have.
        environment: of the pilot: may name a token, which goes to the pilot's own server alone.

    Raises:
        TransformationFailure: it does not come.
        OSError: the disk.
    """
    url = "%s/cache/%s" % (source_url, quote(name))
    if urlsplit(url).scheme not in ("http", "https"):
        raise TransformationFailure(ExitCode.NO_SANDBOX, "--sourceURL %r is no http(s) address" % source_url)
    request = urllib.request.Request(url, headers=_headers(source_url, environment))  # noqa: S310  checked above
    opener = urllib.request.build_opener(_NoRedirects)
    for attempt in range(_TRIES):
        try:
            with opener.open(request, timeout=_SECONDS) as answer, open(target, "wb") as file:
                size, announced = 0, answer.headers.get("Content-Length")
                for block in iter(lambda: answer.read(_BLOCK), b""):
                    size += len(block)
                    if size > limit:
                        raise TransformationFailure(ExitCode.NO_SANDBOX, "%s: larger than %d MB" % (url, limit >> 20))
                    file.write(block)
            if announced is None or int(announced) == size:
                return
            trouble = "it broke off after %d of %s bytes" % (size, announced)
        except urllib.error.HTTPError as error:
            trouble = "the server answered %s %s" % (error.code, error.reason)
            if error.code not in _LATER:
                break
        except urllib.error.URLError as error:
            trouble = str(error.reason)
        except (ConnectionError, EOFError, TimeoutError) as error:
            trouble = str(error) or type(error).__name__
        time.sleep(2**attempt)
    raise TransformationFailure(ExitCode.NO_SANDBOX, "%s: %s" % (url, trouble))


def _headers(source_url: str, environment: Mapping[str, str]) -> Dict[str, str]:
    """A token, for the server that the pilot itself speaks to: the URL comes from a user's task."""
    found = environment.get("OIDC_AUTH_TOKEN") or environment.get("PANDA_AUTH_TOKEN") or ""
    server = environment.get("PANDA_SERVER_URL", "")
    if not found or _place(server) != _place(source_url):
        return {}
    # A file's name, for which Pilot 3 looks in these folders (`locate_token` of its `pilot/util/https.py`).
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


# Unpacking what strangers packed.
#
# Refused, each with its reason: absolute names, `..`, links that lead out, devices and pipes, too many members, too
# many
# bytes unpacked, headers that eat memory, and whatever is no archive.

_MEMBERS = 100000
_HEADER = 1 << 20  # bytes: tarfile reads contents in small pieces, only the extended headers in one

_IMPOSSIBLE = frozenset([errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL])

#: Python's own filter, where it has one (3.12, and the security releases before); `_check` does not rely on it.
_FILTER: Dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


class UnsafeArchive(TransformationFailure):
    """The archive is refused; nothing of it is used."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.BAD_SANDBOX, message)


class _Guarded(gzip.GzipFile):
    """Unpacked bytes, as long as they are no more than was allowed."""

    allowed = 0

    def read(self, size: Optional[int] = -1) -> bytes:
        if size is None or size > _HEADER:
            raise UnsafeArchive("a header of %s bytes" % size)
        data = super().read(size)
        if self.tell() > self.allowed:
            raise UnsafeArchive("more than %d MB unpacked" % (self.allowed >> 20))
        return data


def unpack(archive: str, target: str, limit: int) -> None:
    """Unpacks a .tar.gz into an empty folder.

    Args:
        archive: the file.
        target: exists, and is empty.
        limit: bytes that its contents may have, unpacked.

    Raises:
        UnsafeArchive: it is refused; `target` may hold a part of it.
        OSError: the disk.
    """
    total = 0
    root = os.path.realpath(target)
    try:
        with _Guarded(archive) as raw:
            raw.allowed = limit + (limit >> 3) + (1 << 20)  # tar's own blocks
            with tarfile.open(fileobj=raw, mode="r:") as members:
                for count, member in enumerate(members):
                    total += member.size
                    _check(member, root)
                    if count >= _MEMBERS or total > limit:
                        raise UnsafeArchive("more than %d members or %d MB" % (_MEMBERS, limit >> 20))
                    # What `filter="data"` does with modes: no set-user-id, no writing by others, readable by the owner.
                    member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
                    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
                    members.extract(member, root, **_FILTER)
    except (tarfile.TarError, UnsafeArchive, EOFError, zlib.error, KeyError, RecursionError, ValueError) as error:
        # The last three are how tarfile meets links to themselves and names that no file can have.
        raise _refused(archive, error) from error
    except OSError as error:
        # No number: gzip's own "Not a gzipped file". The others: its members cannot be, whatever the disk.
        if error.errno is None or error.errno in _IMPOSSIBLE:
            raise _refused(archive, error) from error
        raise


def _refused(archive: str, error: Exception) -> UnsafeArchive:
    return UnsafeArchive("%s is refused: %s" % (os.path.basename(archive), error or type(error).__name__))


def _check(member: tarfile.TarInfo, root: str) -> None:
    parts = member.name.split("/")
    if member.name.startswith("/") or ".." in parts:
        raise UnsafeArchive("%r leads out of the folder" % member.name)
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise UnsafeArchive("%r is neither file, folder nor link" % member.name)
    # Earlier members may be links: where does this one really go?
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
