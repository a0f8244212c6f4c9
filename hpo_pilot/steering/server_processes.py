"""Servers as child processes: start and restart, network options, tokens, security warnings."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import requests

from hpo_pilot.errors import GiveUpError, InputError, TryAgainError
from hpo_pilot.files import write_whole
from hpo_pilot.http import open_session
from hpo_pilot.logs import LogFile
from hpo_pilot.server.tls import is_wildcard, served_name
from hpo_pilot.server.tokens import Authority, Role, TokenRefused, Tokens, write_private
from hpo_pilot.steering.workdir import STORE_VARIABLE, WorkDir, nickname
from hpo_pilot.trust import hashed_folder

#: A child that ends this many times within `_WINDOW` seconds is not started again.
_TRIES = 5
_WINDOW = 30.0

log = logging.getLogger(__name__)


class ChildProcess:
    """One supervised process.

    It inherits the reading end of a pipe that this process holds open: the lifeline. When this process ends, by
    whatever signal, the pipe closes, and the child ends itself.
    """

    def __init__(
        self, name: str, argv: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Prepares.

        Args:
            name: for messages.
            argv: the command; ``{lifeline}`` stands for the file descriptor's number.
            log_file: its output is appended there; it is bounded, see `LogFile`.
            environment: variables beside ours.
        """
        self.name = name
        self._argv = list(argv)
        self._log = LogFile(log_file)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        self._starts: list[float] = []

    def start(self) -> None:
        """Starts the process; its end is noticed by `check`."""
        self._close_lifeline()
        reading, self._lifeline = os.pipe()
        try:
            with self._log.opened() as log_file:
                self._process = subprocess.Popen(
                    [part.replace("{lifeline}", str(reading)) for part in self._argv],
                    env={**os.environ, **self._environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    pass_fds=[reading],
                    start_new_session=True,  # a Ctrl-C in the terminal reaches us alone: we then end it in order
                )
        finally:
            os.close(reading)
        self._starts = [*(t for t in self._starts if time.monotonic() - t < _WINDOW), time.monotonic()]

    @property
    def log_file(self) -> Path:
        """Where its output is."""
        return self._log.path

    @property
    def exit_code(self) -> int | None:
        """What it ended with; None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    def check(self) -> bool:
        """Starts it again if it has ended; keeps its log from growing while it runs.

        Returns:
            True if it was started again.

        Raises:
            GiveUpError: it ends again and again; the message has the end of its log.
        """
        if self._process is None or self._process.poll() is None:
            self.bound_log()
            return False
        code = self._process.returncode
        if len(self._starts) >= _TRIES:
            raise GiveUpError(
                f"the {self.name} ended {_TRIES} times within {_WINDOW:.0f} s (status {code}): {self.last_line()}; "
                f"its log is {self.log_file}"
            )
        log.warning("the %s ended (status %s) and is started again", self.name, code)
        self.start()
        return True

    def last_line(self) -> str:
        """The last line of its log."""
        try:
            lines = self._log.end(4096).decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def bound_log(self) -> None:
        """Keeps its log from growing."""
        self._log.bound()

    def stop(self, seconds: float = 10.0) -> None:
        """Ends it: asks first, insists after `seconds`."""
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
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


_START_SECONDS = 60.0
_PAUSE = 0.05


def wait_until_answering(
    child: ChildProcess,
    url: str,
    call: str,
    authorities: Path | None,
    headers: Callable[[], Mapping[str, str]] = dict,
) -> None:
    """Waits until `child` answers a call well.

    Args:
        child: the server, started.
        url: where it listens: scheme://host:port.
        call: of its API, below ``/api/v1/``.
        authorities: those behind its certificate; None: the usual ones.
        headers: of the call, made anew for each try.

    Raises:
        TryAgainError: it does not start; the message has its reason.
        InputError: its options are wrong, or its certificate does not fit.
    """
    end = time.monotonic() + _START_SECONDS
    trouble = ""
    with open_session(url, authorities) as session:
        while time.monotonic() < end:
            if (code := child.exit_code) is not None:
                # What is wrong with the options stays wrong: whoever starts services again and again must see that.
                wrong = InputError if code == InputError.exit_code else TryAgainError
                raise wrong(f"the {child.name} did not start: {child.last_line()}")
            try:
                if session.get(f"{url}/api/v1/{call}", headers=dict(headers()), timeout=5).ok:
                    return
            except requests.exceptions.SSLError as error:
                raise InputError(
                    f"the certificate of the {child.name} is not good for {url}: {error}; name its authorities with "
                    "--ca, or the host that it is made for with --public-url"
                ) from error
            except requests.RequestException as error:
                trouble = f": {error}"
            time.sleep(_PAUSE)  # not listening yet
    raise TryAgainError(
        f"the {child.name} did not answer at {url} within {_START_SECONDS:.0f} s{trouble}; see {child.log_file}"
    )


#: In the folder of authorities, all of them as one PEM file.
AUTHORITIES = "ca.pem"


@dataclass(frozen=True)
class NetworkOptions:
    """What the options of `hpo-pilot serve` say of its network side; the default is this machine alone, plain HTTP.

    Attributes:
        host: name or address to listen on.
        port: None: any free one.
        certificate: TLS with this certificate (PEM, with its chain).
        key: of that certificate.
        authority: PEM file of the authorities behind that certificate; None: those that everybody knows.
        public_url: how clients call the server, where that is not what it listens on.
        behind_proxy: plain HTTP on a network address is meant: a TLS proxy is in front.
        issuers: file of OIDC issuers whose tokens are taken as well.
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
            raise InputError("--tls-cert and --tls-key go together")
        if self.behind_proxy and self.public_url is None:
            raise InputError("--insecure-behind-proxy needs --public-url: how pilots and users call the proxy")
        if self.public_url is not None:
            parts = urlsplit(self.public_url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
                raise InputError(f"--public-url {self.public_url}: give a URL such as https://panda.example.org:25443")
        if not (self.has_tls or self.behind_proxy or _is_loopback(self.host)):
            raise InputError(
                f"--host {self.host} is more than this machine, and without TLS whoever reads the network reads the "
                "tokens: add --tls-cert and --tls-key; with a TLS proxy in front, --insecure-behind-proxy"
            )

    @property
    def is_open(self) -> bool:
        """Whether anybody but this machine may reach the server."""
        return self.behind_proxy or self.public_url is not None or not _is_loopback(self.host)

    @property
    def has_tls(self) -> bool:
        """Whether the server itself speaks TLS."""
        return self.certificate is not None

    def url(self, port: int) -> str:
        """How clients call a server of these options on this port.

        Raises:
            InputError: the certificate given names no host.
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
        """The folder of authorities that clients must trust; None: those that everybody knows, or no TLS.

        Raises:
            InputError: the authority's file makes no sense.
        """
        if self.authority is None:
            return None
        folder = hashed_folder(self.authority, workdir.tls)
        write_whole(folder / AUTHORITIES, self.authority.read_text(), 0o644)
        return folder

    def server_options(self) -> list[str]:
        """These options for ``python -m hpo_pilot.server``, but for the port."""
        options = ["--host", self.host]
        named = {
            "--tls-cert": self.certificate,
            "--tls-key": self.key,
            "--issuers": self.issuers,
        }
        for name, value in named.items():
            if value is not None:
                options += [name, str(value)]
        return [*options, "--insecure-behind-proxy"] if self.behind_proxy else options


def _own_name() -> str:
    """A name of this machine that can be looked up, at least here; else the loopback address."""
    for name in (socket.getfqdn(), socket.gethostname()):
        if not name.startswith("localhost"):
            try:
                socket.getaddrinfo(name, None)
            except OSError:
                continue
            return name
    return "127.0.0.1"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# The tokens of the work folder's own service and local pilot: files that are renewed before they expire.
#
# Every process of ours reads its token file anew when it changes, so a renewal needs no restart. Pilots elsewhere
# that
# hold a copy want a token of their own, with a time of its own: `hpo-pilot token create`.

#: How long our own tokens live, and how much of it must be left.
_DAYS = 30.0
_LEFT = 10.0

_DAY = 86400.0
_LOOK_EVERY = 600.0  # seconds


class OwnTokens:
    """One token file per role that our own processes have."""

    def __init__(self, folder: Path, name: str, *, clock: Callable[[], float] = time.time) -> None:
        """Makes what is missing.

        Args:
            folder: the work folder's token folder.
            name: the user, whose the tokens are.
            clock: seconds since the epoch.

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
        """Replaces what ends soon or is no good; to be called often, it looks rarely.

        Raises:
            TryAgainError: a new token cannot be written.
        """
        now = self._clock()
        if now < self._next:
            return
        # As it will be when it must have been replaced: what is refused then is replaced now.
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
    """What to warn whoever runs the service of.

    A payload of the local pilot is a process of the service's account: it can read the signing key of tokens, and with
    that be anybody. That is no harm where all payloads are the account's own.

    Args:
        workdir: the service's.
        reach: where the servers listen, and whom they let in.
        slots: how many jobs the local pilot runs side by side.

    Raises:
        InputError: the token folder cannot be used.
    """
    found = []
    if slots and (reasons := _others(workdir, reach)):
        found.append(
            f"{' and '.join(reasons)}, and the local pilot runs all users' payloads as this account, which can read "
            f"the signing key of tokens in {workdir.tokens}: whoever may submit could become anybody. For a group "
            "give --slots 0, and run `hpo-pilot pilot` as another account (deploy/README.md)"
        )
    return found


def _others(workdir: WorkDir, reach: NetworkOptions) -> list[str]:
    """Why others than the account may submit."""
    reasons = []
    if reach.is_open:
        reasons.append("the servers can be reached from elsewhere")
    if reach.issuers:
        reasons.append("tokens of other issuers are taken")
    others = sorted({token.name for token in Authority(workdir.tokens).issued() if not token.revoked} - {nickname()})
    if others:
        reasons.append(f"there are tokens of {', '.join(others[:3])}{', …' if len(others) > 3 else ''}")
    return reasons


def free_port() -> int:
    """A port of this machine that nobody listens on now.

    Raises:
        TryAgainError: there is none.
    """
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError as error:
            raise TryAgainError(f"no free port for the embedded PanDA server: {error.strerror}") from error
        return int(probe.getsockname()[1])


#: Where an API that keeps ending is tried again, after so many seconds.
_REST_SECONDS = 300.0


class ApiProcess:
    """The API of one work folder, under the same conditions as the embedded PanDA server, but for the port."""

    def __init__(
        self,
        workdir: WorkDir,
        *,
        store: str | None,
        reach: NetworkOptions,
        port: int | None,
        address: Path | None = None,
    ) -> None:
        """Prepares; `start` runs it.

        Args:
            workdir: the service's.
            store: another store's SQLAlchemy URL.
            reach: where the PanDA server listens: address, certificate and issuers hold here too.
            port: None: a free one.
            address: the file that says where it is, while it runs; None: the work folder's `api_address`.

        Raises:
            InputError: `reach` names files that cannot be used.
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
                # Whoever is signed in stays so when it is started again, but not when the service is.
                *("--run", secrets.token_hex(16)),
            ],
            workdir.log("api"),
            # Not among the arguments, which everybody sees: the URL may have a password.
            environment={STORE_VARIABLE: workdir.store_url(store)},
        )
        self._rest_until = 0.0

    @property
    def token_file(self) -> Path:
        """The token of this machine's user."""
        return self._own.files[Role.USER]

    def start(self) -> None:
        """Starts it; `wait` returns when it answers."""
        self._child.start()

    def wait(self) -> None:
        """Waits until it answers, and notes its address in the work folder.

        Raises:
            TryAgainError: it does not start; the message has its reason.
            InputError: its certificate does not fit.
        """

        def ours() -> dict[str, str]:
            # Our token is good at our API alone: another may have the port, and ours be about to say so.
            return {"Authorization": f"Bearer {self.token_file.read_text()}"}

        wait_until_answering(self._child, self.url, "service", self._authorities, ours)
        self._address.write_text(f"{self.url}\n")

    def link(self) -> str:
        """A one-time link that signs this machine's user in to the pages.

        Raises:
            TryAgainError: it does not answer.
        """
        return one_time_link(self.url, self.token_file, self._authorities)

    def check(self) -> None:
        """Starts it again if it has ended. One that keeps ending rests for a while: searches go on without it."""
        self._own.renew()
        if time.monotonic() < self._rest_until:
            return
        try:
            self._child.check()
        except GiveUpError as error:
            log.error("%s; it is tried again in %.0f s", error, _REST_SECONDS)
            self._rest_until = time.monotonic() + _REST_SECONDS

    def stop(self) -> None:
        """Ends it."""
        try:
            # Another of the same work folder may have come after it: its address stays.
            if self._address.read_text() == f"{self.url}\n":
                self._address.unlink()
        except FileNotFoundError:
            pass  # it has not answered yet, or the work folder was removed
        self._child.stop()


def _url(reach: NetworkOptions, port: int) -> str:
    """How clients call the API: at the PanDA server's host; behind a proxy how that does, for its ports are its own."""
    if reach.public_url is None:
        return reach.url(port)
    host = "127.0.0.1" if is_wildcard(reach.host) else reach.host
    if not reach.behind_proxy:
        host = urlsplit(reach.public_url).hostname or host
    return f"{'https' if reach.has_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


_SECONDS = 20.0


def one_time_link(url: str, token_file: Path, authorities: Path | None) -> str:
    """A link to the pages that signs in whose token it is; good for ten minutes, and once.

    The token goes to the pages' server alone, in a header; what the link carries is a code of that server's making.

    Args:
        url: of the pages: scheme://host:port.
        token_file: of a user or an operator.
        authorities: those behind the certificate; None: those that everybody knows.

    Raises:
        InputError: the token cannot be read, or is not taken.
        TryAgainError: nobody answers there.
    """
    address = url.rstrip("/")
    parts = urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(parts.hostname or "")):
        raise InputError(f"{address}: a token goes to https:// addresses alone, or to this machine")
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
    workdir: str | Path | None,
    *,
    store: str | None,
    reach: NetworkOptions,
    on_ready: Callable[[ApiProcess], None],
) -> None:
    """Serves the pages, and the REST API, until SIGINT or SIGTERM; steers nothing.

    Args:
        workdir: the work folder; default ./hpo-pilot.
        store: another store than its own.
        reach: where the pages listen.
        on_ready: called when they answer.

    Raises:
        InputError: there is no store yet, or it is removed or replaced meanwhile, or `reach` names files that cannot
            be used.
        TryAgainError: they do not start.
    """
    folder = WorkDir.at(workdir)
    url = folder.store_url(store)
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not path.exists():
        # Looking makes none: a name mistyped would look like an empty store.
        raise InputError(
            f"there is no store at {path}: run or submit a search first, or name another --workdir or --store"
        )
    store_file = _StoreFile(path) if url.startswith("sqlite:///") else None
    folder = WorkDir.make(workdir)
    ended = threading.Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    pages = ApiProcess(folder, store=store, reach=reach, port=reach.port, address=folder.pages_address)
    try:
        pages.start()
        pages.wait()
        on_ready(pages)
        while not ended.wait(_LOOK_SECONDS):
            pages.check()
            if store_file is not None and not store_file.is_there():
                # The pages have the old one open: they would show what it held, for ever.
                raise InputError(f"the store at {path} was removed or replaced: start the monitor again")
    finally:
        pages.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


class _StoreFile:
    """A store's file, which somebody may remove while it is open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = path.stat()

    def is_there(self) -> bool:
        """Whether it is still the same file."""
        try:
            return os.path.samestat(self._path.stat(), self._known)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # its file system does not answer: nothing is known


def address_of_pages(workdir: str | Path | None) -> str:
    """Where the pages of a work folder are, of a service or alone.

    Raises:
        InputError: none run, as far as the work folder knows.
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
