"""The servers as child processes: start and restart, network options, own tokens, the REST API, the web pages.

`ChildProcess` supervises one process. `NetworkOptions` holds the network options of `hpo-pilot serve`. `OwnTokens`
renews the tokens of the work folder. `ApiProcess` runs the REST API with the pages beside a service, and `serve_pages`
runs them alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import requests

from hpo_pilot.errors import GiveUpError, InputError, TryAgainError
from hpo_pilot.files import write_whole
from hpo_pilot.http import open_session
from hpo_pilot.logs import LogFile, last_line
from hpo_pilot.server.tokens import Authority, Role, TokenRefused, Tokens, write_private
from hpo_pilot.steering.workdir import STORE_VARIABLE, WorkDir, nickname
from hpo_pilot.trust import LISTEN_WITH_TLS, hashed_folder, is_loopback, is_wildcard, require_tls, served_name

#: A child that ends this many times within `_WINDOW` seconds is not restarted.
_TRIES = 5
_WINDOW = 30.0

log = logging.getLogger(__name__)


class ChildProcess:
    """One supervised process.

    The child inherits one end of a pair of sockets, the lifeline; this process holds the other end. When this process
    ends, even by SIGKILL, its end closes, and the child ends itself. A server writes a byte to the lifeline when it
    listens. A pilot with ``--wait`` begins when it gets a byte: `release`.
    """

    def __init__(
        self, name: str, argv: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Prepares.

        Args:
            name: for messages.
            argv: the command; ``{lifeline}`` is replaced by the number of the file descriptor.
            log_file: receives its output; its size is bounded, see `LogFile`.
            environment: variables in addition to those of this process.
        """
        self.name = name
        self._argv = list(argv)
        self.log = LogFile(log_file)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._listens = False
        self._changing = threading.RLock()  # one thread may wait for its start while another stops it
        self._starts: list[float] = []

    def start(self) -> None:
        """Starts the process. `check` notices its end."""
        self._close_lifeline()
        self._lifeline, inherited = socket.socketpair()
        with inherited, self.log.opened() as log_file:
            self._process = subprocess.Popen(
                [part.replace("{lifeline}", str(inherited.fileno())) for part in self._argv],
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                pass_fds=[inherited.fileno()],
                start_new_session=True,  # Ctrl-C reaches only this process, which then ends the child.
            )
        self._starts = [*(t for t in self._starts if time.monotonic() - t < _WINDOW), time.monotonic()]

    def release(self) -> None:
        """Lets a child begin that waits for a byte. One that has ended gets none; `check` notices its end."""
        if self._lifeline is not None:
            with contextlib.suppress(OSError):
                self._lifeline.send(b"\n")

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it runs and before its start."""
        process = self._process
        return None if process is None else process.poll()

    @property
    def is_started(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._process is not None

    def listens(self, seconds: float) -> bool:
        """Waits until the process has said that it listens, at most `seconds`. Returns whether it has."""
        lifeline = self._lifeline
        if not self._listens and lifeline is not None:
            try:
                lifeline.settimeout(seconds)
                self._listens = bool(lifeline.recv(1))
            except TimeoutError:
                return False
            except OSError:
                pass  # Another thread stops it.
            if not self._listens:
                time.sleep(seconds)  # It has ended, or is about to.
        return self._listens

    def check(self) -> bool:
        """Restarts the process if it has ended, and bounds its log while it runs.

        Returns:
            True if it was restarted.

        Raises:
            GiveUpError: it ends again and again; the message has the last line of its log.
        """
        with self._changing:
            code = self.exit_code
            if code is None:
                self.log.bound()
                return False
            if len(self._starts) >= _TRIES:
                raise GiveUpError(
                    f"the {self.name} ended {_TRIES} times within {_WINDOW:.0f} s (status {code}): {self.last_line()}; "
                    f"its log is {self.log.path}"
                )
            log.warning("the %s ended (status %s) and is started again", self.name, code)
            self.start()
            return True

    def last_line(self) -> str:
        """Returns the last line of its log."""
        try:
            return last_line(self.log.path)
        except OSError:
            return ""

    def stop(self, seconds: float = 10.0) -> None:
        """Ends the process with SIGTERM, and after `seconds` with SIGKILL."""
        with self._changing:
            process, self._process = self._process, None
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(seconds)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            self._close_lifeline()

    def _close_lifeline(self) -> None:
        self._listens = False
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None


_START_SECONDS = 60.0
_PAUSE = 0.05


def wait_until_answering(
    child: ChildProcess,
    url: str,
    call: str,
    authorities: Path | None,
    headers: Callable[[], Mapping[str, str]] = dict,
    seconds: float = _START_SECONDS,
) -> None:
    """Waits until a server answers a call with success. A server that is killed meanwhile is started again.

    Nothing is sent before the child listens: until then another program may hold the port.

    Args:
        child: the server, started.
        url: its address, scheme://host:port.
        call: a call of its API, below ``/api/v1/``.
        authorities: folder of certificate authorities; None: the system's.
        headers: returns the headers; called for each try.
        seconds: the longest wait.

    Raises:
        TryAgainError: the server does not start; the message has the reason.
        InputError: its options are wrong, or its certificate does not fit its address.
        GiveUpError: it is killed again and again.
    """
    end = time.monotonic() + seconds
    trouble = ""
    with open_session(url, authorities) as session:
        while child.is_started and time.monotonic() < end:
            if (code := child.exit_code) is not None and code > 0:
                # Wrong options need a user. The exit code tells a supervisor such as systemd not to restart.
                wrong = InputError if code == InputError.exit_code else TryAgainError
                raise wrong(f"the {child.name} did not start: {child.last_line()}")
            child.check()
            if not child.listens(_PAUSE):
                continue
            try:
                if session.get(f"{url}/api/v1/{call}", headers=dict(headers()), timeout=5).ok:
                    return
            except requests.exceptions.SSLError as error:
                raise InputError(
                    f"the certificate of the {child.name} is not valid for {url}: {error}; name its authorities with "
                    "--ca, or the host that it is made for with --public-url"
                ) from error
            except requests.RequestException as error:
                trouble = f": {error}"
            time.sleep(_PAUSE)
    raise TryAgainError(
        f"the {child.name} did not answer at {url} within {seconds:.0f} s{trouble}; see {child.log.path}"
    )


# --- network options and tokens ---

#: Name of the PEM file with all authorities in the folder of authorities.
AUTHORITIES = "ca.pem"


@dataclass(frozen=True)
class NetworkOptions:
    """The network options of `hpo-pilot serve`. Default: plain HTTP, this machine only.

    Attributes:
        host: name or address to listen on.
        port: None: a free port.
        certificate: TLS certificate with its chain, PEM; None: plain HTTP.
        key: private key of the certificate.
        authority: PEM file of the certificate's authorities; None: the system's authorities know it.
        public_url: the address for clients, if it differs from `host` and `port`.
        behind_proxy: a TLS proxy is in front; allows plain HTTP on a network address.
        issuers: file of OIDC issuers whose tokens are accepted too.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    public_url: str | None = None
    behind_proxy: bool = False
    issuers: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InputError("--tls-cert or --tls-key is missing: give both, or neither")
        if self.behind_proxy and self.public_url is None:
            raise InputError("--insecure-behind-proxy needs --public-url: the URL of the proxy for pilots and users")
        if self.public_url is not None:
            parts = urlsplit(self.public_url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
                raise InputError(f"--public-url {self.public_url}: give a URL such as https://panda.example.org:25443")
        has_tls = self.has_tls or self.behind_proxy
        require_tls(f"--host {self.host}", self.host, has_tls=has_tls, remedy=LISTEN_WITH_TLS)

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach the server."""
        return self.behind_proxy or self.public_url is not None or not is_loopback(self.host)

    @property
    def has_tls(self) -> bool:
        """Whether the server itself uses TLS."""
        return self.certificate is not None

    def url(self, port: int) -> str:
        """Returns the address for clients of a server on this port.

        Raises:
            InputError: the certificate has no host name.
        """
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        scheme = "https" if self.has_tls else "http"
        if self.certificate is not None:
            host = served_name(self.certificate)
        else:
            host = _own_name() if is_wildcard(self.host) else self.host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def authorities(self, workdir: WorkDir) -> Path | None:
        """Returns the folder of authorities that clients must trust; None: the system's, or no TLS.

        Raises:
            InputError: the file of `authority` has no certificate.
        """
        if self.authority is None:
            return None
        folder = hashed_folder(self.authority, workdir.tls)
        write_whole(folder / AUTHORITIES, self.authority.read_text(), 0o644)
        return folder

    def server_options(self) -> list[str]:
        """Returns these options for ``python -m hpo_pilot.server``, without the port."""
        files = {"--tls-cert": self.certificate, "--tls-key": self.key, "--issuers": self.issuers}
        options = [word for name, path in files.items() if path is not None for word in (name, str(path))]
        return ["--host", self.host, *options, *(["--insecure-behind-proxy"] if self.behind_proxy else [])]


def _own_name() -> str:
    """Returns a name of this machine that resolves here; else the loopback address."""
    for name in (socket.getfqdn(), socket.gethostname()):
        if not name.startswith("localhost"):
            try:
                socket.getaddrinfo(name, None)
            except OSError:
                continue
            return name
    return "127.0.0.1"


#: Lifetime of our own tokens, and the remaining time at which they are renewed, in days.
_DAYS = 30.0
_LEFT = 10.0

_DAY = 86400.0

#: Seconds between two checks of the tokens.
_LOOK_EVERY = 600.0


class OwnTokens:
    """The token files of the work folder's own processes, one per role; renewed before they expire.

    Our processes read their token file again when it changes, so a renewal needs no restart. Pilots elsewhere that hold
    a copy need a token of their own: `hpo-pilot token create`.
    """

    def __init__(self, folder: Path, name: str, *, clock: Callable[[], float] = time.time) -> None:
        """Issues missing tokens.

        Args:
            folder: the token folder of the work folder.
            name: the user of the tokens.
            clock: returns seconds since the epoch.

        Raises:
            InputError: the folder cannot be used.
        """
        self._clock = clock
        self._name = name
        self._authority = Authority(folder, clock=clock)
        self.files = {role: folder / f"{role.value}.token" for role in (Role.USER, Role.PILOT)}
        self._next = 0.0
        self.renew()

    def renew(self) -> None:
        """Replaces tokens that expire soon or are invalid. Cheap: it checks them only every ten minutes.

        Raises:
            TryAgainError: a new token cannot be written.
        """
        now = self._clock()
        if now < self._next:
            return
        # Verify with a future clock: a token that would be refused then is replaced now.
        later = Tokens(self._authority.folder, clock=lambda: now + _LEFT * _DAY)
        for role, path in self.files.items():
            if not self._is_good(later, path, role):
                token, _ = self._authority.issue(self._name, role, _DAYS)
                try:
                    write_private(path, token)
                except OSError as error:
                    raise TryAgainError(f"cannot write the token file {path}: {error.strerror}") from error
        self._next = now + _LOOK_EVERY

    def _is_good(self, tokens: Tokens, path: Path, role: Role) -> bool:
        try:
            caller = tokens.verify(f"Bearer {path.read_text()}")
        except (FileNotFoundError, UnicodeDecodeError, TokenRefused):
            return False
        except OSError as error:
            raise InputError(f"the token file {path} cannot be read: {error.strerror}") from error
        return caller.name == self._name and caller.role is role


def security_warnings(workdir: WorkDir, reach: NetworkOptions, slots: int) -> list[str]:
    """Returns warnings for the operator of a service.

    Payloads of the local pilot run under the service's account. They can read the signing key of tokens, and so act as
    any user. This is harmless if all payloads belong to that account.

    Args:
        workdir: work folder of the service.
        reach: network options of the servers.
        slots: number of jobs that the local pilot runs at once.

    Raises:
        InputError: the token folder cannot be used.
    """
    found = []
    if slots and (reasons := _others(workdir, reach)):
        found.append(
            f"{' and '.join(reasons)}, and the local pilot runs all users' payloads as this account, which can read "
            f"the signing key of tokens in {workdir.tokens}: every user who may submit could act as any other user. "
            "For a group give --slots 0, and run `hpo-pilot pilot` as another account (deploy/README.md)"
        )
    return found


def _others(workdir: WorkDir, reach: NetworkOptions) -> list[str]:
    """Returns the reasons why other users may submit."""
    reasons = []
    if reach.is_open:
        reasons.append("the servers can be reached from elsewhere")
    if reach.issuers:
        reasons.append("tokens of other issuers are taken")
    others = sorted({token.name for token in Authority(workdir.tokens).issued() if not token.revoked} - {nickname()})
    if others:
        reasons.append(f"there are tokens of {', '.join(others[:3])}{', …' if len(others) > 3 else ''}")
    return reasons


#: Ports that `free_port` has returned: the process that will listen there may not have started yet.
_PROMISED: set[int] = set()


def free_port() -> int:
    """Returns a free port of this machine, another one at each call.

    Raises:
        TryAgainError: there is none.
    """
    with contextlib.ExitStack() as probes:
        while True:
            probe = probes.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", 0))
            except OSError as error:
                raise TryAgainError(f"no free port for the embedded PanDA server: {error.strerror}") from error
            port = int(probe.getsockname()[1])
            if port not in _PROMISED:
                _PROMISED.add(port)
                return port


# --- the REST API and the web pages ---

#: An API that ends again and again is restarted after this many seconds.
_REST_SECONDS = 300.0


class ApiProcess:
    """The REST API and web pages of a work folder: network options of the embedded server, but a port of its own."""

    def __init__(
        self,
        workdir: WorkDir,
        *,
        store: str | None,
        reach: NetworkOptions,
        port: int | None,
        address: Path | None = None,
    ) -> None:
        """Starts nothing yet; `start` starts the process.

        Args:
            workdir: work folder of the service.
            store: SQLAlchemy URL of another store.
            reach: network options of the PanDA server; host, certificate and issuers apply here too.
            port: None: a free port.
            address: the file that holds its address while it runs; None: the work folder's `api_address`.

        Raises:
            InputError: a file of `reach` cannot be used.
        """
        self._address = address or workdir.api_address
        number = port or free_port()
        own = replace(reach, port=number)
        self.url = _url(own, number)
        self.authority_file = own.authority
        self._authorities = own.authorities(workdir)
        self._own = OwnTokens(workdir.tokens, nickname())
        self._child = ChildProcess(
            "REST API",
            [
                *(sys.executable, "-m", "hpo_pilot.web", "--workdir", str(workdir.root), "--port", str(number)),
                *("--tokens", str(workdir.tokens), "--lifeline-fd", "{lifeline}", *own.server_options()),
                # Browser sessions survive a restart of this process, but not of the service.
                *("--run", secrets.token_hex(16)),
            ],
            workdir.log("api"),
            # Other users can see arguments, and the URL may have a password.
            environment={STORE_VARIABLE: workdir.store_url(store)},
        )
        self._rest_until = 0.0

    @property
    def token_file(self) -> Path:
        """The token file of this machine's user."""
        return self._own.files[Role.USER]

    def start(self) -> None:
        """Starts the process; `wait` returns when it answers."""
        self._child.start()

    def wait(self, seconds: float = _START_SECONDS) -> None:
        """Waits until the API answers, at most `seconds`, and writes its address to the work folder.

        Raises:
            TryAgainError: it does not start; the message has the reason.
            InputError: its certificate does not fit its address.
            GiveUpError: it is killed again and again.
        """
        wait_until_answering(self._child, self.url, "health", self._authorities, seconds=seconds)
        self._address.write_text(f"{self.url}\n")

    def link(self) -> str:
        """Returns a one-time link that signs this machine's user in to the pages.

        Raises:
            TryAgainError: it does not answer.
        """
        return one_time_link(self.url, self.token_file, self._authorities)

    def check(self) -> None:
        """Restarts the API if it has ended. If it ends again and again, it pauses; searches go on without it."""
        self._own.renew()
        if time.monotonic() < self._rest_until:
            return
        try:
            self._child.check()
        except GiveUpError as error:
            log.error("%s; it is tried again in %.0f s", error, _REST_SECONDS)
            self._rest_until = time.monotonic() + _REST_SECONDS

    def stop(self) -> None:
        """Ends the API and removes its address."""
        try:
            # A later process of the same work folder may have written its own address: keep that.
            if self._address.read_text() == f"{self.url}\n":
                self._address.unlink()
        except FileNotFoundError:
            pass  # It has not answered yet, or the work folder was removed.
        self._child.stop()


def _url(reach: NetworkOptions, port: int) -> str:
    """Returns the address of the API for clients: the host of the PanDA server, or that to which a proxy connects."""
    if reach.public_url is None:
        return reach.url(port)
    host = "127.0.0.1" if is_wildcard(reach.host) else reach.host
    if reach.has_tls and not reach.behind_proxy:  # without TLS no token may leave this machine
        host = urlsplit(reach.public_url).hostname or host
    return f"{'https' if reach.has_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


_SECONDS = 20.0


def one_time_link(url: str, token_file: Path, authorities: Path | None) -> str:
    """Returns a link that signs the token's user in to the pages once, within ten minutes.

    The token is sent only to the server of the pages, in a header. The link has a code that this server makes.

    Args:
        url: address of the pages, scheme://host:port.
        token_file: token file of a user or an operator.
        authorities: certificate authorities; None: the system's.

    Raises:
        InputError: the token cannot be read or is refused.
        TryAgainError: the server does not answer.
    """
    address = url.rstrip("/")
    parts = urlsplit(address)
    host = parts.hostname or "" if parts.scheme == "http" else ""
    require_tls(address, host, has_tls=parts.scheme == "https", remedy="use https://")
    try:
        token = token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the token file {token_file} cannot be read: {error}") from error
    try:
        with open_session(address, authorities) as session:
            answer = session.post(
                f"{address}/login/link",
                headers={"Authorization": f"Bearer {token}"},
                timeout=_SECONDS,
                allow_redirects=False,
            )
            said = answer.json()
    except requests.exceptions.SSLError as error:
        raise InputError(f"the certificate of {address} is not trusted: {error}; name its authority: --ca") from error
    except requests.exceptions.JSONDecodeError as error:
        raise InputError(f"{address} answers, but has no pages of this version: is it an hpo-pilot service?") from error
    except requests.RequestException as error:
        raise TryAgainError(f"the pages at {address} do not answer: {error}") from error
    if answer.status_code in (401, 403):
        raise InputError(f"{address} does not take the token of {token_file}: {said.get('error', 'without a reason')}")
    if not answer.ok or not isinstance(said.get("path"), str):
        raise TryAgainError(f"{address} made no link: {said.get('error', f'status {answer.status_code}')}")
    return f"{address}{said['path']}"


_LOOK_SECONDS = 0.5


def serve_pages(
    workdir: str | Path | None, *, store: str | None, reach: NetworkOptions, on_ready: Callable[[ApiProcess], None]
) -> None:
    """Serves the pages and the REST API until SIGINT or SIGTERM, without steering.

    Args:
        workdir: the work folder; default ./hpo-pilot.
        store: SQLAlchemy URL of another store.
        reach: network options.
        on_ready: called when the pages answer.

    Raises:
        InputError: there is no store, or it is removed or replaced meanwhile, or a file of `reach` cannot be used.
        TryAgainError: the pages do not start.
    """
    folder = WorkDir.at(workdir)
    url = folder.store_url(store)
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not path.exists():
        # Do not create a store here: a mistyped name would look like an empty store.
        raise InputError(
            f"there is no store at {path}: run or submit a search first, or name another --workdir or --store"
        )
    known = path.stat() if url.startswith("sqlite:///") else None
    folder = WorkDir.make(workdir)
    pages = ApiProcess(folder, store=store, reach=reach, port=reach.port, address=folder.pages_address)
    with stop_signals() as ended:
        try:
            pages.start()
            pages.wait()
            on_ready(pages)
            while not ended.wait(_LOOK_SECONDS):
                pages.check()
                if known is not None and not _is_there(path, known):
                    # The pages have the old file open and would show its contents forever.
                    raise InputError(f"the store at {path} was removed or replaced: start the monitor again")
        finally:
            pages.stop()


@contextlib.contextmanager
def stop_signals(action: Callable[[], None] = lambda: None) -> Iterator[threading.Event]:
    """Makes SIGINT and SIGTERM call `action` during a block; the event is set when one arrives."""
    stopped = threading.Event()

    def stop(_signal: int, _frame: object) -> None:
        stopped.set()
        action()

    if threading.current_thread() is not threading.main_thread():
        yield stopped  # Only the main thread may handle signals. A caller in another thread handles them itself.
        return
    old = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _is_there(path: Path, known: os.stat_result) -> bool:
    """Returns whether a file, which may be open, is still the one with the status `known`."""
    try:
        return os.path.samestat(path.stat(), known)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # The file system does not answer; the file may well be there.


def address_of_pages(workdir: str | Path | None) -> str:
    """Returns the address of the pages of a work folder, beside a service or alone.

    Raises:
        InputError: the work folder has no address of running pages.
    """
    folder = WorkDir.at(workdir)
    for file in (folder.api_address, folder.pages_address):
        try:
            return file.read_text().strip()
        except OSError:
            continue
    raise InputError(
        f"no pages run on the work folder {folder.root}: `hpo-pilot monitor` or `hpo-pilot serve` starts them; "
        "name another with --workdir, or a service with --service"
    )
