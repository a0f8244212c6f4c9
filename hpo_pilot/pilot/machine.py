"""The resources that jobs run on, and the slots, cores and GPUs of this machine."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.capacity import JobRequest
from hpo_pilot.hpc.usage import Ending
from hpo_pilot.pilot.job import Job, JobFailure, PilotErrorCode, needed_cores
from hpo_pilot.pilot.report import Starting
from hpo_pilot.transformation.job import PayloadDocument

#: What tells a process which GPUs are its own.
_VISIBLE = {"NVIDIA": "CUDA_VISIBLE_DEVICES", "AMD": "ROCR_VISIBLE_DEVICES"}
_QUERY = ("nvidia-smi", "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Gpu:
    """One GPU; empty: not known.

    Attributes:
        identifier: its number, or whatever a `*_VISIBLE_DEVICES` called it.
        memory_mb: its memory, in MB.
    """

    identifier: str
    vendor: str
    model: str = ""
    memory_mb: str = ""
    driver_version: str = ""

    def described(self) -> dict[str, str]:
        """As `target_architecture` of `acquire_jobs` has it (`srvcore/hardware_matching.py` of panda-server 1.0.4)."""
        known = {
            "vendor": self.vendor,
            "model": self.model,
            "vram": self.memory_mb,
            "driver_version": self.driver_version,
        }
        return {name: value for name, value in known.items() if value}


def find_gpus(environment: Mapping[str, str] | None = None) -> tuple[Gpu, ...]:
    """The GPUs that this process may use.

    Args:
        environment: whose `*_VISIBLE_DEVICES` count; default: this process's.
    """
    env = os.environ if environment is None else environment
    found = _nvidia() or _amd()
    for vendor, variable in _VISIBLE.items():
        if variable in env and (not found or found[0].vendor == vendor):
            known = {gpu.identifier: gpu for gpu in found}
            names = [name.strip() for name in env[variable].split(",") if name.strip()]
            return tuple(known.get(name, Gpu(name, vendor)) for name in names) if found else ()
    return found


def choose_gpus(wanted: str, found: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs of `--gpus`: `all`, how many, or which (`0,2`; `0,` for the first alone).

    Raises:
        InputError: they are not here.
    """
    if wanted == "all":
        return tuple(found)
    known = {gpu.identifier: gpu for gpu in found}
    if "," in wanted:
        chosen = [name.strip() for name in wanted.split(",") if name.strip()]
        if missing := [name for name in chosen if name not in known]:
            raise InputError(f"--gpus {wanted}: there is no GPU {missing[0]} here, but {', '.join(known) or 'none'}")
        return tuple(known[name] for name in dict.fromkeys(chosen))
    if not wanted.isdecimal():
        raise InputError(f"--gpus {wanted!r}: all, a number of them, or which ones, separated by commas")
    if int(wanted) > len(found):
        raise InputError(f"--gpus {wanted}: this machine has {len(found)}")
    return tuple(found[: int(wanted)])


def gpu_variables(gpus: Sequence[Gpu]) -> dict[str, str]:
    """The variables that leave a process these GPUs alone."""
    names = ",".join(gpu.identifier for gpu in gpus)
    variables = {_VISIBLE[gpu.vendor] for gpu in gpus} or set(_VISIBLE.values())
    return dict.fromkeys(sorted(variables), names)


def _nvidia() -> tuple[Gpu, ...]:
    if shutil.which(_QUERY[0]):
        try:
            said = subprocess.run(_QUERY, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            said = None
        if said is not None and said.returncode == 0:
            rows = [[part.strip() for part in line.split(",")] for line in said.stdout.splitlines()]
            return tuple(Gpu(row[0], "NVIDIA", *row[1:]) for row in rows if len(row) == 4)
    devices = sorted(int(path.name[6:]) for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdecimal())
    return tuple(Gpu(str(number), "NVIDIA") for number in devices)


def _amd() -> tuple[Gpu, ...]:
    if not Path("/dev/kfd").exists():
        return ()
    nodes = Path("/sys/class/kfd/kfd/topology/nodes")
    # CPUs are nodes as well; they have no vector units.
    count = sum("simd_count 0" not in _text(path) and bool(_text(path)) for path in nodes.glob("*/properties"))
    return tuple(Gpu(str(number), "AMD") for number in range(count))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@dataclass(frozen=True)
class FreeResources:
    """What may be offered to the server.

    Attributes:
        slots: jobs that may start.
        cores: that they may have together.
        gpus: that they may have together; of several nodes, on one of them.
        patience: for how many seconds at most the offer should stand. Jobs that end meanwhile make room for larger
            ones than those that it covers.
        wish: of an allocation, what fits where; a server that does not understand it goes by the rest.
    """

    slots: int
    cores: int
    gpus: tuple[Gpu, ...]
    patience: float = math.inf
    wish: JobRequest | None = None


@dataclass(frozen=True)
class Assignment:
    """What one job has, until it is given back.

    Attributes:
        nodes: by name, in the order in which ranks are counted.
        variables: of its environment, where they follow from its share.
        cores: on each node.
        gpus: which ones of each node, as a `*_VISIBLE_DEVICES` names them.
        memory_mb: on each node; 0: not said.
        allocation: all nodes of the allocation; empty: there is none.
        seconds: that the job may take; 0: not said.
    """

    nodes: tuple[str, ...]
    variables: Mapping[str, str]
    cores: int
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    memory_mb: int = 0
    allocation: tuple[str, ...] = ()
    seconds: int = 0


class Claim:
    """One job's place in a room, from its coming to its end."""


C = TypeVar("C", bound=Claim)


class Pool(ABC, Generic[C]):
    """What jobs run on. Any thread may call any method.

    A job is claimed for as soon as it comes; `enter` lets its sandbox come, `take` gives it what it runs on, and
    `give_back` ends the claim, however far it came.
    """

    #: How many jobs it may have at a time.
    most: int

    @abstractmethod
    def wait_for_some(self, stop: threading.Event) -> FreeResources:
        """What is free, as soon as a job could start, or `stop` is set and `wake` called."""

    @abstractmethod
    def claim(self, data: Mapping[str, Any]) -> C:
        """A place for a job that came, by the server's dictionary of it."""

    @abstractmethod
    def enter(self, claim: C, stop: threading.Event) -> bool:
        """Waits until the job's sandbox may be unpacked; False: `stop` was set first."""

    @abstractmethod
    def take(self, claim: C, job: Job, document: PayloadDocument, starting: Starting) -> Assignment:
        """Waits for what the job needs.

        Args:
            claim: the job's.
            job: itself.
            document: of its payload.
            starting: says whether the job is still wanted.

        Raises:
            JobFailure: it will not get it here.
        """

    @abstractmethod
    def give_back(self, claim: C, ending: Ending = Ending.FAILED) -> None:
        """Ends a claim; nothing of the job runs any more."""

    def note_launch(self, claim: C, failed: Collection[str] | None, lost: Collection[str] = ()) -> None:
        """A job was launched.

        Args:
            claim: the job's.
            failed: None: its ranks were started; else the launcher failed, and blames these nodes, or none.
            lost: those of them that the batch system has taken away, by the launcher's word.
        """
        return

    def note_staging(self, claim: C, seconds: float) -> None:
        """So long a job waited for copies on its nodes: no measure of how long others of its search will run."""
        return

    @abstractmethod
    def wake(self) -> None:
        """Lets those who wait look at their `stop`."""


#: Seconds for which an offer of less than the whole machine stands; the second, where larger jobs are known to come.
_PATIENCE, _PATIENCE_WITH_LARGE = 5.0, 0.5

#: How launchers call the machine that they run on.
_HERE = "localhost"


class MachineClaim(Claim):
    """One job's share of the machine, until it is given back.

    Attributes:
        cores: that it takes.
        gpus: its own, once it has them.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.gpus: tuple[Gpu, ...] = ()
        self.granted = False


class MachinePool(Pool[MachineClaim]):
    """The machine, shared out. Every job takes one slot, and as many cores as it asked for; no core is lent twice.

    A server should hand out no more than was free. One that does so all the same has its jobs wait here, first come,
    first served; a job that wants more than there is at all gets all of it, alone.
    """

    def __init__(self, slots: int, cores: int, gpus: Sequence[Gpu] = (), *, shows_gpus: bool = True) -> None:
        """Shares out so much.

        Args:
            slots: jobs side by side.
            cores: of all of them together.
            gpus: to share out.
            shows_gpus: whether jobs that asked for none see those that nobody was promised.
        """
        self.most = slots
        self._shows_gpus = shows_gpus
        self._slots, self._cores, self._gpus = slots, cores, tuple(gpus)
        self._all_cores, self._all_gpus = cores, tuple(gpus)
        self._has_seen_large = False  # jobs that not every offer covers
        self._waiting: deque[MachineClaim] = deque()
        self._changed = threading.Condition()

    def wait_for_some(self, stop: threading.Event) -> FreeResources:
        """See Room."""
        with self._changed:
            while not stop.is_set() and (self._slots <= 0 or self._cores <= 0 or self._waiting):
                self._changed.wait()
            return FreeResources(self._slots, self._cores, self._gpus, self._patience())

    def claim(self, data: Mapping[str, Any]) -> MachineClaim:
        """See Room: one slot, and its cores as soon as there are so many."""
        claim = MachineClaim(min(needed_cores(data), self._all_cores))
        with self._changed:
            self._slots -= 1
            self._has_seen_large = self._has_seen_large or claim.cores > 1
            self._waiting.append(claim)
            self._grant()
        return claim

    def enter(self, claim: MachineClaim, stop: threading.Event) -> bool:
        """See Room: waits for the cores of a claim."""
        with self._changed:
            while not claim.granted and not stop.is_set():
                self._changed.wait()
            return claim.granted

    def take(self, claim: MachineClaim, job: Job, document: PayloadDocument, starting: Starting) -> Assignment:
        """See Room: waits for the GPUs that a job asked for."""
        if document.nodes > 1:
            raise JobFailure(
                PilotErrorCode.PAYLOAD_EXECUTION_FAILURE,
                f"the job needs {document.nodes} nodes, and this pilot has one machine: it takes a pilot in an "
                "allocation (hpo-pilot pilots submit)",
            )
        if document.ranks_per_node and document.gpus > len(self._all_gpus):
            raise JobFailure(
                PilotErrorCode.PAYLOAD_EXECUTION_FAILURE,
                f"the job needs {document.gpus} GPUs, and this pilot has {len(self._all_gpus)}",
            )
        count = document.gpus or int(job.wants_gpu)
        variables: Mapping[str, str] = {}
        if count and self.take_gpus(claim, count, starting.draining):
            variables = gpu_variables(claim.gpus)
        elif count and starting.draining.is_set():
            raise JobFailure(PilotErrorCode.SIGTERM, "the pilot was about to end while the job waited for a GPU")
        elif not self._shows_gpus:
            variables = gpu_variables(())
        return Assignment(
            (_HERE,), variables, gpus={_HERE: tuple(gpu.identifier for gpu in claim.gpus)}, cores=claim.cores
        )

    def take_gpus(self, claim: MachineClaim, count: int, stop: threading.Event) -> bool:
        """Waits for GPUs, at most all there are; False: `stop` was set first, or there are none at all."""
        wanted = min(count, len(self._all_gpus))
        with self._changed:
            self._has_seen_large = True
            while wanted and len(self._gpus) < wanted and not stop.is_set():
                self._changed.wait()
            if not wanted or len(self._gpus) < wanted:
                return False
            claim.gpus, self._gpus = self._gpus[:wanted], self._gpus[wanted:]
            return True

    def give_back(self, claim: MachineClaim, ending: Ending = Ending.FAILED) -> None:
        """See Room."""
        with self._changed:
            self._slots += 1
            if claim.granted:
                self._cores += claim.cores
            else:
                self._waiting.remove(claim)
            self._gpus = tuple(gpu for gpu in self._all_gpus if gpu in self._gpus or gpu in claim.gpus)
            self._grant()
            self._changed.notify_all()

    def wake(self) -> None:
        """See Room."""
        with self._changed:
            self._changed.notify_all()

    def _patience(self) -> float:
        if self._cores == self._all_cores and self._gpus == self._all_gpus:
            return math.inf
        return _PATIENCE_WITH_LARGE if self._has_seen_large else _PATIENCE

    def _grant(self) -> None:
        while self._waiting and self._waiting[0].cores <= self._cores:
            claim = self._waiting.popleft()
            self._cores -= claim.cores
            claim.granted = True
            self._changed.notify_all()


def machine_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
