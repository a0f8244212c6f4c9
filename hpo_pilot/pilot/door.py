"""The server of an allocation's agents: HTTP/1.1 with TLS and a token, in a thread of the allocation's pilot."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.files import write_whole
from hpo_pilot.pilot.spread import CERTIFICATE, KEY, TOKEN

_IN_MEMORY, _BLOCK = 1 << 20, 1 << 18  # bytes


class Request(NamedTuple):
    """One HTTP request; the names of headers are in lower case, the body is `size` bytes."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: IO[bytes]
    size: int

    def json(self) -> Any:
        """Returns the body as JSON."""
        return json.loads(self.body.read())


#: Status, and content as bytes or as a file.
Answer = tuple[int, bytes | IO[bytes]]


def message(status: int, text: str) -> Answer:
    """Returns a refusal, as panda-server writes it."""
    return status, json.dumps({"success": False, "message": text}).encode()


class Door:
    """Listens for the agents, with TLS and a token, in a thread of its own.

    It reads the requests of AgentServer: HTTP/1.1 over connections that stay open, bodies with their length or in
    chunks.
    """

    def __init__(self, token: str, answer: Callable[[Request], Any], connected: Callable[[str, int], None]) -> None:
        """Opens no port yet.

        Args:
            token: of the agents.
            answer: a coroutine function that answers a request.
            connected: is called with a node and 1 or -1, for its first request in a connection and the end of that.
        """
        self._authorization, self._answer, self._connected = f"Bearer {token}".encode(), answer, connected
        self._token = token
        self._loop = asyncio.new_event_loop()

    def open(self, folder: Path, node: str) -> str:
        """Listens, and returns the URL.

        Args:
            folder: for token and certificate.
            node: a node that must reach it, another one than this if there is any.

        Raises:
            OSError: no port can be opened.
            HpoPilotError: there is no certificate.
        """
        address = _own_address(node)
        write_whole(folder / TOKEN, self._token, mode=0o600, scratch=True)
        _make_certificate(folder, address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
        started = self._loop.run_until_complete(asyncio.start_server(self._talk, address, 0, ssl=context, backlog=4096))
        threading.Thread(target=self._loop.run_forever, name="door", daemon=True).start()
        return f"https://{address}:{started.sockets[0].getsockname()[1]}"

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function in the door's thread, soon."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """Ends the thread; open connections break off."""
        self.call(self._loop.stop)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = ""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                fields = (line.partition(":") for line in head[1:])
                headers = {name.lower(): value.strip() for name, _, value in fields}
                is_agent = hmac.compare_digest(headers.get("authorization", "").encode(), self._authorization)
                if not is_agent and not _is_of_payload(path, headers):
                    return await _send(writer, *message(401, "this is no agent of the allocation"))
                if is_agent and not node:
                    node = headers.get("x-hpo-pilot-node", "")
                    self._connected(node, 1)
                with tempfile.SpooledTemporaryFile(_IN_MEMORY) as body:
                    size = await _read_body(reader, headers, body)
                    body.seek(0)
                    status, content = await self._answer(Request(method, path, headers, body, size))
                await _send(writer, status, content)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
            return None  # it has ended, or is no agent
        finally:
            if node:
                self._connected(node, -1)
            writer.close()


def _is_of_payload(path: str, headers: Mapping[str, str]) -> bool:
    """Returns whether a call is one of payloads for their points; the key in its path replaces the token."""
    return path.startswith("/points/") and ".." not in unquote(path) and _size(headers) <= _IN_MEMORY


def _size(headers: Mapping[str, str]) -> float:
    return float("inf") if "transfer-encoding" in headers else int(headers.get("content-length", 0))


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str], body: IO[bytes]) -> int:
    """Reads the body of a request into a file; returns its size in bytes."""
    size, in_chunks = int(headers.get("content-length", 0)), headers.get("transfer-encoding") == "chunked"
    total = 0
    while True:
        if in_chunks:
            size = int(await reader.readline(), 16)
        total += size
        left = size
        while left:
            block = await reader.read(min(left, _BLOCK))
            if not block:
                raise asyncio.IncompleteReadError(b"", left)
            body.write(block)
            left -= len(block)
        if in_chunks:
            await reader.readline()
        if not in_chunks or not size:
            return total


async def _send(writer: asyncio.StreamWriter, status: int, content: bytes | IO[bytes]) -> None:
    size = len(content) if isinstance(content, bytes) else os.fstat(content.fileno()).st_size
    writer.write(f"HTTP/1.1 {status} .\r\nContent-Length: {size}\r\n\r\n".encode())
    if isinstance(content, bytes):
        writer.write(content)
        await writer.drain()
        return
    with content:
        while block := content.read(_BLOCK):
            writer.write(block)
            await writer.drain()


def _own_address(node: str) -> str:
    """Returns the address of this machine at which a node reaches it; of emulated nodes the loopback address."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((node, 9))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def _make_certificate(folder: Path, address: str) -> None:
    """Makes the key and the certificate of the door; the agents trust no other one.

    Raises:
        HpoPilotError: openssl is missing, or fails.
    """
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "30", "-subj", "/CN=hpo-pilot", "-addext", f"subjectAltName=IP:{address}"]
    words += ["-keyout", str(folder / KEY), "-out", str(folder / CERTIFICATE)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise HpoPilotError(
            f"openssl, which makes the certificate of this pilot, cannot be started: {error}"
        ) from error
    if done.returncode:
        raise HpoPilotError(f"openssl makes no certificate: {done.stderr.strip()[-300:]}")
