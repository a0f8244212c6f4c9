"""A way out for compute nodes that have none: an HTTP proxy on the login node for the named servers alone.

It takes CONNECT (RFC 9110, section 9.3.6) and nothing else, so TLS goes from end to end and the relay sees neither
tokens nor data. Python's asyncio has all that is needed; the libraries that were looked at (proxy.py, pproxy) are whole
proxies, which would have to be told what not to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection
from dataclasses import dataclass

from hpo_pilot.errors import InputError

log = logging.getLogger(__name__)

_HEAD_BYTES = 8192
_CHUNK = 65536


@dataclass(frozen=True)
class Address:
    """A host, by name or address, and a port."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str, option: str) -> Address:
        """From `host:port`, or `[address]:port`.

        Raises:
            InputError: it is none.
        """
        host, colon, port = text.strip().rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        plain = bool(bare) and not any(c.isspace() or c in "/@[]" for c in bare) and (":" not in bare or bare != host)
        if not (colon and plain and _is_name(bare) and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
            raise InputError(f"{option} {text!r}: give host and port, such as panda.example.org:25443")
        return cls(bare.lower(), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class RelayLimits:
    """What one relay bears.

    Attributes:
        connections: at once; more are refused.
        head: seconds that a client gets to say what it wants.
        connect: seconds that a server gets to answer.
        idle: seconds without a byte either way after which a connection ends; more than a server keeps a pilot waiting.
    """

    connections: int = 1000
    head: float = 10.0
    connect: float = 15.0
    idle: float = 600.0


class _RefusedError(Exception):
    """Nothing is relayed; the arguments are status, reason phrase and what is logged."""

    def __init__(self, status: int, phrase: str, why: str) -> None:
        super().__init__(why)
        self.answer = f"HTTP/1.1 {status} {phrase}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


class Relay:
    """The proxy."""

    def __init__(self, servers: Collection[Address], limits: RelayLimits | None = None) -> None:
        """Listens nowhere yet.

        Args:
            servers: those that it lets through to.
            limits: what it bears.
        """
        self._servers = frozenset(servers)
        self._limits = limits or RelayLimits()
        self._open = 0

    async def listen(self, at: Address) -> asyncio.Server:
        """Starts listening.

        Args:
            at: where.

        Raises:
            InputError: it is not possible there.
        """
        try:
            return await asyncio.start_server(self._serve, at.host, at.port, limit=_HEAD_BYTES)
        except OSError as error:
            raise InputError(f"--listen {at}: {error.strerror or error}; choose another port or address") from error

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            await self._relay(reader, writer)
        except _RefusedError as refused:
            log.warning("refused %s: %s", writer.get_extra_info("peername"), refused)
            with contextlib.suppress(OSError):
                writer.write(refused.answer)
                await asyncio.wait_for(writer.drain(), self._limits.head)
        except (OSError, TimeoutError, EOFError) as error:
            log.debug("a connection ended: %r", error)
        finally:
            self._open -= 1
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open > self._limits.connections:
            raise _RefusedError(503, "Service Unavailable", f"{self._limits.connections} connections are open")
        server = await self._wanted(reader)
        try:
            away = await asyncio.wait_for(asyncio.open_connection(server.host, server.port), self._limits.connect)
        except TimeoutError as error:
            raise _RefusedError(504, "Gateway Timeout", f"{server} does not answer") from error
        except OSError as error:
            raise _RefusedError(502, "Bad Gateway", f"{server}: {error.strerror or error}") from error
        try:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self._both(_Pair(reader, away[1]), _Pair(away[0], writer))
        finally:
            away[1].close()

    async def _wanted(self, reader: asyncio.StreamReader) -> Address:
        """The server that the client asks for."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._limits.head)
        except asyncio.LimitOverrunError as error:
            raise _RefusedError(431, "Request Header Fields Too Large", "the request's head is too long") from error
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise _RefusedError(400, "Bad Request", f"no HTTP request: {words[0][:20]!r}")
        if words[0] != "CONNECT":
            raise _RefusedError(405, "Method Not Allowed", f"{words[0][:20]}: only https servers, by CONNECT")
        try:
            server = Address.read(words[1], "CONNECT")
        except InputError as error:
            raise _RefusedError(400, "Bad Request", str(error)) from error
        if server not in self._servers:
            raise _RefusedError(403, "Forbidden", f"{server} is none of the servers that --to names")
        return server

    async def _both(self, *pairs: _Pair) -> None:
        """Copies both ways until both have ended, one has failed, or nothing has moved for long."""
        copying = [asyncio.ensure_future(pair.copy()) for pair in pairs]
        try:
            while not all(task.done() for task in copying):
                moved = sum(pair.moved for pair in pairs)
                done, _ = await asyncio.wait(
                    [task for task in copying if not task.done()],
                    timeout=self._limits.idle,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    task.result()  # its error ends the other too
                if not done and moved == sum(pair.moved for pair in pairs):
                    log.info("nothing has moved for %.0f s: a connection is ended", self._limits.idle)
                    return
        finally:
            for task in copying:
                task.cancel()
            await asyncio.gather(*copying, return_exceptions=True)


def _is_name(host: str) -> bool:
    """Whether it can be looked up at all."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


class _Pair:
    """One direction of a connection."""

    def __init__(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        self._source = source
        self._target = target
        self.moved = 0  # bytes

    async def copy(self) -> None:
        """Copies until the source ends, and hands the end on; waits for a slow target."""
        while chunk := await self._source.read(_CHUNK):
            self._target.write(chunk)
            await self._target.drain()
            self.moved += len(chunk)
        if self._target.can_write_eof():
            self._target.write_eof()
