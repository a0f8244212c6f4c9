"""The sandbox, from the server that the job names."""

import os
import time
import urllib.error
import urllib.request
from typing import Dict, Mapping, Tuple
from urllib.parse import quote, urlsplit

from hpo_pilot.transformation.failure import ExitCode, TransformationFailure

_TRIES = 4
_SECONDS = 60.0
_LATER = frozenset([408, 425, 429, 500, 502, 503, 504, 507])
_BLOCK = 1 << 20
_BESIDE = ("OIDC_AUTH_DIR", "PANDA_AUTH_DIR", "X509_USER_PROXY")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to where the redirect leads."""

    def redirect_request(self, *_: object) -> None:
        return None


def fetch(source_url: str, name: str, target: str, limit: int, environment: Mapping[str, str]) -> None:
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
