"""Starts one process of a job on each of its nodes by the agents of an allocation, without a job step.

    python3 -I -S spread.py start NODES NAMES COMMAND...   beside the job's runner, as srun would be
    python3 -I -S spread.py part ADDRESS NODE              on each node: an agent starts it, see agent.py

`start` listens, and asks the pilot of the allocation, which tells the agents of the job's nodes. Each `part` connects
to it, starts the command there, and sends its output and exit status. Processes get the variables with these NAMES
besides the agent's variables. SIGTERM reaches the processes of all nodes. If one fails, or its connection is lost, the
others are ended; each also ends when its connection or its agent ends. Agents run parts below hpo_pilot_orphans.py,
which ends all that a part leaves.

Both run from the folder of the agents' files, which all nodes share, and use its certificate and token. Only the
standard library, because neither has site-packages.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import signal
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SETTINGS, TOKEN, CERTIFICATE, KEY = "agents.json", "token", "certificate.pem", "key.pem"

#: The beginning of this program's own lines in logs.
OWN = "hpo_pilot_spread: "
_COME = 120.0  # seconds for all parts to connect
_GRACE = 10.0  # seconds between TERM and KILL, as of the runner
_LINE = 1 << 20  # bytes of a message
_BLOCK = 1 << 16  # bytes of output, and of a line that is not mixed with those of other nodes
_LAST = 1.0  # seconds for the rest of the output of a process that has ended


def _message(**said: Any) -> bytes:
    return json.dumps(said).encode() + b"\n"


def _print(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(HERE / CERTIFICATE))


class Spread:
    """The processes of a job on its nodes."""

    def __init__(self, nodes: Sequence[str], names: Sequence[str], argv: Sequence[str]) -> None:
        """Takes nodes, names of variables, and command; `run` starts the processes."""
        env = {name: os.environ[name] for name in names if name in os.environ}
        self._order = _message(argv=argv, env=env, folder=str(Path.cwd()))
        self._token = (HERE / TOKEN).read_text()
        self._missing, self._running = set(nodes), set(nodes)  # not connected; not ended
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._is_told = False  # to end
        self._over = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        """Runs the processes to their end; returns the status of the first one that failed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(HERE / CERTIFICATE, HERE / KEY)
        host, _, port = json.loads((HERE / SETTINGS).read_text())["server"].rpartition("//")[2].rpartition(":")
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._tell)
        async with await asyncio.start_server(self._talk, host, 0, ssl=context, limit=_LINE, backlog=4096) as listening:
            try:
                await self._ask(host, port, listening.sockets[0].getsockname()[1])
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                _print(f"{OWN}no agents can start the job: {error}\n".encode())
                return 1
            loop.call_later(_COME, self._give_up)
            await self._over.wait()
        return self._status

    async def _ask(self, host: str, port: str, own: int) -> None:
        """Lets the agents start the parts."""
        job = [int(os.environ["PANDAID"]), int(os.environ["PANDA_ATTEMPTNR"])]
        body = json.dumps({"job": job, "address": f"{host}:{own}"})
        head = f"POST /api/v1/hpo_pilot/spread HTTP/1.1\r\nAuthorization: Bearer {self._token}\r\n"
        reader, writer = await asyncio.open_connection(host, int(port), ssl=_trusted())
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        size = int((await reader.readuntil(b"\r\n\r\n")).rpartition(b":")[2])
        answer = json.loads(await reader.readexactly(size))
        writer.close()
        if not answer["success"]:
            raise ValueError(answer["message"])

    def _give_up(self) -> None:
        for node in sorted(self._missing):
            _print(f"{OWN}nothing has started on {node} within {_COME:.0f} s\n".encode())
            self._end(node, 1)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talks with a part to its end."""
        node, rest = "", b""
        try:
            said = json.loads(await reader.readline())
            if not hmac.compare_digest(said["token"], self._token) or self._is_told:
                return
            self._missing.remove(said["node"])
            node = said["node"]
            self._writers[node] = writer
            writer.write(self._order)
            while "status" not in said:
                said = json.loads(await reader.readline())
                if "cancelled" in said:
                    _print(f"{OWN}the agent of {node} was told to end\n".encode())
                block = rest + await reader.readexactly(said.get("output", 0))
                whole, newline, rest = (block, b"", b"") if len(block) > _BLOCK else block.rpartition(b"\n")
                _print(whole + newline)
            self._end(node, said["status"])
        except (OSError, ValueError, LookupError, TypeError, asyncio.IncompleteReadError):
            if node:
                _print(f"{OWN}the connection was lost to {node}\n".encode())
                self._end(node, 1)
        finally:
            _print(rest and rest + b"\n")
            writer.close()

    def _end(self, node: str, status: int) -> None:
        """Notes the end of a node's process; the others end too if it has failed."""
        self._running.discard(node)
        if status and not self._status:
            self._status = status
            self._tell()
        if not self._running:
            self._over.set()

    def _tell(self) -> None:
        """Sends SIGTERM to all processes; those that have not begun will not begin."""
        self._is_told = True
        for node in self._running & self._writers.keys():
            self._writers[node].write(_message())
        for node in self._missing & self._running:
            self._end(node, 128 + signal.SIGTERM)


async def part(address: str, node: str) -> None:
    """Runs the process of a node."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=_trusted(), limit=_LINE)
    writer.write(_message(token=(HERE / TOKEN).read_text(), node=node))
    if not (line := await reader.readline()):
        return  # it is not needed any more
    order, loop = json.loads(line), asyncio.get_running_loop()
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", 'exec "$0" "$@"', *order["argv"]),  # the shell reports a missing program
        cwd=order["folder"],
        env={**os.environ, **order["env"]},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    told: list[asyncio.TimerHandle] = []  # once: TERM may come from the agent too

    def tell() -> None:
        if not told and process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
            told.append(loop.call_later(_GRACE, kill))

    def kill() -> None:
        if process.returncode is None:  # its status is sent: without one, the node would count as lost
            os.killpg(process.pid, signal.SIGKILL)

    def cancel() -> None:
        writer.write(_message(cancelled=True))
        tell()

    async def obey() -> None:
        while await reader.readline():
            tell()
        os._exit(1)

    async def pass_on() -> None:
        while process.stdout is not None and (block := await process.stdout.read(_BLOCK)):
            writer.write(_message(output=len(block)) + block)
            await writer.drain()

    loop.add_signal_handler(signal.SIGTERM, cancel)
    loop.add_reader(0, os._exit, 1)  # its agent has ended
    obeying, passing = asyncio.create_task(obey()), asyncio.create_task(pass_on())
    status = await process.wait()
    await asyncio.wait([passing], timeout=_LAST)  # a process that was left may hold the pipe
    writer.write(_message(status=status if status >= 0 else 128 - status))
    await writer.drain()
    obeying.cancel()


if __name__ == "__main__":
    mode, first, second, *command = sys.argv[1:]
    if mode == "part":
        asyncio.run(part(first, second))
        os._exit(0)
    sys.exit(asyncio.run(Spread(first.split(","), second.split(","), command).run()))
