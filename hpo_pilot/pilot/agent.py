"""`python -m hpo_pilot.pilot.agent SETTINGS`: an agent, the pilot of one node of an allocation.

Its server is the pilot of the allocation, see agents.py, which chooses GPUs and cores of each job. Job folders,
sandboxes and checkpoints in progress are on the node's own disk. If the pilot of the allocation does not answer any
more, the agent ends its jobs, because other agents may get them.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.files import try_lock
from hpo_pilot.hpc.launcher import VISIBLE_GPUS, show_gpus
from hpo_pilot.hpc.launchers import Plain
from hpo_pilot.hpc.usage import Ending
from hpo_pilot.logs import configure_logging
from hpo_pilot.pilot import spread
from hpo_pilot.pilot.agents import ASSIGNED, DEBUG, NODES, SCRATCH, SHARED_CHECKPOINTS
from hpo_pilot.pilot.checkpoints import CheckpointShipping, KeptCheckpoint, Level
from hpo_pilot.pilot.client import JobServer, retried
from hpo_pilot.pilot.execution import ended_with_all
from hpo_pilot.pilot.isolation import temporary_folder
from hpo_pilot.pilot.job import Identity, Job, job_identity
from hpo_pilot.pilot.machine import HERE, AssignedResources, FreeResources, JobReservation, ResourcePool
from hpo_pilot.pilot.pilot import Pilot
from hpo_pilot.pilot.report import StartingJob
from hpo_pilot.pilot.settings import PilotSettings, Site, load_site
from hpo_pilot.transformation.job import PayloadSettings
from hpo_pilot.transformation.transformation import UNPACKED_LIMIT

log = logging.getLogger(__name__)

#: Variables of the agent's own job step; libraries would take them for those of a payload's ranks.
_OF_STEP = ("SLURM_", "PMI", "PALS_", "MPI_LOCAL")

_SILENT = 60.0  # seconds without an answer of the allocation's pilot after which the agent ends
_PARTS_END = 20.0  # seconds for processes of jobs on several nodes to end
_LEFT_SECONDS = 86_400.0  # age of a killed agent's folder at which the next agent of its node removes it
_LOOK = 1.0  # seconds between checks of that


class Parts:
    """The processes of jobs on several nodes that run on this node, see spread.py."""

    def __init__(self, ended: Callable[[Identity], None], folder: Path, node: str) -> None:
        """Starts none yet.

        Args:
            ended: is called when the process of a job has ended.
            folder: folder of the files of all agents.
            node: name of this node.
        """
        self._ended, self._folder, self._node = ended, folder, node
        self._running: dict[subprocess.Popen[bytes], threading.Thread] = {}

    def begin(self, part: Mapping[str, Any]) -> None:
        """Starts a process; its thread is bound to the job's cores, and reports its end."""
        threading.Thread(target=self._run, args=[part], name="part").start()

    def _run(self, part: Mapping[str, Any]) -> None:
        identity: Identity = (part["job"][0], part["job"][1])
        try:
            _bind(part["bound"])
            program = [sys.executable, "-I", "-S", str(self._folder / Path(spread.__file__).name)]
            words = ended_with_all([*program, "part", part["address"], self._node])
            process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)  # it ends with the pipe
            self._running[process] = threading.current_thread()
            process.wait()
            del self._running[process]
        except OSError as error:
            log.error("a process of job %s cannot be started: %s", identity[0], error)
        self._ended(identity)

    def tell(self) -> None:
        """Lets the processes save and end."""
        for process in list(self._running):
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGTERM)

    def close(self) -> None:
        """Waits for all of them, which were told to end."""
        for thread in list(self._running.values()):
            thread.join(_PARTS_END)


class AgentServer(JobServer):
    """Calls the pilot of the allocation as if it were a PanDA server."""

    _fewest_reports = 1

    def __init__(self, settings: PilotSettings, node: str, folder: Path) -> None:
        """See JobServer.

        Args:
            settings: settings of the agent.
            node: name of its node in the allocation.
            folder: folder of the files of all agents.
        """
        super().__init__(settings)
        self._session.headers["X-HPO-Pilot-Node"] = node
        self.jobs: set[Identity] = set()  #: that this agent has, or has processes of
        self.parts = Parts(self.ended, folder, node)
        self.saving = 0.0  #: seconds for its jobs to save then; 0: their grace
        self.stopped = threading.Event()  #: the allocation's pilot wants this agent to end
        self.answered = time.monotonic()  #: when the pilot of the allocation last answered

    def acquire(
        self, free: FreeResources, wait: float, disk_mb: int, remaining: int, avoided: Sequence[int] = (), why: str = ""
    ) -> list[dict[str, Any]]:
        """See JobServer: returns the jobs that the scheduler has started on this node."""
        while True:
            body = {"jobs": sorted(self.jobs)}
            data = self._call("pilot/acquire_jobs", body, {"X-HPO-Pilot-Wait": f"{wait:g}"}, wait + _SILENT)["data"]
            new = [part for part in data["parts"] if tuple(part["job"]) not in self.jobs]
            if data["stop"]:
                self.saving = data["seconds"]
                self.stopped.set()
            for part in new:
                self.jobs.add((part["job"][0], part["job"][1]))
                self.parts.begin(part)
            found: list[dict[str, Any]] = [job for job in data["jobs"] if job_identity(job) not in self.jobs]
            self.jobs.update(map(job_identity, found))
            if (
                found or not new or data["stop"]
            ):  # with parts alone, the caller would take it for one that does not wait
                return found

    def download(self, source_url: str, name: str, target: Any, limit: int) -> None:
        """See JobServer: the pilot of the allocation knows the source of each sandbox."""
        super().download("", name, target, limit)

    def ended(self, identity: Identity, ending: Ending | None = None) -> None:
        """Reports that a job has ended, and that its final report was sent or the job is in the queue again.

        Args:
            identity: the job.
            ending: how it ended; None: the process of a job on several nodes has ended.
        """
        function = "part_ended" if ending is None else "ended"
        body = {"job": identity, "ending": ending}
        try:
            retried(lambda: self._call(f"hpo_pilot/{function}", body), _SILENT, self.stopped)
        except HpoPilotError as error:
            log.error("the end of job %s is not known to the allocation's pilot: %s", identity[0], error)
        self.jobs.discard(identity)

    def checkpoint_turn(self, size: int) -> float:
        """Returns the seconds after which a checkpoint of this many bytes may be written."""
        return float(self._call("hpo_pilot/checkpoint_turn", {"bytes": size})["data"]["seconds"])

    def _note(self, trouble: object) -> None:
        super()._note(trouble)
        if trouble is None:
            self.answered = time.monotonic()


class AgentReservation(JobReservation):
    """The resources that the scheduler has chosen for a job."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.identity, self.assigned = job_identity(data), data[ASSIGNED]
        self.ending = Ending.FAILED


class AgentPool(ResourcePool[AgentReservation]):
    """Takes every job that comes: the scheduler of the allocation has chosen its GPUs and cores."""

    def __init__(self, server: AgentServer, most: int, gpu_kind: str) -> None:
        self._server, self.most, self._gpu_kind = server, most, gpu_kind

    def wait_for_some(self, stop: threading.Event) -> FreeResources:
        """See ResourcePool."""
        return FreeResources(self.most, self.most, ())

    def reserve(self, data: Mapping[str, Any]) -> AgentReservation:
        """See ResourcePool."""
        return AgentReservation(data)

    def assign(
        self, reservation: AgentReservation, job: Job, document: PayloadSettings, starting: StartingJob
    ) -> AssignedResources:
        """See ResourcePool: binds this thread, from which the job's processes will be started, to the job's cores."""
        given = reservation.assigned
        _bind(given["bound"])
        visible = show_gpus(self._gpu_kind, given["gpus"]) if self._gpu_kind in VISIBLE_GPUS else {}
        return AssignedResources(
            nodes=(HERE,),
            variables=visible | given["variables"],
            cores=given["cores"],
            gpus={HERE: tuple(given["gpus"])},
            memory_mb=given["memory_mb"],
            seconds=given["seconds"],
            is_late=given["is_late"],
        )

    def free(self, reservation: AgentReservation, ending: Ending = Ending.FAILED) -> None:
        """See ResourcePool."""
        reservation.ending = ending

    def note_report(self, reservation: AgentReservation) -> None:
        """See ResourcePool: the scheduler may use the resources again."""
        self._server.ended(reservation.identity, reservation.ending)

    def wake(self) -> None:
        """See ResourcePool: the agent is about to end."""
        self._server.parts.tell()


def _bind(numbers: Sequence[int]) -> None:
    """Binds this thread, and the processes that it starts, to cores of the node; to all of them if some are missing."""
    if cores := _cores():
        chosen = [cores[number] for number in numbers] if numbers and max(numbers) < len(cores) else cores
        os.sched_setaffinity(0, [cpu for cpus in chosen for cpu in cpus])


@functools.cache
def _cores() -> list[list[int]]:
    """Returns the CPUs of each core that this process may use, in the order of the cores; empty: not known."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.setdefault(path.read_text(), []).append(cpu)
        except OSError:
            cores[str(cpu)] = [cpu]
    return list(cores.values())


class SharedCheckpoints(CheckpointShipping):
    """Copies checkpoints from the node's own disk to the storage that all nodes share, and back.

    The pilot of the allocation limits the rate.
    """

    def __init__(self, settings: PilotSettings, server: AgentServer, shared: Path) -> None:
        super().__init__(settings, server)
        self._agent_server, self._shared = server, shared

    def _may_have(self, job: Job) -> bool:
        return True

    def _stores_levels(self, job: Job) -> bool:
        return True

    def _upload(self, kept: KeptCheckpoint, packed: Any, level: Level | None = None) -> None:
        time.sleep(self._agent_server.checkpoint_turn(Path(packed.name).stat().st_size))
        self._there(kept if level is None else kept.of(level.name)).place(Path(packed.name), UNPACKED_LIMIT)

    def _download(self, kept: KeptCheckpoint, packed: Any, level: Level | None = None) -> bool:
        # The pilot of the allocation has copied that of an earlier trial, as one of the job's own.
        return level is None and bool(self._there(kept).pack(packed, UNPACKED_LIMIT))

    def _remove(self, kept: KeptCheckpoint, level: Level | None = None) -> None:
        if level is None:  # the pilot of the allocation deletes those of trials with a level
            for name in {*kept.names} - {each.name for each in kept.levels}:
                shutil.rmtree(self._there(kept).folder / name, ignore_errors=True)

    def _there(self, kept: KeptCheckpoint) -> KeptCheckpoint:
        return replace(kept, folder=self._shared / kept.folder.relative_to(self._settings.checkpoint_root))


class ImageCopies:
    """Copies image files from shared storage to the node's own disk, once."""

    def __init__(self, folder: Path, limit_mb: int) -> None:
        self._folder, self._limit, self._lock = folder, limit_mb << 20, threading.Lock()

    def __call__(self, image: str) -> str:
        """Returns the copy; the image itself if it is no file, is too large, or cannot be copied."""
        path = Path(image)
        try:
            if not image or not path.is_file() or path.stat().st_size > self._limit:
                return image
            place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
            copy = self._folder / f"{path.stat().st_mtime_ns}-{place}-{path.name}"
            with self._lock:
                if not copy.exists():
                    self._folder.mkdir(parents=True, exist_ok=True)
                    part = copy.with_suffix(".part")
                    try:
                        shutil.copyfile(path, part)
                        part.rename(copy)
                    finally:
                        part.unlink(missing_ok=True)  # it would keep a full disk full
        except OSError as error:
            log.warning("%s is used on shared storage, because it cannot be copied: %s", image, error)
            return image
        return str(copy)


def run_agent(file: Path) -> int:
    """Runs an agent; returns its exit status.

    Args:
        file: its settings, written by `Agents`.
    """
    said: dict[str, Any] = json.loads(file.read_text())
    node = _own_name(said.pop(NODES))
    for name in [name for name in os.environ if name.startswith(_OF_STEP) and not name.startswith("SLURM_JOB_")]:
        del os.environ[name]
    configure_logging("pilot", level=logging.INFO if said.pop(DEBUG) else logging.WARNING)
    scratch, shared = said.pop(SCRATCH), Path(said.pop(SHARED_CHECKPOINTS))
    given: dict[str, Any] = {
        each.name: Path(said[each.name])
        if "Path" in str(each.type) and said[each.name] is not None
        else said[each.name]
        for each in fields(PilotSettings)
    }
    folder = _own_folder(scratch, f"{file.parent.name}-{node}")
    remove_left(folder, node)
    try:
        settings = PilotSettings(**{**given, "workdir": folder, "node": node})
        site = load_site(settings.site) if settings.site else Site()
        site = replace(site, launcher=site.launcher.on_node or Plain())
        server = AgentServer(settings, node, file.parent)
        pool = AgentPool(server, settings.slots, site.gpu_kind)
        pilot = Pilot(
            settings,
            server,
            site=site,
            pool=pool,
            checkpoints=SharedCheckpoints(settings, server, shared),
            local_image=ImageCopies(folder / "images", settings.staging_mb) if scratch and settings.staging else str,
        )
        pilot.handle_signals()
        threading.Thread(target=_watch, args=[pilot, server], name="watch", daemon=True).start()
        status = pilot.run()
        server.parts.close()
        return status
    except HpoPilotError as error:
        log.error("node %s: %s", node, error)
        return error.exit_code
    finally:
        if not given["keep"]:
            shutil.rmtree(folder, ignore_errors=True)


def _own_name(nodes: Sequence[str]) -> str:
    """Returns the name of this node in the allocation, where names may have a domain."""
    here = os.environ.get("SLURMD_NODENAME") or platform.node()
    return next((name for name in nodes if name.partition(".")[0] == here.partition(".")[0]), here)


def _own_folder(scratch: str, name: str) -> Path:
    """Returns the agent's folder on the node's own disk, below a folder that may have variables of the node."""
    path = Path(os.path.expandvars(scratch)) if scratch else Path(tempfile.gettempdir())
    try:
        (path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        log.warning("%s cannot be used: %s", path, error)
        path = Path(tempfile.gettempdir())
    return path / name


def remove_left(folder: Path, node: str) -> None:
    """Deletes the folders of killed agents of this node beside an agent's folder, a day after their start.

    A running agent holds its lock. Nothing else needs the folder of an agent: reports and checkpoints that count are
    at the pilot of its allocation.
    """
    for lock in folder.parent.glob(f"*-{glob.escape(node)}/jobs/*.lock"):
        left = lock.parents[1]
        with contextlib.suppress(OSError), lock.open() as file:
            is_ours = left != folder and left.stat().st_uid == os.getuid()
            if is_ours and lock.stat().st_mtime < time.time() - _LEFT_SECONDS and try_lock(file.fileno()):
                log.warning("%s of an agent that was killed is removed", left)
                shutil.rmtree(temporary_folder(left, lock.stem), ignore_errors=True)
                shutil.rmtree(left, ignore_errors=True)


def _watch(pilot: Pilot, server: AgentServer) -> None:
    """Ends the agent when the allocation's pilot says so, or does not answer any more."""
    while not server.stopped.wait(_LOOK):
        if time.monotonic() - server.answered > _SILENT:
            why = pilot.disk_trouble or "the pilot of the allocation does not answer"  # without disk it is not called
            log.error("%s: this agent ends", why)
            break
    pilot.stop(at_once=True, seconds=server.saving)


if __name__ == "__main__":
    status = run_agent(Path(sys.argv[1]))
    logging.shutdown()
    os._exit(status)
