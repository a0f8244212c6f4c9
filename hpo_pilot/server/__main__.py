"""The server's command line: ``python -m hpo_pilot.server``."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import FrameType

import uvicorn

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.server.app import Server
from hpo_pilot.server.auth import Tokens
from hpo_pilot.server.database import Database

_GRACE = 2  # seconds that calls under way get to end when the server ends


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the server until SIGTERM, SIGINT or the end of its lifeline.

    Returns:
        0; 2: wrong options or files; 3: port or database taken, try again.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        _run(options)
    except HpoPilotError as error:
        print(f"hpo-pilot server: {error}", file=sys.stderr)  # noqa: T201  # a command's one line of error
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hpo_pilot.server", description="The embedded PanDA server.")
    parser.add_argument("--database", required=True, help="SQLAlchemy URL, e.g. sqlite:////full/path/panda.db")
    parser.add_argument("--files", required=True, type=Path, help="folder of sandboxes and outputs")
    parser.add_argument("--tokens", required=True, type=Path, help="file of token hashes, mode 0600")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument(
        "--port", type=int, default=0, help="0 (the default): any free port, which the ready line names"
    )
    parser.add_argument(
        "--heartbeat-timeout", type=float, default=60.0, help="seconds of silence that make a job lost (default: 60)"
    )
    parser.add_argument("--lifeline-fd", type=int, help="an inherited descriptor at whose end of file the server ends")
    return parser


def _run(options: argparse.Namespace) -> None:
    if not options.heartbeat_timeout > 0:
        raise InputError(f"--heartbeat-timeout must be above 0 seconds, not {options.heartbeat_timeout}")
    if not 0 <= options.port <= 65535:
        raise InputError(f"--port must be between 0 and 65535, not {options.port}")
    os.umask(0o077)
    tokens = Tokens(options.tokens)
    # The database first: opening it waits for a server that is just ending, and that one's port is free by then.
    with (
        closing(Database(options.database)) as database,
        closing(_listen(options.host, options.port)) as listener,
    ):
        server = Server(database, options.files, tokens, options.heartbeat_timeout)
        _serve(server, listener, options.lifeline_fd)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that a taken port is told from every other trouble."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host} --port {port}: {error}") from error
    if not ipaddress.ip_address(str(address[0]).split("%")[0]).is_loopback:
        logging.getLogger(__name__).warning(
            "listening on %s without TLS: whoever reads the network reads the tokens; put a TLS proxy in front",
            address[0],
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


class _Uvicorn(uvicorn.Server):
    """uvicorn that says when it is ready, and that answers long polls when it is to end."""

    def __init__(self, config: uvicorn.Config, server: Server, lifeline: int | None) -> None:
        super().__init__(config)
        self._parts = server
        self._lifeline = lifeline

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._lifeline is not None:
            asyncio.get_running_loop().add_reader(self._lifeline, self._lifeline_moved, self._lifeline)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            print(f"hpo-pilot server ready on http://{shown}:{port}", flush=True)  # noqa: T201  # whoever started it waits for this

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


def _serve(server: Server, listener: socket.socket, lifeline: int | None) -> None:
    config = uvicorn.Config(
        server.application(),
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=120,
        timeout_graceful_shutdown=_GRACE,
    )
    _Uvicorn(config, server, lifeline).run(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
