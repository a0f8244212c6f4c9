"""Runs the jobs of an allocation without job steps, by agents, one on each node.

Batch systems limit the job steps that run at the same time: Frontier and Perlmutter to 100, Summit to 1,350 (the guides
are named in deploy/sites/). With a job step for each job, trials on one GPU used 5 to 7% of such a machine. So one long
job step (with Flux: a `flux exec`) starts an agent on each node, which is a pilot of that node (agent.py). The agents'
server is this process: it hands them the jobs that the scheduler has started on their nodes, and passes on their
reports, outputs and files. Jobs on several nodes run beside this pilot. If their launcher is torchrun, agents start its
processes, see spread.py; others need job steps of their own.

Others do parts of this. Parsl's HighThroughputExecutor and Dask run Python functions in workers: they send no signals
to a task, run it in no container, and do not end what it leaves. Flux does, but must be installed at the site.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.files import close_to_others, write_whole
from hpo_pilot.hpc.launcher import GPU_VARIABLES, Placement
from hpo_pilot.hpc.usage import Ending
from hpo_pilot.jobs.resources import Node
from hpo_pilot.jobs.results import parse_reports
from hpo_pilot.pilot import spread
from hpo_pilot.pilot.allocation_pool import AllocationPool, AllocationReservation
from hpo_pilot.pilot.attempt import PilotParts, report_end
from hpo_pilot.pilot.client import INVALID, NO_PERMISSION, TIMED_OUT, JobOfAnotherPilot, JobServer, MissingAtServer
from hpo_pilot.pilot.door import Answer, Door, Request, message
from hpo_pilot.pilot.job import CutOff, GivenBack, Identity, Job, JobFailure, NodeLost
from hpo_pilot.pilot.report import Outcome, StartingJob, failed_in
from hpo_pilot.pilot.settings import Site
from hpo_pilot.pilot.spread import CERTIFICATE, SETTINGS, TOKEN
from hpo_pilot.pilot.watchdog import failure_of_command
from hpo_pilot.transformation.job import PayloadSettings
from hpo_pilot.transformation.process import WORKER_MARK
from hpo_pilot.transformation.transformation import UNPACKED_LIMIT

log = logging.getLogger(__name__)

_THREADS, _UPLOADS = 32, 4  # calls to the server, and uploads of checkpoints, at the same time
_NO_AGENTS = "the agents of the allocation could not be started"
_LOST = "its agent does not answer"
_ABOUT_TO_END = "the allocation was about to end while the job waited"
_TICK = 1.0  # seconds between looks at the agents
_COME = 300.0  # seconds for the first call of an agent
_REJOIN = 30.0  # seconds for an agent without a connection to come back; its keeper has ended its jobs by then
_SILENT = 120.0  # seconds without a call: an agent ends itself after 60 s
_JOIN = 0.2  # seconds in which heartbeats of agents are collected for one call
_STEP_END = 20.0  # seconds for the agents' job step to end by itself

#: Keys of the agents' settings file beside those of PilotSettings.
SCRATCH, SHARED_CHECKPOINTS, DEBUG, NODES = "scratch", "shared_checkpoints", "debug", "nodes"

#: The key of the assigned resources in the data of a job.
ASSIGNED = "hpoPilotAssigned"


class AgentJob(StartingJob):
    """A job for an agent, from its arrival to its end. Until its agent has it, heartbeats report it as starting.

    Attributes:
        data: the server's dictionary.
        reservation: its reservation in the pool.
        node: name of its node; empty: the scheduler has not started it.
        is_sent: its agent has it.
    """

    def __init__(
        self,
        job: Job,
        data: Mapping[str, Any],
        reservation: AllocationReservation,
        parts: PilotParts,
        unwanted: Callable[[AgentJob], None],
    ) -> None:
        super().__init__(job, parts.workdir.root, parts.draining)
        self.data, self.reservation, self._unwanted = data, reservation, unwanted
        self.node, self.is_sent = "", False

    def stop(self, failure: JobFailure) -> None:
        """See StartingJob."""
        super().stop(failure)
        self._unwanted(self)


@dataclass
class AgentState:
    """What is known of one agent.

    Attributes:
        jobs: the jobs of its node alone that have not ended.
        parts: processes of jobs on several nodes, by job, as the agent gets them.
        news: is set when a job is added.
        connections: open connections.
        seen: when it last called or its last connection was closed (`time.monotonic`).
        has_come: it has called.
        must_end: it is told to end.
        is_lost: it has ended, or has been silent for too long.
    """

    seen: float
    jobs: dict[Identity, AgentJob] = field(default_factory=dict)
    parts: dict[Identity, dict[str, Any]] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0
    has_come: bool = False
    must_end: bool = False
    is_lost: bool = False

    def is_silent(self, now: float) -> bool:
        """Returns whether the agent has been silent for too long."""
        patience = _COME if not self.has_come else _SILENT if self.connections else _REJOIN
        return now - self.seen > patience


class Agents:
    """The agents of an allocation, and their jobs. Any thread may call any method."""

    def __init__(
        self,
        parts: PilotParts,
        server: JobServer,
        pool: AllocationPool,
        site: Site,
        nodes: Sequence[Node],
        *,
        job: str,
        when_over: Callable[[], None],
    ) -> None:
        """Starts nothing yet.

        Args:
            parts: parts of the pilot.
            server: the PanDA server.
            pool: pool of the allocation.
            site: the site, whose launcher can start agents.
            nodes: nodes of the allocation.
            job: name of the allocation at the batch system.
            when_over: is called when a job has ended and was reported.
        """
        self._parts, self._pool, self._site, self._nodes = parts, pool, site, tuple(nodes)
        self._server, self._when_over = server, when_over
        self._folder = parts.workdir.root / "agents" / f"{Path(job).name}-{parts.settings.worker_name}"  # Flux: a URI
        self._log = self._folder.parent / f"{self._folder.name}.log"  # is kept
        self._lock = threading.Lock()
        now = time.monotonic()
        self._agents = {node.name: AgentState(now) for node in nodes}
        self._jobs: dict[Identity, AgentJob] = {}
        #: Jobs on several nodes: the nodes that still have processes, and AllocationReservation.ended.
        self._spread: dict[Identity, tuple[set[str], threading.Event]] = {}
        self._work, self._uploads = ThreadPoolExecutor(_THREADS, "agents"), ThreadPoolExecutor(_UPLOADS, "uploads")
        self._levels = ThreadPoolExecutor(_UPLOADS, "levels")  # results wait for these uploads, and not for others
        #: Jobs that were reported finished: `failed` and `unkept` of CheckpointShipping.drop.
        self._finished: dict[Identity, Future[tuple[set[tuple[int, int]], dict[tuple[int, int], str]]]] = {}
        self._pace = Pace(parts.settings.checkpoint_rate * 1e6)
        self._files = CachedFiles(self._folder / "cache", server)
        self._reports: list[dict[str, Any]] = []  # used in the thread of the door
        self._sending: asyncio.Task[list[str | HpoPilotError]] | None = None
        self._stopping = threading.Event()
        self._saving = 0.0
        self._step: subprocess.Popen[bytes] | None = None
        self._door = Door(secrets.token_hex(32), self._answer, self._connected)
        self.is_off = False  #: no agent could be started: every job takes a job step

    # --- the agents ---

    def start(self) -> None:
        """Starts the agents; if that fails, every job takes a job step."""
        try:
            close_to_others(self._folder)
            program = shutil.copy(spread.__file__, self._folder)
            address = self._door.open(self._folder, self._nodes[-1].name)
            self._step = self._start_step(address)
            self._pool.spread = (sys.executable, "-I", "-S", str(program), "start")
        except (HpoPilotError, OSError, subprocess.SubprocessError) as error:
            self._give_up(str(error))
            return
        threading.Thread(target=self._watch, name="agents", daemon=True).start()

    def _start_step(self, address: str) -> subprocess.Popen[bytes]:
        settings, site = self._parts.settings, self._site
        given = replace(
            settings,
            server=address,
            slots=max(node.shape.cores for node in self._nodes),
            token_file=self._folder / TOKEN,
            proxy=None,
            ca=self._folder / CERTIFICATE,
            checkpoints=None,
            checkpoint_mb=UNPACKED_LIMIT >> 20,
            storage=settings.storage_folder.absolute(),
            allocation=False,
            agent=True,
            hide=tuple(self._parts.isolation.hidden),
            metrics_port=None,
            lifeline_fd=None,
            lifetime=0.0,
        )
        names = tuple(node.name for node in self._nodes)
        others = {
            NODES: names,
            SCRATCH: site.scratch,
            SHARED_CHECKPOINTS: settings.checkpoint_root.absolute(),
            DEBUG: log.isEnabledFor(logging.DEBUG),
        }
        file = self._folder / SETTINGS
        said = {each.name: getattr(given, each.name) for each in fields(given)} | others
        write_whole(file, json.dumps(said, default=str), mode=0o600, scratch=True)
        placement = Placement(
            nodes=names,
            cores_per_rank=min(node.shape.cores for node in self._nodes),
            gpu_kind=site.gpu_kind,
            environment={name: os.path.expandvars(value) for name, value in site.environment.items()},
            allocation=names,
            memory_mb=min(node.shape.memory_mb for node in self._nodes),
            name="hpo-pilot-agents",
        )
        launcher = site.launcher
        if lacking := launcher.per_node.lacks(None):
            raise HpoPilotError(lacking)
        env = launcher.environment(placement, os.environ) | {WORKER_MARK: ""}  # it is of no job
        for name in ("OMP_NUM_THREADS", *GPU_VARIABLES):  # jobs get theirs from the scheduler
            env.pop(name, None)
        argv = [sys.executable, "-m", "hpo_pilot.pilot.agent", str(file)]
        log.info("messages of the agents go to %s", self._log)
        with self._log.open("wb") as output:
            return subprocess.Popen(
                launcher.agents(argv, placement),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _watch(self) -> None:
        """Looks for agents that are lost."""
        give_up = time.monotonic() + _COME
        while not self._stopping.wait(_TICK):
            now = time.monotonic()
            has_ended = self._step is not None and self._step.poll() is not None
            if self._stopping.is_set():
                break  # it has ended because it was told to: no node is lost
            if (has_ended or now > give_up) and not any(agent.has_come for agent in self._agents.values()):
                return self._give_up(self._last_words() if has_ended else f"none has called within {_COME:.0f} s")
            lost = {
                name: agent
                for name, agent in self._agents.items()
                if not agent.is_lost and (agent.is_silent(now) or (has_ended and not agent.connections))
            }
            # The allocation ends its agents at once. Job steps that ignore its signal then have the grace time.
            is_end = bool(lost) and self._ends_soon()
            for name, agent in lost.items():
                agent.is_lost = True
                if not is_end:
                    self._pool.lose(name, _LOST)
                failure = CutOff("the allocation was ended") if is_end else NodeLost(f"node {name} is lost: {_LOST}")
                for entry in list(agent.jobs.values()):  # those of a node that was lost before
                    self._work.submit(self._end, entry, failure)
                for identity in list(agent.parts):
                    self._part_ended(name, identity)
        return None

    def _ends_soon(self) -> bool:
        """Returns whether no more jobs start because the allocation ends."""
        watch = self._parts.watch
        return self._parts.draining.is_set() or (watch is not None and watch.ends_soon())

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return f"the job step of the agents has ended: {lines[-1] if lines else 'no message'}"

    def _give_up(self, why: str) -> None:
        self.is_off, self._pool.spread = True, ()
        log.warning("no agents can be started on the nodes, so every job takes a job step: %s", why)
        if self._step is not None:
            self._step.terminate()
        for entry in list(self._jobs.values()):
            self._end(entry, GivenBack(_NO_AGENTS))
        for identity, (nodes, _) in list(self._spread.items()):
            self._parts.watchdog.stop_job(identity[0], GivenBack(_NO_AGENTS))
            for name in list(nodes):
                self._part_ended(name, identity)

    def drain(self) -> None:
        """Gives the jobs back that no agent has, when the pilot is about to end: agents get no more jobs then."""
        with self._lock:
            left = [entry for entry in self._jobs.values() if not entry.is_sent]
        for entry in left:
            self._work.submit(self._end, entry, GivenBack(_ABOUT_TO_END))

    def stop(self, seconds: float = 0.0) -> None:
        """Lets the agents end their jobs, which have `seconds` to save, and themselves; they report them before."""
        self._saving = max(self._saving, seconds)
        self._stopping.set()
        self._pace.bytes_per_second = float("inf")
        self._door.call(self._wake_all)

    def close(self) -> None:
        """Ends the agents' job step, when they were told to stop and all jobs are reported."""
        if self._step is not None:
            for signalled in (None, signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    if signalled is not None:
                        self._step.send_signal(signalled)
                    self._step.wait(_STEP_END)
        self._door.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wake_all(self) -> None:
        for agent in self._agents.values():
            agent.news.set()

    # --- jobs ---

    def takes(self, document: PayloadSettings) -> bool:
        """Returns whether one agent can run such jobs."""
        return (
            document.nodes == 1
            and not self.is_off
            and not self._site.launcher.needs_step(document.nodes, document.ranks_per_node)
        )

    def run(
        self, job: Job, data: Mapping[str, Any], document: PayloadSettings, reservation: AllocationReservation
    ) -> None:
        """Runs a job, and returns at once."""
        entry = AgentJob(job, data, reservation, self._parts, self._unwanted)
        self._files.sources[job.arguments.archive] = job.arguments.source_url
        with self._lock:
            self._jobs[job.identity] = entry
        self._parts.heartbeats.add(entry)
        self._parts.checkpoints.begin(job, repeats=False)
        self._pool.place(reservation, job, document, lambda: self._settled(entry))
        with self._lock:  # after that no agent gets it
            is_left = not entry.is_sent and (self.is_off or self._parts.draining.is_set())
        if is_left:
            self._end(entry, GivenBack(_NO_AGENTS if self.is_off else _ABOUT_TO_END))

    def lose(self, panda_id: int, failure: JobFailure) -> None:
        """Ends a job whose node is lost, if an agent has it: an agent that lives ends it, and itself."""
        for entry in list(self._jobs.values()):
            if entry.job.panda_id != panda_id:
                continue
            agent = self._agents.get(entry.node)
            if agent is None or agent.is_lost or not entry.is_sent:
                self._work.submit(self._end, entry, failure)
            else:
                agent.must_end = True
                self._door.call(agent.news.set)

    def _settled(self, entry: AgentJob) -> None:
        """Notes the scheduler's decision. The caller has the pool's lock."""
        reservation = entry.reservation
        if reservation.failure is not None:
            self._work.submit(self._end, entry, reservation.failure)
        elif reservation.start is not None:
            entry.node = reservation.start.shares[0].node
            self._door.call(self._deliver, entry)

    def _deliver(self, entry: AgentJob) -> None:
        """Puts a job into its agent's list. Runs in the thread of the door."""
        agent = self._agents[entry.node]
        with self._lock:
            if entry.job.identity in self._jobs:
                agent.jobs[entry.job.identity] = entry
        agent.news.set()

    def _unwanted(self, entry: AgentJob) -> None:
        if not entry.is_sent and entry.failure is not None:
            self._work.submit(self._end, entry, entry.failure)

    def _end(self, entry: AgentJob, failure: JobFailure) -> None:
        """Ends a job that no agent has, and reports it."""
        if not self._forget(entry.job.identity):
            return
        panda_id, attempt = entry.job.identity
        if isinstance(failure, NodeLost | CutOff) and not entry.is_sent:
            failure = GivenBack(str(failure))  # it has not begun
        try:
            ending = Ending.LOST if isinstance(failure, NodeLost) else Ending.CUT
            self._pool.free(entry.reservation, ending)
            self._parts.checkpoints.keep(entry.job, failure)
            outcome = Outcome(exit_code=None, failure=failure)
            report_end(self._parts, panda_id, attempt, outcome, self._folder, {})
        except Exception:
            log.exception("job %s: a defect of the pilot; its server will count it as lost", panda_id)
        finally:
            self._finished.pop(entry.job.identity, None)
            self._when_over()

    def _forget(self, identity: Identity) -> AgentJob | None:
        """Removes a job; returns it, or None if it was removed before."""
        with self._lock:
            entry = self._jobs.pop(identity, None)
            if entry is not None and entry.node:
                self._agents[entry.node].jobs.pop(identity, None)
        if entry is not None:
            self._parts.heartbeats.remove(entry.job.identity)
        return entry

    # --- calls of the agents ---

    def _connected(self, node: str, change: int) -> None:
        if (agent := self._agents.get(node)) is not None:
            agent.connections += change
            agent.seen = time.monotonic()

    async def _answer(self, request: Request) -> Answer:
        is_agent = not request.path.startswith("/points/")  # calls of payloads need no token
        agent = self._agents.get(request.headers.get("x-hpo-pilot-node", "")) if is_agent else None
        if agent is not None:
            agent.seen, agent.has_come = time.monotonic(), True
        if request.path == "/api/v1/pilot/acquire_jobs":
            if agent is None:
                return message(409, f"the allocation has no node {request.headers.get('x-hpo-pilot-node')!r}")
            return _envelope(await self._jobs_for(agent, request))
        if request.path == "/api/v1/pilot/update_jobs_bulk":
            reports = request.json()["job_list"]
            answers = await self._heartbeats(reports)
            for report, answer in zip(reports, answers, strict=True):
                entry = self._jobs.get((int(report["job_id"]), int(report["attempt_nr"])))
                if entry is not None and isinstance(answer, str):
                    entry.failure = entry.failure or failure_of_command(answer, entry.job.panda_id)
            return _envelope(list(map(_answered, answers)))
        if request.path == "/api/v1/pilot/update_job":
            # Not in a thread of `_work`: an upload may take minutes, and heartbeats need these threads.
            await self._finish(request.json())
            request.body.seek(0)
        return await asyncio.get_running_loop().run_in_executor(self._work, self._relay, request)

    async def _finish(self, report: Mapping[str, Any]) -> None:
        """Stores what later trials go on from before a job is reported finished: then the server takes no more of it.

        It may be repeated, also while the first call lasts.
        """
        identity: Identity = (int(report["job_id"]), int(report["attempt_nr"]))
        checkpoints = self._parts.checkpoints
        with self._lock:
            entry = self._jobs.get(identity)
            if entry is not None and identity not in self._finished and report["job_status"] == "finished":
                failed = failed_in(parse_reports(json.loads(report.get("meta_data") or "{}")))
                threads = self._levels if checkpoints.keeps_level(entry.job) else self._work
                finish = threads.submit(lambda: (failed, checkpoints.finish(entry.job, failed)))
                self._finished[identity] = finish
            finished = self._finished.get(identity)
        if finished is not None:
            await asyncio.shield(asyncio.wrap_future(finished))

    async def _heartbeats(self, reports: list[dict[str, Any]]) -> list[str | HpoPilotError]:
        """Sends the heartbeats of one agent in a call with the heartbeats of others; see JobServer.update_all."""
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_collected())
        place, sending = len(self._reports), self._sending
        self._reports += reports
        return (await sending)[place : place + len(reports)]

    async def _send_collected(self) -> list[str | HpoPilotError]:
        await asyncio.sleep(_JOIN)
        reports, self._reports, self._sending = self._reports, [], None
        return await asyncio.get_running_loop().run_in_executor(self._work, self._server.update_all, reports)

    async def _jobs_for(self, agent: AgentState, request: Request) -> dict[str, Any]:
        """Waits for jobs that the scheduler has started on the agent's node and that the agent does not have."""
        known = set(map(tuple, request.json()["jobs"]))
        until = time.monotonic() + float(request.headers.get("x-hpo-pilot-wait", 0))
        while True:
            with self._lock:
                stop = self._stopping.is_set() or self.is_off or agent.must_end or agent.is_lost
                ends = stop or self._parts.draining.is_set()
                new = [] if ends else [job for identity, job in agent.jobs.items() if identity not in known]
                for entry in new:
                    entry.is_sent = True
                parts = [] if stop else [part for identity, part in agent.parts.items() if identity not in known]
            left = until - time.monotonic()
            if new or parts or stop or left <= 0:
                break
            agent.news.clear()
            try:
                await asyncio.wait_for(agent.news.wait(), left)
            except TimeoutError:
                continue
        for entry in new:
            self._parts.heartbeats.remove(entry.job.identity)
        agent.seen = time.monotonic()
        jobs = [{**entry.data, ASSIGNED: self._assigned(entry)} for entry in new]
        return {"stop": stop, "seconds": self._saving, "jobs": jobs, "parts": parts}

    def _assigned(self, entry: AgentJob) -> dict[str, Any]:
        planned, start = entry.reservation.planned, entry.reservation.start
        if planned is None or start is None:
            raise RuntimeError("the scheduler has not started this job")
        given = self._pool.assignment(planned, start)
        return {
            "variables": given.variables,
            "gpus": given.gpus[entry.node],
            "bound": given.bound,
            "cores": given.cores,
            "memory_mb": given.memory_mb,
            "seconds": given.seconds,
            "is_late": given.is_late,
        }

    def _relay(self, request: Request) -> Answer:
        """Carries out a call of an agent, or passes it on to the server."""
        place, _, rest = unquote(request.path).lstrip("/").partition("/")
        try:
            if place == "cache" and request.method == "GET":
                return 200, self._files.open(rest)
            if place == "storage" and request.method == "PUT":
                self._server.upload(rest, request.body if request.size else b"")
                return _envelope()
            if place == "points":
                content_type = request.headers.get("content-type", "application/json")
                return self._server.passed_on(request.method, request.path, content_type, request.body.read())
            node = request.headers.get("x-hpo-pilot-node", "")
            return _envelope(self._called(request.path.removeprefix("/api/v1/"), request.json(), node))
        except JobOfAnotherPilot as error:
            return _envelope({"StatusCode": NO_PERMISSION}, str(error))
        except MissingAtServer as error:
            return message(404, str(error))
        except TryAgainError as error:
            return message(503, str(error))
        except (HpoPilotError, OSError, LookupError, TypeError, ValueError) as error:
            return message(409, str(error))

    def _called(self, function: str, body: Any, node: str) -> dict[str, Any]:
        """Returns the data of the answer to a call."""
        parts = self._parts
        match function:
            case "pilot/update_job":  # the end of a job; heartbeats come in lists
                parts.delivery.send(body)
                return {}
            case "pilot/update_worker_status":
                return {}
            case "hpo_pilot/give_back":
                return {"given_back": [job[0] for job in body["jobs"] if parts.giving_back.give(*job)]}
            case "hpo_pilot/checkpoint_turn":
                return {"seconds": self._pace.turn(int(body["bytes"]))}
            case "hpo_pilot/ended":
                self._ended((int(body["job"][0]), int(body["job"][1])), Ending(body["ending"]))
                return {}
            case "hpo_pilot/spread":
                self._begin_parts((int(body["job"][0]), int(body["job"][1])), str(body["address"]))
                return {}
            case "hpo_pilot/part_ended":
                self._part_ended(node, (int(body["job"][0]), int(body["job"][1])))
                return {}
        raise MissingAtServer(f"there is no {function}")

    def _ended(self, identity: Identity, ending: Ending) -> None:
        """Frees the resources of a job that its agent has reported. It may be repeated."""
        if (entry := self._forget(identity)) is not None:
            if ending in (Ending.CUT, Ending.CHECKPOINTED):
                self._ends_soon()  # then the scheduler starts no job on a node that goes
            self._pool.free(entry.reservation, ending)
            self._uploads.submit(self._close, entry, ending)

    def _begin_parts(self, identity: Identity, address: str) -> None:
        """Lets the agents of a job's nodes start its processes.

        Args:
            identity: the job.
            address: where its starter listens, see spread.py.
        """
        if self.is_off:
            self._parts.watchdog.stop_job(identity[0], GivenBack(_NO_AGENTS))
            raise MissingAtServer(_NO_AGENTS)
        ended = threading.Event()
        shares = self._pool.spread_over(identity, ended)
        nodes = {share.node for share in shares if not self._agents[share.node].is_lost}
        with self._lock:
            self._spread[identity] = nodes, ended
            for share in shares:
                agent = self._agents[share.node]
                agent.parts[identity] = {"job": identity, "address": address, "bound": share.cores}
                self._door.call(agent.news.set)

    def _part_ended(self, node: str, identity: Identity) -> None:
        """Notes that a node has no process of a job any more. It may be repeated."""
        with self._lock:
            self._agents[node].parts.pop(identity, None)
            left, ended = self._spread.get(identity, (set(), None))
            left.discard(node)
            if ended is not None and not left:
                del self._spread[identity]
                ended.set()

    def _close(self, entry: AgentJob, ending: Ending) -> None:
        """Deletes the checkpoint of a job that has its result; sends that of another one to the server."""
        checkpoints, job = self._parts.checkpoints, entry.job
        try:
            if (finished := self._finished.get(job.identity)) is not None:
                checkpoints.drop(job, *finished.result())
            elif ending in (Ending.FINISHED, Ending.RESUMED):  # its agent has kept the report, and sends it later
                checkpoints.drop(job, unkept=checkpoints.finish(job))
            else:
                checkpoints.keep(job, entry.failure)  # not that of a job that the server has killed
        finally:
            self._finished.pop(job.identity, None)
            self._when_over()


class Pace:
    """Hands out turns, so that a rate is kept on average."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second, self._next, self._lock = bytes_per_second, 0.0, threading.Lock()

    def turn(self, size: int) -> float:
        """Returns the seconds after which this number of bytes may be written."""
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._next)
            self._next = begin + size / self.bytes_per_second
            return 0.0 if self.bytes_per_second == float("inf") else begin - now


class CachedFiles:
    """Files of the server's cache, downloaded once for all agents."""

    def __init__(self, folder: Path, server: JobServer) -> None:
        self._folder, self._server = folder, server
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.sources: dict[str, str] = {}  #: by name: URL of the server that has it; empty: the pilot's server

    def open(self, name: str) -> IO[bytes]:
        """Returns a file, opened.

        Raises:
            HpoPilotError: it cannot be downloaded.
        """
        if name not in self.sources:
            raise MissingAtServer(f"no job here needs {name}")
        path = self._folder / name
        with self._locks[name]:
            if not path.exists():
                self._folder.mkdir(exist_ok=True)
                with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                    part = Path(file.name)
                    try:
                        self._server.download(self.sources[name], name, file, UNPACKED_LIMIT)
                        file.flush()
                        part.rename(path)
                    finally:
                        part.unlink(missing_ok=True)
        return path.open("rb")


def _envelope(data: Mapping[str, Any] | list[dict[str, Any]] | None = None, refused: str = "") -> Answer:
    return 200, json.dumps({"success": not refused, "message": refused, "data": data or {}}).encode()


def _answered(answer: str | HpoPilotError) -> dict[str, Any]:
    """Returns the envelope of the answer to a heartbeat, as panda-server writes it."""
    if isinstance(answer, str):
        return {"success": True, "message": "", "data": {"StatusCode": 0, "command": answer}}
    if isinstance(answer, TryAgainError):
        return {"success": True, "message": str(answer), "data": {"StatusCode": TIMED_OUT}}
    code = NO_PERMISSION if isinstance(answer, JobOfAnotherPilot) else INVALID
    return {"success": False, "message": str(answer), "data": {"StatusCode": code}}
