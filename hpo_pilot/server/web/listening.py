"""Listening and answering: the socket, uvicorn, TLS, and the end in order."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import resource
import socket
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.server.access.tls import ServedCertificate
from hpo_pilot.server.web.connection import BoundedConnection

_GRACE = 2  # seconds that calls under way get to end when the server ends
_LOOK_AT_CERTIFICATE = 60.0  # seconds
_MOST_FILES = 65_536


def listen(host: str, port: int, *, secure: bool) -> socket.socket:
    """A socket that is bound, so that a taken port is told from every other trouble.

    Args:
        host: name or address.
        port: 0: any free one.
        secure: whether tokens that pass here are safe on a network.

    Raises:
        InputError: there is no such address, or it is of a network and nothing protects the tokens there.
        TryAgainError: the port is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]  # noqa: S104  # what an empty host means
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host} --port {port}: {error}") from error
    if not (secure or ipaddress.ip_address(str(address[0]).split("%")[0]).is_loopback):
        raise InputError(
            f"--host {host} is more than this machine, and without TLS whoever reads the network reads the tokens: "
            "add --tls-cert and --tls-key; with a TLS proxy in front, --insecure-behind-proxy"
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise TryAgainError(f"cannot listen on {host} port {port}: {error.strerror}; choose another --port") from error
    return listener


class Served(Protocol):
    """What answers calls: one of our servers."""

    name: str
    """In the line that says it is ready."""

    def application(self) -> ASGIApp:
        """The application."""

    def close_waiting(self) -> None:
        """Answers the calls that wait for something, for the server ends."""


class _Uvicorn(uvicorn.Server):
    """uvicorn that says when it is ready, and that answers long polls when it is to end."""

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
            print(f"hpo-pilot {self._parts.name} ready on {scheme}://{shown}:{port}", flush=True)  # noqa: T201  # whoever started it waits for this

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
        if not alive:
            asyncio.get_running_loop().remove_reader(descriptor)
            self._end()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Called by the signal itself, between any two steps of the loop: only leave word for it. uvicorn's own would
        # send the signal again once it has ended in order, and the process would seem killed.
        self.force_exit = self.should_exit
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._parts.close_waiting)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def _end(self) -> None:
        self.should_exit = True
        self._parts.close_waiting()


def _allow_many_connections() -> None:
    """As many open files as we may have: the usual soft limit of 1024 is fewer than some pilots and users need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def serve(
    server: Served, listener: socket.socket, lifeline: int | None, certificate: ServedCertificate | None = None
) -> None:
    """Answers calls until SIGTERM, SIGINT or the end of the lifeline.

    Args:
        server: what answers.
        listener: bound; stays the caller's.
        lifeline: a descriptor at whose end of file it ends; None: none.
        certificate: for TLS; None: plain HTTP.
    """
    _allow_many_connections()
    config = uvicorn.Config(
        server.application(),
        http=BoundedConnection,
        loop="uvloop",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=120,
        timeout_graceful_shutdown=_GRACE,
        # A caller's address is that of the connection: whom we trust as a proxy must not be a matter of a header.
        proxy_headers=False,
        ssl_certfile=certificate.chain if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )
    # What starting made stays until the end: no collection needs to look through it, the last one neither.
    gc.freeze()
    _Uvicorn(config, server, lifeline, certificate).run(sockets=[listener])
