"""The embedded PanDA server under load: many pilots, and a restart with jobs at work."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import psutil
import requests
import uvloop
from sqlalchemy import make_url

from hpo_pilot.server.tokens import Role
from tests.bearer import make_token_folder, token
from tests.postgresql import BASE, new_database
from tests.server_process import ServerProcess
from tests.task_parameters import bare_params

# A server for a benchmark: in a process of its own, with tasks whose jobs do nothing.


def two_cores() -> None:
    """Holds this process and those that it starts to two cores, where the machine has more."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


class LoadServer:
    """A running server and calls to it."""

    def __init__(self, folder: Path, place: str | None = None, options: Sequence[str] = ()) -> None:
        self._folder = folder
        self._place, self._options = place or folder / "panda.db", options
        self._session = requests.Session()
        self._tokens = make_token_folder(folder / "tokens")
        self.start()

    def start(self) -> None:
        self.process = ServerProcess(
            database=self._place, files=self._folder / "files", tokens=self._tokens, options=self._options
        )
        self.url = self.process.url

    def kill(self) -> None:
        """Kill -9."""
        self.process.process.kill()
        self.process.stop()

    def cpu_seconds(self) -> float:
        return sum(map(_cpu, self.processes()))

    def processes(self) -> list[psutil.Process]:
        """Its processes, the first one first."""
        first = psutil.Process(self.process.pid)
        return [first, *first.children()]

    def memory_mb(self) -> float:
        return float(sum(process.memory_info().rss for process in self.processes())) / 1e6

    def waited_seconds(self) -> float:
        """Seconds that its threads were ready to run and had no core: what other programs took from it."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9

    def call(self, role: Role, path: str, **arguments: Any) -> Any:
        """One call; its data."""
        headers = {"Authorization": f"Bearer {token('bench', role)}"}
        get = path.startswith(("task/get", "job/get", "pilot/get", "system/"))
        answer = self._session.request(
            "GET" if get else "POST",
            f"{self.url}/api/v1/{path}",
            params=arguments if get else None,
            json=None if get else arguments,
            headers=headers,
            timeout=120,
        )
        reply = answer.json()
        if not reply["success"]:
            raise RuntimeError(f"{path}: {reply['message']}")
        return reply["data"]

    def submit(self, name: str, n_jobs: int, **more: Any) -> int:
        arguments = f"runner%20--points%20{'x' * 2000}%20--number%20"
        parameters = bare_params(f"user.bench.{name}/", n_jobs, arguments) | {"userName": "bench"} | more
        return int(self.call(Role.USER, "task/submit", task_parameters=parameters))


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def load_server(folder: Path, place: str | None = None, options: Sequence[str] = ()) -> Iterator[LoadServer]:
    server = LoadServer(folder, place, options)
    try:
        yield server
    finally:
        server.process.stop()


# A restart of the embedded server with 10,000 jobs at pilots: how long it is away, and that no job is lost.

RESTART_LIMIT = 5.0  # seconds
_TASKS = 100
_BULK = 1000


def measure_restart(*, quick: bool) -> dict[str, Any]:
    """Killed and started again; ended in order and started again. From the start to the first answers."""
    two_cores()
    count = 10_000  # also when quick: it is the number that the limit is about
    with tempfile.TemporaryDirectory() as folder, load_server(Path(folder)) as server:
        tasks = [server.submit(f"restart{number}", count // _TASKS, campaign=f"c.{number}") for number in range(_TASKS)]
        waiting = server.submit("waiting", 1000, campaign="waiting.1", taskPriority=1)
        active = _take(server, count)
        killed = _again(server, server.kill)
        _check(server, active)
        stopped = _again(server, server.process.stop)
        _check(server, active)
        for start in range(0, count, _BULK):
            _report(server, active[start : start + _BULK], "finished")
        done = [server.call(Role.USER, "task/get_status", task_id=task_id) for task_id in tasks]
        assert done == ["done"] * _TASKS, done
        assert server.call(Role.USER, "task/get_status", task_id=waiting) == "running"
    held = max(killed, stopped) < RESTART_LIMIT
    print(
        f"restart with {count} jobs at pilots and 1000 waiting: {killed:.2f} s after kill -9, {stopped:.2f} s after an "
        f"orderly end, until pilots and users are served (limit {RESTART_LIMIT:.0f} s); all {count} jobs then "
        f"finished: {'limit held' if held else 'LIMIT MISSED'}"
    )
    return {"active_jobs": count, "after_kill": killed, "after_stop": stopped, "held": held}


def _take(server: LoadServer, count: int) -> list[int]:
    taken: list[int] = []
    while len(taken) < count:
        jobs = server.call(Role.PILOT, "pilot/acquire_jobs", site_name="LOCAL", n_jobs=min(_BULK, count - len(taken)))
        taken += [job["PandaID"] for job in jobs["jobs"]]
        _report(server, [job["PandaID"] for job in jobs["jobs"]], "running")
    return taken


def _report(server: LoadServer, ids: list[int], status: str) -> None:
    reports = [{"job_id": panda_id, "job_status": status, "attempt_nr": 1} for panda_id in ids]
    commands = {server.call(Role.PILOT, "pilot/update_job", **report)["command"] for report in reports}
    assert commands == {None}, commands


def _again(server: LoadServer, end: Any) -> float:
    """Seconds from the start of a new server until it has answered a user, given out a job and taken a report."""
    end()
    begun = time.perf_counter()
    server.start()
    server.call(Role.USER, "task/get_status", task_id=1)
    (job,) = server.call(Role.PILOT, "pilot/acquire_jobs", site_name="LOCAL", n_jobs=1)["jobs"]
    _report(server, [job["PandaID"]], "running")
    return time.perf_counter() - begun


def _check(server: LoadServer, active: list[int]) -> None:
    """Every job is where it was, and its pilot may go on."""
    for start in range(0, len(active), 200):
        some = active[start : start + 200]
        described = server.call(Role.USER, "job/get_description", job_ids=some)
        states = {(job["jobStatus"], job["attemptNr"]) for job in described}
        assert states == {("running", 1)}, states
    _report(server, active[:_BULK], "running")


# The embedded server under load: 200 acquire and update calls a second by 500 pilots, each on a connection of its own.
#
# The calls come when they are due, however long earlier ones take (an open loop), and a call's time runs from the
# moment
# it was due: a server that falls behind cannot hide it. This process makes the load; the server is another, and both
# share two cores. Then, for the headroom, everybody calls as fast as answers come.

PILOTS = 500
RATE = 200.0  # calls per second
LIMIT = 0.250  # seconds: of every hundred calls ninety-nine are answered by then
_SEARCHES = 20
_METADATA = json.dumps({"user_job_metadata": {"hpo_pilot": {"points": [{"loss": 0.5, "log": "x" * 500}]}}})


class Pilot(asyncio.Protocol):
    """One connection, one call at a time, with as little work as possible."""

    def __init__(self, number: int, head: bytes) -> None:
        self._number = number
        self._head = head
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._job: int | None = None
        self._running = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end]).lower()
        length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        if len(self._received) >= end + 4 + length and self._answer is not None:
            body = bytes(self._received[end + 4 : end + 4 + length])
            del self._received[: end + 4 + length]
            self._answer.set_result(body if b" 200 ok" in head else b"")

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(b"")

    def close(self) -> None:
        self._transport.close()

    async def call(self) -> str:
        """The next call of a pilot's life: take a job, say that it runs, say that it is finished.

        Returns:
            What was called; `error` where the answer was none.
        """
        if self._job is None:
            reply = await self.send("pilot/acquire_jobs", self.request())
            if reply is None or not reply["success"]:
                return "error"
            self._job = reply["data"]["jobs"][0]["PandaID"]
            return "acquire"
        self._running = not self._running
        reply = await self.report(self._job, "running" if self._running else "finished")
        if not self._running:
            self._job = None
        return "error" if reply is None or not reply["success"] or reply["data"]["command"] else "update"

    @property
    def is_free(self) -> bool:
        """Whether it has no job that runs."""
        return not self._running

    async def beat(self) -> None:
        """Sends a heartbeat of its job."""
        assert self._job is not None
        reply = await self.report(self._job, "running")
        assert reply["success"] and not reply["data"]["command"], reply

    def request(self) -> dict[str, Any]:
        """The arguments of a call for a job."""
        where = {"site_name": "LOCAL", "prod_source_label": "user", "node": f"node{self._number}", "memory": 4000}
        return where | {"harvester_id": "bench", "worker_id": self._number}

    async def report(self, job: int, status: str) -> Any:
        """Reports on a job; the answer."""
        said = {"job_id": job, "job_status": status, "attempt_nr": 1, "node": f"node{self._number}", "core_count": 1}
        return await self.send("pilot/update_job", said | ({"meta_data": _METADATA} if status == "finished" else {}))

    async def send(self, path: str, arguments: dict[str, Any]) -> Any:
        """Calls; the answer, None where there is none."""
        body = json.dumps(arguments).encode()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(
            b"POST /api/v1/%b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (path.encode(), self._head, len(body)) + body
        )
        answer = await self._answer
        return json.loads(answer) if answer else None


class _Load:
    """What was called, and how long each call took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.kinds: Counter[str] = Counter()

    async def one(self, pilot: Pilot, due: float) -> None:
        kind = await pilot.call()
        self.seconds.append(time.perf_counter() - due)
        self.kinds[kind] += 1

    def quantile(self, share: float) -> float:
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


def measure_pilot_load(*, quick: bool) -> dict[str, Any]:
    """Latencies at the rate of the limit, and the rate where the server is the limit."""
    two_cores()
    with tempfile.TemporaryDirectory() as folder, load_server(Path(folder)) as server:
        for number in range(_SEARCHES):
            server.submit(f"load{number}", 1000, campaign=f"load.{number}")
        return uvloop.run(_measure(server, 10.0 if quick else 60.0)) | _heartbeats(server)


def _heartbeats(server: LoadServer) -> dict[str, Any]:
    """Heartbeats of 1,000 jobs one by one beside those in lists, as many as an allocation's pilot sends in one call."""
    server.submit("heartbeats", _BULK)
    said = {"job_status": "running", "attempt_nr": 1, "node": "n1", "site_name": "LOCAL", "batch_id": "1"}
    said |= {"pilot_id": "hpo-pilot|h|1", "start_time": "2026-01-01 00:00:00", "job_metrics": "hpoStep=1 hpoValue=0.5"}
    reports = [{"job_id": panda_id, **said} for panda_id in _take(server, _BULK)]
    figures: dict[str, Any] = {}
    for most in (1, 100):
        cpu, begun = server.cpu_seconds(), time.perf_counter()
        for start in range(0, _BULK, most):
            if most == 1:
                server.call(Role.PILOT, "pilot/update_job", **reports[start])
            else:
                data = server.call(Role.PILOT, "pilot/update_jobs_bulk", job_list=reports[start : start + most])
                assert all(answer["success"] for answer in data), data
        figures[f"heartbeats_per_second_by_{most}"] = _BULK / (time.perf_counter() - begun)
        figures[f"heartbeats_per_cpu_second_by_{most}"] = _BULK / (server.cpu_seconds() - cpu)
    single, joined = figures["heartbeats_per_cpu_second_by_1"], figures["heartbeats_per_cpu_second_by_100"]
    print(
        f"heartbeats for each CPU second of the server: {single:.0f} in calls of their own, {joined:.0f} in calls of "
        f"100, ratio {joined / single:.1f}; by one caller {figures['heartbeats_per_second_by_1']:.0f}/s and "
        f"{figures['heartbeats_per_second_by_100']:.0f}/s"
    )
    return figures


async def _measure(server: LoadServer, seconds: float) -> dict[str, Any]:
    pilots = await _connect(server)
    await _paced(pilots, 2.0)  # the first call of each connection and the first look at everything
    before = server.cpu_seconds(), time.process_time(), server.waited_seconds()
    load, elapsed = await _paced(pilots, seconds)
    cpu, own = (server.cpu_seconds() - before[0]) / elapsed, (time.process_time() - before[1]) / elapsed
    waited = (server.waited_seconds() - before[2]) / elapsed
    paced = {
        "pilots": PILOTS,
        "calls_per_second": len(load.seconds) / elapsed,
        "p50": load.quantile(0.50),
        "p99": load.quantile(0.99),
        "slowest": max(load.seconds),
        "errors": load.kinds["error"],
        "server_cpu": cpu,
        "load_cpu": own,
        "server_waited_for_a_core": waited,
    }
    print(
        f"{paced['calls_per_second']:.0f} calls/s of {PILOTS} pilots for {elapsed:.0f} s "
        f"({dict(load.kinds)}): p50 {paced['p50'] * 1e3:.1f} ms, p99 {paced['p99'] * 1e3:.1f} ms "
        f"(limit {LIMIT * 1e3:.0f} ms), slowest {paced['slowest'] * 1e3:.0f} ms; "
        f"server {cpu:.0%} of a core, load {own:.0%}; other programs kept the server waiting for a core {waited:.0%}"
    )
    load, elapsed = await _pressing(pilots, 5.0)
    most = len(load.seconds) / elapsed
    print(f"{most:.0f} calls/s as fast as answers come, p99 {load.quantile(0.99) * 1e3:.0f} ms")
    for pilot in pilots:
        pilot.close()
    held = paced["p99"] < LIMIT and not paced["errors"] and paced["calls_per_second"] > 0.99 * RATE
    print("limit held" if held else "LIMIT MISSED")
    return {**paced, "most_calls_per_second": most, "held": held}


async def _connect(
    server: LoadServer, count: int = PILOTS, role: Role = Role.PILOT, more: str = "", name: str = "bench-pilot"
) -> list[Pilot]:
    host, port = server.url.removeprefix("http://").split(":")
    authorization = f"Authorization: Bearer {token(name, role)}\r\n"
    head = f"Host: {host}\r\n{authorization}Content-Type: application/json\r\n{more}".encode()
    loop = asyncio.get_running_loop()
    pilots = []
    for number in range(count):
        _, pilot = await loop.create_connection(lambda number=number: Pilot(number, head), host, int(port))  # type: ignore[misc]
        pilots.append(pilot)
    return pilots


async def _paced(pilots: list[Pilot], seconds: float) -> tuple[_Load, float]:
    """Calls when they are due; one after the other, from pilot to pilot."""
    load = _Load()
    begun = time.perf_counter()
    under_way: dict[int, asyncio.Task[None]] = {}
    for number in range(int(seconds * RATE)):
        due = begun + number / RATE
        if (pause := due - time.perf_counter()) > 0:
            await asyncio.sleep(pause)
        place = number % len(pilots)
        if place in under_way:
            await under_way[place]  # its last answer is later than the next call: that counts as this call's time
        under_way[place] = asyncio.create_task(load.one(pilots[place], due))
    await asyncio.gather(*under_way.values())
    return load, time.perf_counter() - begun


async def _pressing(pilots: list[Pilot], seconds: float) -> tuple[_Load, float]:
    """Everybody calls again as soon as the answer is there."""
    load = _Load()
    begun = time.perf_counter()

    async def press(pilot: Pilot) -> None:
        while (now := time.perf_counter()) < begun + seconds:
            await load.one(pilot, now)

    await asyncio.gather(*map(press, pilots))
    return load, time.perf_counter() - begun


# Many pilots that wait for jobs, each in a long poll of 30 s on a connection of its own. Tasks come at a steady rate,
# whatever the server does; each job makes three calls: taken, running, finished. The time of the first call counts
# from the answer to the submission. A job that was handed out twice is counted.

CONNECTED = 5000
CONNECTED_LIMIT, MEMORY_LIMIT = 0.050, 300.0  # seconds: p99; MB of the server
_JOBS_EACH = 10  # of a task
_RUN_SECONDS = 2.0


class _Natural:
    """The life of the pilots that wait."""

    def __init__(self) -> None:
        self.submitted: dict[int, float] = {}
        self.handed: Counter[int] = Counter()
        self.taken, self.updates, self.submits = _Load(), _Load(), _Load()
        self.errors = self.polls = 0

    async def live(self, pilot: Pilot) -> None:
        while True:
            reply = await pilot.send("pilot/acquire_jobs", pilot.request())
            self.polls += 1
            if reply is None:
                self.errors += 1
                return
            for job in reply["data"]["jobs"] if reply["success"] else ():
                self.handed[job["PandaID"]] += 1
                known = self.submitted.get(job["taskID"], time.perf_counter())  # before its submission was answered
                self.taken.seconds.append(time.perf_counter() - known)
                await self._run(pilot, job["PandaID"])

    async def _run(self, pilot: Pilot, panda_id: int) -> None:
        for status in ("running", "finished"):
            begun = time.perf_counter()
            reply = await pilot.report(panda_id, status)
            self.updates.seconds.append(time.perf_counter() - begun)
            self.errors += reply is None or not reply["success"] or bool(reply["data"]["command"])
            if status == "running":
                await asyncio.sleep(_RUN_SECONDS)

    async def submit(self, user: Pilot, seconds: float) -> None:
        begun, pause = time.perf_counter(), 3 * _JOBS_EACH / RATE
        for number in range(int(seconds / pause)):
            await asyncio.sleep(begun + number * pause - time.perf_counter())
            arguments = f"runner%20--points%20{'x' * 2000}%20--number%20"
            name = f"user.bench.natural{time.time_ns()}/"
            parameters = bare_params(name, _JOBS_EACH, arguments) | {"userName": "bench"}
            parameters["campaign"] = f"load.{number % _SEARCHES}"
            sent = time.perf_counter()
            reply = await user.send("task/submit", {"task_parameters": parameters})
            self.submits.seconds.append(time.perf_counter() - sent)
            self.submitted[int(reply["data"])] = time.perf_counter()


def measure_waiting_pilots(*, quick: bool) -> dict[str, Any]:
    """5,000 pilots with idle long polls, and 200 calls a second."""
    two_cores()
    with tempfile.TemporaryDirectory() as folder, load_server(Path(folder)) as server:
        return uvloop.run(_wait_and_work(server, 35.0 if quick else 60.0))


async def _wait_and_work(server: LoadServer, seconds: float) -> dict[str, Any]:
    natural = _Natural()
    pilots = await _connect(server, CONNECTED, more="X-HPO-Pilot-Wait: 30\r\n")
    lives = [asyncio.create_task(natural.live(pilot)) for pilot in pilots]
    (user,) = await _connect(server, 1, Role.USER, name="bench")
    await natural.submit(user, 3.0)  # the first look at everything
    await asyncio.sleep(_RUN_SECONDS + 1)
    gc.disable()  # a look at all objects of the load takes 0.3 s, in which no answer is seen
    for load in (natural.taken, natural.updates, natural.submits):
        load.seconds.clear()
    before, polls = (server.cpu_seconds(), time.process_time(), server.waited_seconds()), natural.polls
    begun = time.perf_counter()
    await natural.submit(user, seconds)
    await asyncio.sleep(_RUN_SECONDS + 1)
    gc.enable()
    elapsed = time.perf_counter() - begun
    cpu, own = (server.cpu_seconds() - before[0]) / elapsed, (time.process_time() - before[1]) / elapsed
    for life in lives:
        life.cancel()
    for pilot in pilots:
        pilot.close()
    calls = len(natural.taken.seconds) + len(natural.updates.seconds)
    both = _Load()
    both.seconds = natural.taken.seconds + natural.updates.seconds
    figures = {
        "pilots": CONNECTED,
        "calls_per_second": calls / elapsed,
        "idle_polls_per_second": (natural.polls - polls - len(natural.taken.seconds)) / elapsed,
        "p50": both.quantile(0.5),
        "p99": both.quantile(0.99),
        "errors": natural.errors,
        "twice": sum(count > 1 for count in natural.handed.values()),
        "not_handed_out": len(natural.submitted) * _JOBS_EACH - len(natural.handed),
        "memory_mb": server.memory_mb(),
        "cpu_ms_per_call": 1e3 * cpu * elapsed / calls,
        "server_cpu": cpu,
        "load_cpu": own,
        "server_waited_for_a_core": (server.waited_seconds() - before[2]) / elapsed,
    }
    held = figures["p99"] < CONNECTED_LIMIT and figures["memory_mb"] < MEMORY_LIMIT
    held = held and not (natural.errors or figures["twice"] or figures["not_handed_out"])
    print(", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    print("limit held" if held else "LIMIT MISSED")
    return {**figures, "held": held}


# Several processes on PostgreSQL beside one on SQLite: as many calls as fit, and the CPU time of each. On two cores
# with the load and PostgreSQL, processes gain little in calls/s; the CPU time says what more cores would carry.

SLOTS, HEARTBEAT, JOB_MINUTES, BUSY = 20_000, 20.0, 10.0, 0.6  # pilots of one slot, all busy; of a core, at most


def measure_server_processes(*, quick: bool) -> dict[str, Any]:
    """Calls of a job's life, and heartbeats, at one process on SQLite and one and two on PostgreSQL."""
    two_cores()
    figures: dict[str, Any] = {}
    for count, kind in ((1, "SQLite"), *(((1, "PostgreSQL"), (2, "PostgreSQL")) if BASE else ())):
        with ExitStack() as stack:
            place = stack.enter_context(new_database()) if kind == "PostgreSQL" else None
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = stack.enter_context(load_server(folder, place, ["--processes", str(count)]))
            for number in range(_SEARCHES):
                server.submit(f"load{number}", 400, campaign=f"load.{number}")
            figures[f"{count} {kind}"] = uvloop.run(_compare(server, place, 3.0 if quick else 15.0))
        print(f"{count} on {kind}: {_told(figures[f'{count} {kind}'])}", flush=True)
    for name, its in figures.items():
        # Each job makes three calls; its pilot sends heartbeats all the time.
        jobs, beats = SLOTS / 60 / JOB_MINUTES, SLOTS / HEARTBEAT
        cores = (3 * jobs * its["job_cpu_ms"] + beats * its["heartbeat_cpu_ms"]) / 1e3
        needed = math.ceil(cores / BUSY)
        its["processes_for_all_slots"] = needed
        print(
            f"{SLOTS} pilots of one slot, jobs of {JOB_MINUTES:.0f} minutes: {3 * jobs:.0f} calls/s and {beats:.0f} "
            f"heartbeats/s, at the CPU time of {name} {cores:.1f} cores: {needed} processes each {BUSY:.0%} busy"
        )
    return figures


def _told(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in figures.items())


async def _compare(server: LoadServer, place: str | None, seconds: float) -> dict[str, float]:
    pilots = await _connect(server, 64)
    database = [
        one for one in psutil.process_iter(["cmdline"]) if place and _name(place) in " ".join(one.info["cmdline"] or ())
    ]
    figures: dict[str, float] = {}

    async def job(pilot: Pilot) -> None:
        assert await pilot.call() != "error"

    async def heartbeat(pilot: Pilot) -> None:
        await pilot.call() if pilot.is_free else await pilot.beat()

    works: dict[str, Callable[[Pilot], Coroutine[Any, Any, None]]] = {"job": job, "heartbeat": heartbeat}
    for name, work in works.items():
        for length in (1.0, seconds):  # the first to warm up
            before = server.cpu_seconds(), sum(map(_cpu, database))
            load, begun = _Load(), time.perf_counter()

            async def press(pilot: Pilot) -> None:
                while (now := time.perf_counter()) < begun + length:  # noqa: B023 - awaited here
                    await work(pilot)  # noqa: B023
                    load.seconds.append(time.perf_counter() - now)  # noqa: B023

            await asyncio.gather(*map(press, pilots))
        calls = len(load.seconds)
        figures[f"{name}_calls_per_second"] = calls / (time.perf_counter() - begun)
        figures[f"{name}_p99_ms"] = 1e3 * load.quantile(0.99)
        figures[f"{name}_cpu_ms"] = 1e3 * (server.cpu_seconds() - before[0]) / calls
        figures[f"{name}_database_cpu_ms"] = 1e3 * (sum(map(_cpu, database)) - before[1]) / calls
    for pilot in pilots:
        pilot.close()
    return figures


def _name(url: str) -> str:
    return str(make_url(url).database)
