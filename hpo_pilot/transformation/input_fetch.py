"""Bringing one input from where it is: by http, with xrdcp, with rucio."""

import http.client
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from typing import IO, Any, Callable, Dict, NamedTuple, Optional, Sequence
from urllib.parse import urlsplit

from hpo_pilot.transformation.failure import ExitCode, TransformationFailure
from hpo_pilot.transformation.input_source import InputKind, InputSource

_TRIES = 4
_STALLED = 60.0  # seconds without a byte
_BLOCK = 1 << 20
_LATER = frozenset([408, 425, 429, 500, 502, 503, 504, 507])
_SAID = 400  # characters of what a tool said last

#: What to do where a tool is missing.
_REMEDY = {
    "xrdcp": "install xrootd-client there, or name the file by a path or an http(s) URL",
    "rucio": "install rucio-clients there and set them up, or name the files by paths or http(s) URLs",
}


class Limits(NamedTuple):
    """How far a fetch may go.

    Attributes:
        size: bytes.
        until: on the monotonic clock.
        stop: says whether to give up now.
    """

    size: int
    until: float
    stop: Callable[[], bool]

    def check(self, source: str) -> None:
        """Raises where it went too far."""
        if self.stop():
            raise TransformationFailure(ExitCode.NO_INPUT, "%s: told to stop while it was fetched" % source)
        if time.monotonic() > self.until:
            raise TransformationFailure(ExitCode.NO_INPUT, "%s: it did not come in time" % source)


class _Later(Exception):
    """It did not come now; it may, another time."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows the web to the web, and never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Optional[urllib.request.Request]:
        allowed = ("https",) if req.type == "https" else ("http", "https")
        if urlsplit(newurl).scheme not in allowed:
            raise urllib.error.HTTPError(newurl, code, "a redirect to another protocol is not followed", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch(
    source: InputSource, folder: str, known: Optional[Dict[str, Any]], limits: Limits
) -> Optional[Dict[str, Any]]:
    """Brings an input.

    Args:
        source: of any kind but a path.
        folder: empty; its files go there.
        known: what the last fetch of it gave back, if its files are still here.
        limits: how far it may go.

    Returns:
        What tells later whether it is still the same; None: it is the same as `known`, and nothing was fetched.

    Raises:
        TransformationFailure: it does not come; the message says what to do.
        OSError: the disk.
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
        raise TransformationFailure(ExitCode.NO_INPUT, "%s: it has no files" % source.where)
    size = sum(os.path.getsize(path) for path in files)
    if size > limits.size:
        raise _too_large(source.where, size, limits)
    return {}


def _fetch_http(source: InputSource, folder: str, known: Dict[str, Any], limits: Limits) -> Optional[Dict[str, Any]]:
    trouble = ""
    for attempt in range(_TRIES):
        try:
            return _download(source, os.path.join(folder, source.name or "file"), known, limits)
        except _Later as later:
            trouble = str(later)
        wake = time.monotonic() + 2**attempt
        while time.monotonic() < wake and attempt < _TRIES - 1:
            limits.check(source.where)
            time.sleep(0.1)
    raise TransformationFailure(ExitCode.NO_INPUT, "%s: %s" % (source.where, trouble))


def _download(source: InputSource, target: str, known: Dict[str, Any], limits: Limits) -> Optional[Dict[str, Any]]:
    headers = {"User-Agent": "hpo-pilot", "Accept-Encoding": "identity"}
    if known.get("etag"):
        headers["If-None-Match"] = known["etag"]
    elif known.get("modified"):
        headers["If-Modified-Since"] = known["modified"]
    request = urllib.request.Request(source.where, headers=headers)  # noqa: S310  http and https alone come here
    try:
        with urllib.request.build_opener(_Redirects).open(request, timeout=_STALLED) as answer:
            announced = answer.headers.get("Content-Length")
            if announced is not None and int(announced) > limits.size:
                raise _too_large(source.where, int(announced), limits)
            size = 0
            with open(target, "wb") as file:
                for block in iter(lambda: _read(answer), b""):
                    limits.check(source.where)
                    size += len(block)
                    if size > limits.size:
                        raise _too_large(source.where, size, limits)
                    file.write(block)
            if announced is not None and int(announced) != size:
                raise _Later("it broke off after %d of %s bytes" % (size, announced))
            return {"etag": answer.headers.get("ETag"), "modified": answer.headers.get("Last-Modified"), "size": size}
    except urllib.error.HTTPError as error:
        if error.code == 304:
            return None
        if error.code in _LATER:
            raise _Later("the server answered %s %s" % (error.code, error.reason)) from error
        said = "%s: the server answered %s %s" % (source.where, error.code, error.reason)
        raise TransformationFailure(ExitCode.NO_INPUT, said) from error
    except urllib.error.URLError as error:
        raise _Later(str(error.reason)) from error
    except (http.client.HTTPException, ConnectionError, ValueError) as error:
        raise _Later(str(error) or type(error).__name__) from error


def _read(answer: Any) -> bytes:
    """The next part; what goes wrong here is the network's, not the disk's."""
    try:
        return bytes(answer.read(_BLOCK))
    except (OSError, http.client.HTTPException) as error:
        raise _Later(str(error) or type(error).__name__) from error


def _too_large(source: str, size: int, limits: Limits) -> TransformationFailure:
    return TransformationFailure(
        ExitCode.NO_INPUT,
        "%s: it has %d MB, and a worker keeps at most %d MB" % (source, size >> 20, limits.size >> 20),
    )


def _run(command: Sequence[str], source: str, limits: Limits) -> None:
    """Runs a tool to its end."""
    program = shutil.which(command[0])
    if program is None:
        raise TransformationFailure(
            ExitCode.NO_INPUT, "%s: this worker has no %s: %s" % (source, command[0], _REMEDY[command[0]])
        )
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
            raise TransformationFailure(
                ExitCode.NO_INPUT, "%s: %s ended with %d: %s" % (source, command[0], status, said or "it said nothing")
            )
