"""Calls to a service: token, TLS, repeated calls after lost answers, and errors as exceptions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError

from hpo_pilot import __version__
from hpo_pilot.advice import printable
from hpo_pilot.errors import GiveUpError, HpoPilotError, InputError, Problem, SearchFileError, TryAgainError
from hpo_pilot.http import open_session
from hpo_pilot.protocol import PROTOCOL, PROTOCOL_HEADER
from hpo_pilot.trust import is_loopback, require_tls

#: Timeouts in seconds: to connect, and for each part of an answer.
_CONNECT, _READ = 10.0, 90.0

#: Pauses before a call is repeated, in seconds.
_PAUSES = (0.2, 0.6, 1.5, 3.0)
_LONGEST_PAUSE = 15.0

#: Statuses of proxies, and of services that start, end or are overloaded: the call is repeated later.
_LATER = (429, 502, 503, 504)

#: `code` in the error document of the service -> exception.
_ERRORS: dict[str, type[HpoPilotError]] = {
    "input": InputError,
    "unauthorized": InputError,
    "forbidden": InputError,
    "not_found": InputError,
    "conflict": TryAgainError,
    "too_large": InputError,
    "try_again": TryAgainError,
    "give_up": GiveUpError,
}

#: A body: bytes, or a function that opens a file with it, called once per attempt.
Body = bytes | Callable[[], BinaryIO]


class LostAnswerError(TryAgainError):
    """The answer is lost: it is unknown whether the service executed the call."""


class _Bearer(AuthBase):
    """Sends the token, which is read again for every call because it may be renewed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def token(self) -> str:
        try:
            text = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it holds no token"
            raise InputError(f"token file {self._path}: {reason}; name yours with --token-file") from error
        if not text or len(text.split()) != 1:
            raise InputError(f"token file {self._path}: holds no token; it must have one line with the token")
        return text

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self.token()}"
        return request


class Connection:
    """A service at a URL, called with the user's token."""

    def __init__(self, url: str, token_file: Path, ca: Path | None = None) -> None:
        """Opens no connection yet.

        Args:
            url: URL of the service, with or without ``/api/v1``.
            token_file: file with the user's token; read again for every call.
            ca: PEM file with the authority of the service's certificate, or a folder of such files; None: the
                authorities that REQUESTS_CA_BUNDLE names, or the system's.

        Raises:
            InputError: the URL is invalid or would send the token without TLS, or a file is missing.
        """
        self.url = _checked_url(url)
        if ca is not None and not ca.exists():
            raise InputError(f"--ca {ca}: there is no such file")
        self._auth = _Bearer(token_file)
        self._auth.token()
        self._session = open_session(self.url, ca)
        self._session.headers.update({"User-Agent": f"hpo-pilot/{__version__}", PROTOCOL_HEADER: str(PROTOCOL)})
        if is_loopback(urlsplit(self.url).hostname or ""):
            self._session.proxies = {}  # plain HTTP stays on this machine: no proxy may see it

    def close(self) -> None:
        """Closes the connections."""
        self._session.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        body: Body | None = None,
        repeat: bool = True,
        timeout: float = _READ,
        stream: bool = False,
    ) -> requests.Response:
        """Calls the service and returns its answer, which has status 2xx or 304.

        Args:
            method: HTTP method.
            path: quoted path below ``/api/v1/``.
            query: parameters of the query.
            headers: additional headers.
            json: body, sent as JSON.
            body: or body, sent as it is.
            repeat: whether the call may be repeated if its answer is lost.
            timeout: seconds for each part of the answer.
            stream: whether the caller reads the body of the answer.

        Raises:
            InputError: the service refuses the input, there is no service at the URL, or its certificate is not
                trusted.
            LostAnswerError: the answer is lost, and the call must not be repeated.
            TryAgainError: the service is out of reach or asks to call later.
            GiveUpError: the service reports that the call cannot succeed.
        """
        how = {"params": query, "headers": headers, "json": json, "timeout": (_CONNECT, timeout), "stream": stream}
        for pause in (*_PAUSES, None):
            try:
                answer = self._once(method, path, body, how)
            except _AwayError as error:
                if not repeat and error.maybe_done:
                    raise LostAnswerError(
                        f"{error}; the call may have had its effect: check before you repeat it"
                    ) from error
                if pause is None:
                    raise TryAgainError(str(error)) from error
                time.sleep(pause)
                continue
            if answer.status_code in _LATER and pause is not None and (repeat or answer.status_code in (429, 503)):
                time.sleep(max(pause, min(_LONGEST_PAUSE, _seconds(answer.headers.get("Retry-After")))))
                continue
            return self._checked_answer(answer, repeat=repeat)
        raise AssertionError("unreachable: the last try returns or raises")

    def ask(self, method: str, path: str, **how: Any) -> Any:
        """Calls the service and returns the JSON document of its answer; arguments and errors as for `call`."""
        answer = self.call(method, path, **how)
        try:
            return answer.json()
        except ValueError as error:
            raise InputError(f"there is no hpo-pilot service at {self.url}: its answer is not JSON") from error

    def download(self, path: str, target: Path, query: Mapping[str, str | int] | None = None) -> None:
        """Downloads the answer to a GET into a file; starts again if the service breaks off.

        Raises:
            InputError: the service refuses it.
            TryAgainError: the service is out of reach, or the file cannot be written.
        """
        for pause in (*_PAUSES, None):
            with self.call("GET", path, query=query, stream=True) as answer:
                try:
                    with target.open("wb") as file:
                        for part in answer.iter_content(1 << 20):
                            file.write(part)
                    return
                except requests.RequestException as error:
                    if pause is None:
                        raise TryAgainError(f"the service {self.url} broke off: {_reason(error)}") from error
                    time.sleep(pause)
                except OSError as error:
                    raise TryAgainError(f"cannot write {target}: {error.strerror}") from error

    def _once(self, method: str, path: str, body: Body | None, how: Mapping[str, Any]) -> requests.Response:
        opened = body() if callable(body) else None
        content: BinaryIO | bytes | None = body if isinstance(body, bytes) else opened
        try:
            url = f"{self.url}/api/v1/{path}"
            # No redirects: the token must not go to another host.
            return self._session.request(method, url, data=content, auth=self._auth, allow_redirects=False, **how)
        except requests.exceptions.SSLError as error:
            raise InputError(
                f"the certificate of {self.url} is not trusted: {_reason(error)}; name the authority that it comes "
                "from with --ca FILE or REQUESTS_CA_BUNDLE"
            ) from error
        except requests.exceptions.InvalidJSONError as error:
            raise InputError(f"NaN and infinity cannot be sent to {self.url}: {error}") from error
        except requests.RequestException as error:
            raise _AwayError(
                f"the service {self.url} cannot be reached: {_reason(error)}", _maybe_sent(error)
            ) from error
        except OSError as error:  # requests raises it if the file of authorities is missing
            raise InputError(f"{error}: see --ca and REQUESTS_CA_BUNDLE") from error
        finally:
            if opened is not None:
                opened.close()

    def _checked_answer(self, answer: requests.Response, *, repeat: bool) -> requests.Response:
        if answer.status_code < 300 or answer.status_code == 304:
            return answer
        if 300 <= answer.status_code < 400:
            to = printable(answer.headers.get("Location", "another place"))
            raise InputError(
                f"{self.url} redirects to {to}, and the token is not sent there: give that URL if it is right"
            )
        if "problem+json" in answer.headers.get("Content-Type", ""):
            raise self._error(answer)
        if answer.status_code >= 500:
            kind = TryAgainError if repeat else LostAnswerError
            raise kind(f"the service {self.url} fails: {answer.status_code} {printable(answer.reason)}")
        raise InputError(
            f"there is no hpo-pilot service at {self.url}: it answers {answer.status_code} {printable(answer.reason)}"
        )

    def _error(self, answer: requests.Response) -> HpoPilotError:
        try:
            document = answer.json()
            kind, message = _ERRORS.get(document["code"], GiveUpError), printable(str(document["message"]))
            problems = [Problem(**problem) for problem in document.get("problems", ())]
        except (ValueError, KeyError, TypeError, AttributeError):
            return GiveUpError(f"the service {self.url} answers {answer.status_code}, and nothing that we understand")
        return SearchFileError(problems) if problems else kind(message)


class _AwayError(Exception):
    """No answer came; `maybe_done` says whether the call may have reached the service."""

    def __init__(self, message: str, maybe_done: bool) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"--service {url}: {error}") from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise InputError(f"--service {url}: expected the URL of a service, as in https://hpo.example.org:8443")
    if parts.username is not None or parts.password is not None:
        raise InputError("--service: a URL with a password in it; the token goes into a file: --token-file")
    require_tls(f"--service {url}", host, has_tls=parts.scheme == "https", remedy="use https://")
    return url.rstrip("/").removesuffix("/api/v1")


def _maybe_sent(error: requests.RequestException) -> bool:
    """Returns True if the failed call may have reached the service."""
    if isinstance(error, requests.ConnectTimeout):
        return False
    cause = error.args[0] if error.args else None
    return not (isinstance(cause, MaxRetryError) and isinstance(cause.reason, NewConnectionError | ConnectTimeoutError))


def _reason(error: requests.RequestException) -> str:
    """Returns the innermost reason, in few words."""
    cause: Any = error.args[0] if error.args else error
    cause = getattr(cause, "reason", cause)
    if isinstance(cause, NewConnectionError | ConnectTimeoutError):
        return str(cause).rpartition(": ")[2]
    return printable(str(cause))[:300]


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0
