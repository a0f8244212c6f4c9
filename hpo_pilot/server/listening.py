"""Listening: the socket, limits on connections and bodies, TLS, and the options on access."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import resource
import socket
import ssl
import time
from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.server.tokens import Tokens
from hpo_pilot.trust import LISTEN_WITH_TLS, require_tls

log = logging.getLogger(__name__)

#: The variable with the addresses and networks of proxies whose ``X-Forwarded-For`` and ``-Proto`` are believed.
PROXIES_VARIABLE = "HPO_PILOT_PROXIES"


def proxies() -> list[str]:
    """Returns the addresses and networks of the named proxies.

    Raises:
        InputError: one of them is none; uvicorn would ignore it.
    """
    named = [each.strip() for each in os.environ.get(PROXIES_VARIABLE, "").split(",") if each.strip()]
    for each in named:
        try:
            ipaddress.ip_network(each)
        except ValueError as error:
            raise InputError(
                f"{PROXIES_VARIABLE}: {error}: give addresses or networks, as in 127.0.0.1,10.1.0.0/16"
            ) from error
    return named


def add_security(parser: argparse.ArgumentParser) -> None:
    """Adds the options; `certificate_of` and `tokens_of` read them, and ``--tokens``."""
    tls = parser.add_argument_group("TLS")
    tls.add_argument("--tls-cert", type=Path, help="certificate with its chain (PEM); read again when renewed")
    tls.add_argument("--tls-key", type=Path, help="its key (PEM)")
    tls.add_argument(
        "--insecure-behind-proxy",
        action="store_true",
        help="listen on the network without TLS, behind a proxy that has it",
    )
    others = parser.add_argument_group("other issuers")
    others.add_argument("--issuers", type=Path, help="JSON file of OIDC issuers whose tokens are taken as well")


def tokens_of(options: argparse.Namespace, stack: ExitStack) -> Tokens:
    """Returns the verifier of tokens; `stack` ends its threads.

    Raises:
        InputError: a file is missing or not valid.
    """
    issuers = None
    if options.issuers is not None:
        # Few servers need it, and its checks cost every start a tenth of a second.
        from hpo_pilot.server.issuers import Issuers  # noqa: PLC0415

        issuers = Issuers(options.issuers)
        issuers.start()
        stack.callback(issuers.stop)
    return Tokens(options.tokens, issuers)


def certificate_of(options: argparse.Namespace) -> ServedCertificate | None:
    """Returns the certificate that protects connections; None: connections are not protected.

    Raises:
        InputError: a file is missing or not valid, or only one of the two is given.
    """
    if options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise InputError("--tls-cert or --tls-key is missing: give both, or neither")
    return ServedCertificate(options.tls_cert, options.tls_key)


class ServedCertificate:
    """The certificate of a running server, read again when its files change."""

    def __init__(self, chain: Path, key: Path) -> None:
        """Checks the certificate.

        Args:
            chain: PEM file of the certificate and of the intermediate certificates.
            key: PEM file of its key.

        Raises:
            InputError: the files cannot be used together.
        """
        self.chain = chain
        self.key = key
        self._check()
        self._stamp = self._look()

    def refresh(self, context: ssl.SSLContext) -> bool:
        """Uses the current contents of the files for new connections.

        Returns:
            True if the files changed.
        """
        try:
            stamp = self._look()
            if stamp == self._stamp:
                return False
            self._check()
            context.load_cert_chain(self.chain, self.key, password=_no_password)
        except (InputError, OSError) as error:
            log.error("%s; the certificate read before stays in use", error)
            return False
        self._stamp = stamp
        log.warning("a new certificate is in use: %s", self.chain)
        return True

    def _check(self) -> None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.chain, self.key, password=_no_password)
        except OSError as error:  # ssl.SSLError is one
            raise InputError(
                f"the certificate {self.chain} with the key {self.key}: {error.strerror or error}; "
                "give files in PEM form that belong together, the key without a password"
            ) from error

    def _look(self) -> tuple[int, ...]:
        seen = [path.stat() for path in (self.chain, self.key)]
        return tuple(number for status in seen for number in (status.st_mtime_ns, status.st_ino))


def _no_password() -> str:
    """Answers OpenSSL, which otherwise asks at the terminal."""
    return ""


class LimitedBody:
    """A `receive` that refuses a body that is too large."""

    def __init__(self, receive: Receive, limit: int, problem: str) -> None:
        """Counts the bytes from `receive`. Above `limit` bytes it raises a 413 with the text `problem`."""
        self._receive = receive
        self._limit = limit
        self._problem = problem
        self._size = 0

    async def __call__(self) -> Message:
        """Returns the next message.

        Raises:
            HTTPException: the body is above the limit.
        """
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            raise HTTPException(413, self._problem)
        return message


class SlowRefusals:
    """ASGI middleware that delays the answers to wrong tokens, by the caller's address; others never wait.

    Nobody guesses a signed token; but each try costs a check, and logs that fill up hide other things.
    """

    free = 10  #: wrong tokens of an address within `window` seconds that are answered at once
    window = 60.0
    longest = 1.0  #: seconds

    def __init__(self, app: ASGIApp) -> None:
        """Wraps `app`."""
        self._app = app
        self._seen: OrderedDict[str, tuple[int, float]] = OrderedDict()  # count and last time, the latest last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        shown = any(name in (b"authorization", b"x-idds-auth-token") for name, _ in scope.get("headers", ()))
        is_login = scope.get("path") == "/login" and scope.get("method") == "POST"

        async def slowly(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == (403 if is_login else 401):
                await asyncio.sleep(self.delay(scope["client"][0] if scope.get("client") else "", time.monotonic()))
            await send(message)

        await self._app(scope, receive, slowly if shown or is_login else send)

    def delay(self, address: str, now: float) -> float:
        """Notes a wrong token of an address; returns the seconds until its answer. `now`: a clock, in seconds."""
        with contextlib.suppress(ValueError):
            one = ipaddress.ip_address(address)
            if isinstance(one, ipaddress.IPv6Address) and one.ipv4_mapped is None:  # its network is one machine's
                address = str(ipaddress.ip_network(f"{address}/64", strict=False))
        count, last = self._seen.pop(address, (0, now))
        count = 1 if now - last > self.window else count + 1
        self._seen[address] = count, now
        if len(self._seen) > _ADDRESSES:
            self._seen.popitem(last=False)
        return min(self.longest, 0.1 * max(0, count - self.free))


#: Largest size of a request's head in bytes, approximately: the data of one read are not split.
HEAD_LIMIT = 256 * 1024

#: Seconds: for the whole head of a request, from the connection or its first byte; and for the next part of a body.
_HEAD_SECONDS = 30.0
_BODY_SECONDS = 120.0

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedConnection(HttpToolsProtocol):
    """Ends connections whose request's head is endless, or that leave a request unfinished for long."""

    head_seconds = _HEAD_SECONDS
    body_seconds = _BODY_SECONDS

    _in_head = False
    _head_size = 0
    _deadline: float | None = None
    _timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._expect(self.head_seconds)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        began_before = self._in_head
        super().data_received(data)
        if began_before and self._in_head:
            self._head_size += len(data)
            if self._head_size > HEAD_LIMIT and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_size = True, 0
        self._expect(self.head_seconds)

    @override
    def on_headers_complete(self) -> None:
        self._in_head = False
        self._expect(self.body_seconds)
        super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        self._expect(self.body_seconds)
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._deadline = None
        super().on_message_complete()

    def _expect(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None or self.transport.is_closing():
            return
        left = self._deadline - self.loop.time()
        if left <= 0 and not self.flow.read_paused:
            self.transport.close()
        else:  # while reading is paused, this server is slow, not the sender
            self._timer = self.loop.call_later(max(left, 1.0), self._look)


_ADDRESSES = 4096  # that are remembered
_GRACE = 2  # seconds for running calls to finish when the server ends
_LOOK_AT_CERTIFICATE = 60.0  # seconds
_MOST_FILES = 65_536


def listen(host: str, port: int, *, secure: bool, count: int = 1) -> list[socket.socket]:
    """Returns bound sockets. They are bound here so that a port in use is not confused with other errors.

    Args:
        host: name or address.
        port: 0: any free one.
        secure: whether connections have TLS, here or at a proxy.
        count: number of sockets at this port, one for each process of the server.

    Raises:
        InputError: the address does not exist, or is on the network without TLS.
        TryAgainError: the port is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]  # noqa: S104  # what an empty host means
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host} --port {port}: {error}") from error
    require_tls(f"--host {host}", str(address[0]), has_tls=secure, remedy=LISTEN_WITH_TLS)
    listeners = [socket.socket(family, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for listener in listeners:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if count > 1:
                if listener is listeners[0]:  # the port may be another server's, which would share it
                    with socket.socket(family, socket.SOCK_STREAM) as probe:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind(address)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
            listener.listen(2048)
            address = listener.getsockname()  # with the port
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise TryAgainError(f"cannot listen on {host} port {port}: {error.strerror}; choose another --port") from error
    return listeners


class Served(Protocol):
    """A server that answers calls."""

    name: str
    """In the line that says it is ready."""

    def application(self) -> ASGIApp:
        """Returns the application."""

    def close_waiting(self) -> None:
        """Answers all waiting calls, because the server ends."""


class _Uvicorn(uvicorn.Server):
    """uvicorn that reports when it is ready, and that answers long polls when it must end."""

    def __init__(
        self, config: uvicorn.Config, server: Served, lifeline: int | None, certificate: ServedCertificate | None
    ) -> None:
        super().__init__(config)
        self._parts = server
        self._lifeline = lifeline
        self._certificate = certificate

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._lifeline is not None:
            asyncio.get_running_loop().add_reader(self._lifeline, self._lifeline_moved, self._lifeline)
        if self._certificate is not None:
            self._watching = asyncio.create_task(self._watch_certificate(self._certificate))
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            scheme = "http" if self._certificate is None else "https"
            print(f"hpo-pilot {self._parts.name} ready on {scheme}://{shown}:{port}", flush=True)  # noqa: T201  # the process that started it waits for this
        if self._lifeline is not None:
            with contextlib.suppress(OSError):  # a pipe that cannot be written, or nobody reads it any more
                os.write(self._lifeline, b"1")

    async def _watch_certificate(self, certificate: ServedCertificate) -> None:
        assert self.config.ssl is not None  # tells the type checker
        while True:
            await asyncio.sleep(_LOOK_AT_CERTIFICATE)
            certificate.refresh(self.config.ssl)

    def _lifeline_moved(self, descriptor: int) -> None:
        try:
            alive = os.read(descriptor, 4096)
        except BlockingIOError:
            return
        except OSError:  # its other end was closed before what we wrote was read
            alive = b""
        if not alive:
            asyncio.get_running_loop().remove_reader(descriptor)
            self._end()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Called by the signal itself, between any two steps of the loop, so it only schedules the work. uvicorn's own
        # handler sends the signal again at the end, and the process would seem killed.
        self.force_exit = self.should_exit
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._parts.close_waiting)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    @override
    async def on_tick(self, counter: int) -> bool:
        # By itself the collector looks at young objects when there are more of them than before. With thousands of
        # waiting calls each new one replaces one that ends, so its look would come late, and take 0.3 s.
        gc.collect(1)
        return await super().on_tick(counter)

    def _end(self) -> None:
        self.should_exit = True
        self._parts.close_waiting()


def _allow_many_connections() -> None:
    """Raises the limit of open files: the usual soft limit of 1024 is too low for many pilots and users."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def serve(
    server: Served, listener: socket.socket, lifeline: int | None, certificate: ServedCertificate | None = None
) -> None:
    """Answers calls until SIGTERM, SIGINT or the end of the lifeline.

    Args:
        server: the server that answers the calls.
        listener: a bound socket; the caller closes it.
        lifeline: a file descriptor; the server ends at its end of file, and writes a byte when it listens; None: no
            lifeline.
        certificate: certificate for TLS; None: plain HTTP.

    Raises:
        InputError: the proxies are not valid.
    """
    named = proxies()
    _allow_many_connections()
    # A look of the collector at all objects takes 0.3 s with 5,000 waiting calls, and by default it comes every few
    # seconds, because those that wait are others each time. Each tick looks at young ones instead, in milliseconds.
    gc.freeze()  # modules and routes stay
    gc.set_threshold(2_000, 5, 10_000)
    config = uvicorn.Config(
        SlowRefusals(server.application()),
        http=BoundedConnection,
        loop="uvloop",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=120,
        timeout_graceful_shutdown=_GRACE,
        # The caller's address is that of the connection, unless a named proxy says whose request it forwards.
        proxy_headers=bool(named),
        forwarded_allow_ips=named,
        ssl_certfile=certificate.chain if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )
    _Uvicorn(config, server, lifeline, certificate).run(sockets=[listener])
