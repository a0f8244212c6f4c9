"""The relay, between a client and a server with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from hpo_pilot.batch.relay import Address, Relay, RelayLimits
from hpo_pilot.errors import InputError
from hpo_pilot.pilot.session import open_session
from hpo_pilot.server.access.tls import Certificate, self_made

LARGE = b"x" * 3_000_000


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(LARGE)))
        self.end_headers()
        self.wfile.write(LARGE)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_made(tmp_path_factory.mktemp("tls"), ["localhost", "127.0.0.1"])


@pytest.fixture
def server(certificate: Certificate) -> Iterator[Address]:
    """One that speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain, certificate.key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.socket = context.wrap_socket(http.socket, server_side=True)
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield Address("localhost", http.server_port)
        http.shutdown()
        thread.join()


@asynccontextmanager
async def running(*servers: Address, limits: RelayLimits | None = None) -> AsyncIterator[Address]:
    relay = await Relay(servers, limits).listen(Address("127.0.0.1", _free_port()))
    try:
        yield Address("127.0.0.1", relay.sockets[0].getsockname()[1])
    finally:
        relay.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def said(at: Address, request: bytes) -> str:
    """The first line of the answer; empty: the connection ends without."""
    reader, writer = await asyncio.open_connection(at.host, at.port)
    try:
        writer.write(request)
        return (await asyncio.wait_for(reader.readline(), 10)).decode().strip()
    finally:
        writer.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 30)

    asyncio.run(bounded())


def test_a_pilots_session_goes_through_it(
    server: Address, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS is from end to end: the pilot checks the server's certificate."""

    async def test() -> None:
        async with running(server) as relay:
            monkeypatch.setenv("https_proxy", f"http://{relay}")
            monkeypatch.setenv("no_proxy", "")

            def fetch() -> bytes:
                with open_session(f"https://{server}", certificate.authority) as session:
                    assert session.proxies["https"] == f"http://{relay}"
                    return session.get(f"https://{server}/", timeout=10).content

            assert await asyncio.gather(*(asyncio.to_thread(fetch) for _ in range(3))) == [LARGE] * 3

    run(test)


def test_other_servers_are_not_reached(server: Address, certificate: Certificate) -> None:
    async def test() -> None:
        async with running(Address("other.example.org", 443)) as relay:
            proxies = {"https": f"http://{relay}"}
            with pytest.raises(requests.exceptions.ProxyError, match="403 Forbidden"):
                await asyncio.to_thread(
                    requests.get, f"https://{server}/", proxies=proxies, verify=str(certificate.authority), timeout=10
                )

    run(test)


@pytest.mark.parametrize(
    ("request_line", "answer"),
    [
        ("CONNECT localhost:1 HTTP/1.1", "403 Forbidden"),
        ("CONNECT LOCALHOST:{port} HTTP/1.1", "200 Connection established"),
        ("CONNECT 127.0.0.1:{port} HTTP/1.1", "403 Forbidden"),  # names are not looked up to compare them
        ("CONNECT localhost HTTP/1.1", "400 Bad Request"),
        ("CONNECT localhost:99999 HTTP/1.1", "400 Bad Request"),
        ("CONNECT user@localhost:{port} HTTP/1.1", "400 Bad Request"),
        ("GET http://localhost:{port}/ HTTP/1.1", "405 Method Not Allowed"),
        ("POST / HTTP/1.1", "405 Method Not Allowed"),
        ("CONNECT localhost:{port}", "400 Bad Request"),
        ("\x16\x03\x01", "400 Bad Request"),
    ],
)
def test_what_it_answers(request_line: str, answer: str, server: Address) -> None:
    async def test() -> None:
        async with running(server) as relay:
            request = f"{request_line.format(port=server.port)}\r\nHost: x\r\n\r\n".encode()
            assert await said(relay, request) == f"HTTP/1.1 {answer}"

    run(test)


def test_a_head_without_end(server: Address) -> None:
    async def test() -> None:
        async with running(server, limits=RelayLimits(head=0.2)) as relay:
            assert await said(relay, b"CONNECT localhost") == ""
            assert "431" in await said(relay, b"CONNECT " + b"a" * 20_000)

    run(test)


def test_a_server_that_is_away() -> None:
    async def test() -> None:
        away = Address("127.0.0.1", _free_port())
        async with running(away) as relay:
            assert await said(relay, f"CONNECT {away} HTTP/1.1\r\n\r\n".encode()) == "HTTP/1.1 502 Bad Gateway"

    run(test)


def test_no_more_connections_than_allowed(server: Address) -> None:
    async def test() -> None:
        async with running(server, limits=RelayLimits(connections=1)) as relay:
            _, writer = await asyncio.open_connection(relay.host, relay.port)
            request = f"CONNECT {server} HTTP/1.1\r\n\r\n".encode()
            assert await said(relay, request) == "HTTP/1.1 503 Service Unavailable"
            writer.close()
            await writer.wait_closed()
            while (answer := await said(relay, request)) != "HTTP/1.1 200 Connection established":
                assert "503" in answer  # until the relay has seen that the first has gone
                await asyncio.sleep(0.02)

    run(test)


def test_a_connection_on_which_nothing_moves(server: Address) -> None:
    async def test() -> None:
        async with running(server, limits=RelayLimits(idle=0.2)) as relay:
            reader, writer = await asyncio.open_connection(relay.host, relay.port)
            writer.write(f"CONNECT {server} HTTP/1.1\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()

    run(test)


@pytest.mark.parametrize(
    "text",
    [
        "host",
        ":1",
        "host:0",
        "host:65536",
        "host:a",
        "ho st:1",
        "a:b:1",
        "http://host:1",
        "[]:1",
        f"{'a' * 70}.org:1",
        f"host:{'1' * 9999}",
    ],
)
def test_no_address(text: str) -> None:
    with pytest.raises(InputError, match="--to"):
        Address.read(text, "--to")


def test_addresses() -> None:
    assert Address.read("Panda.Example.org:25443", "--to") == Address("panda.example.org", 25443)
    assert str(Address.read("[::1]:80", "--to")) == "[::1]:80"


def test_a_port_that_is_taken(server: Address, tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(InputError, match="--listen"):
            await Relay([server]).listen(Address("127.0.0.1", server.port))

    run(test)


def test_the_command(server: Address, certificate: Certificate) -> None:
    """It says where it listens, relays, and ends on SIGTERM, open connections or not."""
    at = Address("127.0.0.1", _free_port())
    command = [sys.executable, "-m", "hpo_pilot.cli", "relay", "--listen", str(at), "--to", str(server)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip().endswith(f"--proxy http://{at}")
            with requests.Session() as session:
                proxies = {"https": f"http://{at}"}
                answer = session.get(
                    f"https://{server}/", proxies=proxies, verify=str(certificate.authority), timeout=10
                )
                assert answer.content == LARGE
                process.terminate()
                assert process.wait(10) == 0
        finally:
            process.kill()


def test_many_connections_at_once() -> None:
    """More than a login node's usual limit of 1024 open files allows, each with two ends."""
    at, listening = Address("127.0.0.1", _free_port()), socket.create_server(("127.0.0.1", 0), backlog=100)
    server = Address("127.0.0.1", listening.getsockname()[1])
    command = [sys.executable, "-m", "hpo_pilot.cli", "relay", "--listen", str(at), "--to", str(server)]
    limited = ["sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh", *command]
    with listening, subprocess.Popen(limited, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip().endswith(f"--proxy http://{at}")
            with contextlib.ExitStack() as stack:
                for _ in range(60):
                    connection = stack.enter_context(socket.create_connection((at.host, at.port), timeout=10))
                    connection.sendall(f"CONNECT {server} HTTP/1.1\r\n\r\n".encode())
                    assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        finally:
            process.kill()
