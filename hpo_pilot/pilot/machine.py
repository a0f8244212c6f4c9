"""The resources that jobs run on, and the slots, cores and GPUs of this machine."""

from __future__ import annotations

import math
import os
import re
import subprocess
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.capacity import AllocationRequest
from hpo_pilot.hpc.launcher import NO_INTEL_GPU, VISIBLE_GPUS, show_gpus
from hpo_pilot.hpc.usage import Ending
from hpo_pilot.pilot.job import Job, JobFailure, PilotErrorCode, needed_cores
from hpo_pilot.transformation.job import PayloadSettings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hpo_pilot.pilot.report import StartingJob

_QUERY = ("--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader,nounits")
_DRM = Path("/sys/class/drm")
#: Has a folder for each slice of a GPU (NVIDIA, "MIG User Guide", section "Device Nodes and Capabilities").
_CAPABILITIES = Path("/proc/driver/nvidia/capabilities")
_SLICE = re.compile(r"^ +MIG (\d+\S*?g\.(\d+)gb\S*) .*\(UUID: (MIG-\S+)\)$")
#: Where processors have their own GPU, which is not for jobs (QEMU, docs/igd-assign.txt).
_PROCESSORS_OWN = "0000:00:02.0"


@dataclass(frozen=True)
class MachineGpu:
    """One GPU; an empty field is not known.

    Attributes:
        identifier: its number, or its name in the variable of VISIBLE_GPUS: a UUID for a slice (MIG).
        memory_mb: its memory, in MB.
        left: the free part of a shared GPU.
    """

    identifier: str
    vendor: str
    model: str = ""
    memory_mb: str = ""
    driver_version: str = ""
    left: Fraction = Fraction(1)

    def described(self) -> dict[str, str]:
        """Returns the entry for `target_architecture` of `acquire_jobs`.

        See `srvcore/hardware_matching.py` of panda-server 1.0.4.
        """
        names = ("vendor", "model", "vram", "driver_version")
        found = {name: value for name, value in zip(names, astuple(self)[1:5], strict=True) if value}
        return found | ({"hpo_left": str(self.left)} if self.left < 1 else {})


def find_gpus(environment: Mapping[str, str] | None = None) -> tuple[MachineGpu, ...]:
    """Returns the GPUs that this process may use.

    Args:
        environment: the environment with the variables of VISIBLE_GPUS; default: that of this process.
    """
    env = os.environ if environment is None else environment
    found = _nvidia() or _amd() or _intel(env)
    if not found:
        return ()
    vendor, known = found[0].vendor, {gpu.identifier: gpu for gpu in found}
    variable = VISIBLE_GPUS[vendor.lower()]
    if variable in env:
        names = [name for name in _names(env[variable]) if name != NO_INTEL_GPU]
        found = tuple(known.get(name, MachineGpu(name, vendor)) for name in names)
    if vendor == "AMD" and "HIP_VISIBLE_DEVICES" in env:  # numbers of those that are left
        numbers = [int(name) for name in _names(env["HIP_VISIBLE_DEVICES"]) if name.isdecimal()]
        found = tuple(found[number] for number in numbers if number < len(found))
    return found


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def choose_gpus(wanted: str, found: Sequence[MachineGpu]) -> tuple[MachineGpu, ...]:
    """Returns the GPUs of `--gpus`: `all`, a number, or a list (`0,2`; `0,` for the first only).

    Raises:
        InputError: this machine does not have these GPUs.
    """
    if wanted == "all":
        return tuple(found)
    known = {gpu.identifier: gpu for gpu in found}
    if "," in wanted:
        chosen = _names(wanted)
        if missing := [name for name in chosen if name not in known]:
            raise InputError(f"--gpus {wanted}: there is no GPU {missing[0]} here, but {', '.join(known) or 'none'}")
        return tuple(known[name] for name in dict.fromkeys(chosen))
    if not wanted.isdecimal():
        raise InputError(f"--gpus {wanted!r}: give all, a number, or a list with commas")
    if int(wanted) > len(found):
        raise InputError(f"--gpus {wanted}: this machine has {len(found)}")
    return tuple(found[: int(wanted)])


def gpu_variables(gpus: Sequence[MachineGpu]) -> dict[str, str]:
    """Returns the variables that limit a process to these GPUs."""
    names = [gpu.identifier for gpu in gpus]
    kinds = {gpu.vendor.lower() for gpu in gpus} or set(VISIBLE_GPUS)
    return {name: value for kind in sorted(kinds) for name, value in show_gpus(kind, names).items()}


def share_variables(share: int, memory_mb: int, *, mps: bool) -> dict[str, str]:
    """Returns the variables that tell a job its part of a GPU.

    Args:
        share: number of jobs on the GPU; 1: none are needed.
        memory_mb: memory of the GPU, in MB; 0: not known.
        mps: whether the Multi-Process Service runs, which enforces its two variables (NVIDIA, "Multi-Process Service",
            "Appendix: Environment Variables").
    """
    if share == 1:
        return {}
    mine = memory_mb // share
    found = {"HPO_PILOT_GPU_MEMORY_MB": str(mine)} if mine else {}
    if mps:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(100 // share)
        found |= {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={mine}M"} if mine else {}
    return found


def _nvidia() -> tuple[MachineGpu, ...]:
    if said := _smi(*_QUERY):
        rows = [_names(line) for line in said]
        found = [MachineGpu(row[0], "NVIDIA", row[1], row[2], row[3]) for row in rows if len(row) == 4]
        return tuple(_slices(found) if any(_CAPABILITIES.glob("gpu*/mig/gi*")) else found)
    devices = sorted(int(path.name[6:]) for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdecimal())
    return tuple(MachineGpu(str(number), "NVIDIA") for number in devices)


def _smi(*options: str) -> list[str]:
    """Returns the lines of nvidia-smi; empty: there is no such program, or it failed."""
    try:
        said = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return said.stdout.splitlines() if said.returncode == 0 else []


def _slices(whole: Sequence[MachineGpu]) -> Iterator[MachineGpu]:
    """Yields the GPUs with slices in place of divided ones, which CUDA does not use as a whole."""
    slices: dict[str, list[re.Match[str]]] = {}
    number = ""
    for line in _smi("-L"):
        if match := re.match(r"GPU (\d+):", line):
            number = match[1]
        elif match := _SLICE.match(line):
            slices.setdefault(number, []).append(match)
    for gpu in whole:
        parts = slices.get(gpu.identifier)
        if parts is None:
            yield gpu
        for part in parts or ():
            model, memory_mb = f"{gpu.model} MIG {part[1]}", f"{part[2]}000"
            yield replace(gpu, identifier=part[3], model=model, memory_mb=memory_mb)


def _amd() -> tuple[MachineGpu, ...]:
    if not Path("/dev/kfd").exists():
        return ()
    nodes = Path("/sys/class/kfd/kfd/topology/nodes")
    # CPUs are nodes as well; they have no vector units.
    count = sum("simd_count 0" not in _text(path) and bool(_text(path)) for path in nodes.glob("*/properties"))
    return tuple(MachineGpu(str(number), "AMD") for number in range(count))


def _intel(env: Mapping[str, str]) -> tuple[MachineGpu, ...]:
    count = 0
    for device in sorted({path.resolve() for path in _DRM.glob("renderD*/device")}):
        if _text(device / "vendor").strip() == "0x8086" and device.name != _PROCESSORS_OWN:
            tiles = [*device.glob("drm/card*/gt/gt*"), *device.glob("tile*")]  # of the driver i915, or xe
            # Otherwise Level Zero counts tiles (its specification, "Device Hierarchy").
            count += 1 if env.get("ZE_FLAT_DEVICE_HIERARCHY") == "COMPOSITE" else max(1, len(tiles))
    return tuple(MachineGpu(str(number), "INTEL") for number in range(count))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@dataclass(frozen=True)
class FreeResources:
    """Free resources in a request for jobs.

    Attributes:
        slots: number of jobs that may start.
        cores: cores of these jobs together.
        gpus: GPUs of these jobs together; in an allocation, GPUs of one node.
        patience: seconds after which the request should be renewed, because jobs that have ended may have made room
            for larger ones.
        request: in an allocation, the free resources of each node; other servers use the other fields.
    """

    slots: int
    cores: int
    gpus: tuple[MachineGpu, ...]
    patience: float = math.inf
    request: AllocationRequest | None = None


@dataclass(frozen=True)
class AssignedResources:
    """The resources of one job.

    Attributes:
        nodes: names, in the order of the ranks.
        variables: added to its environment.
        cores: on each node.
        gpus: GPUs of each node, as in a `*_VISIBLE_DEVICES`.
        bound: numbers of the cores on its first node, from 0; empty: not chosen.
        memory_mb: on each node; 0: not given.
        allocation: all nodes of the allocation; empty: there is none.
        is_shared: whether agents run other jobs on the same nodes.
        seconds: time limit of the job; 0: not given.
        is_late: whether the job begins in the second half of the allocation.
        spread: the program that lets agents start the job on several nodes; empty: a job step does.
    """

    nodes: tuple[str, ...]
    variables: Mapping[str, str]
    cores: int
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bound: tuple[int, ...] = ()
    memory_mb: int = 0
    allocation: tuple[str, ...] = ()
    is_shared: bool = False
    seconds: int = 0
    is_late: bool = False
    spread: tuple[str, ...] = ()


class JobReservation:
    """One job's place in a pool, from its arrival to its end."""


R = TypeVar("R", bound=JobReservation)


class ResourcePool(ABC, Generic[R]):
    """The resources that jobs run on. Any thread may call any method.

    `reserve` makes a place for a job when it arrives. `enter` lets its sandbox be unpacked, `assign` gives it
    resources, and `free` ends the reservation at any stage.
    """

    #: Largest number of jobs at the same time.
    most: int

    @abstractmethod
    def wait_for_some(self, stop: threading.Event) -> FreeResources:
        """Waits until a job could start and returns the free resources; also returns after `stop` is set and `wake`."""

    @abstractmethod
    def reserve(self, data: Mapping[str, Any]) -> R:
        """Makes a place for a job that has arrived; `data`: the server's dictionary."""

    def enter(self, reservation: R, stop: threading.Event) -> bool:
        """Waits until the job's sandbox may be unpacked; False: `stop` was set before.

        Most need not wait, because only the sandbox has the job's needs.
        """
        return not stop.is_set()

    @abstractmethod
    def assign(self, reservation: R, job: Job, document: PayloadSettings, starting: StartingJob) -> AssignedResources:
        """Waits for the job's resources and assigns them.

        Args:
            reservation: the job's.
            job: the job.
            document: description of its payload.
            starting: says whether the job is still wanted.

        Raises:
            JobFailure: the job will not get its resources here.
        """

    @abstractmethod
    def free(self, reservation: R, ending: Ending = Ending.FAILED) -> None:
        """Frees a job's resources, after all its processes have ended."""

    def note_report(self, reservation: R) -> None:
        """Notes that the end of a job was reported, or that it is in the queue again."""
        return

    def note_launch(self, reservation: R, failed: Collection[str] | None, lost: Collection[str] = ()) -> None:
        """Notes the result of a launch.

        Args:
            reservation: the job's.
            failed: None: the ranks were started; otherwise the nodes that the failed launcher names, perhaps none.
            lost: nodes of `failed` that the batch system has taken away, according to the launcher.
        """
        return

    def note_staging(self, reservation: R, seconds: float) -> None:
        """Notes how long a job waited for copies on its nodes; later jobs of its search will not wait again."""
        return

    def metrics(self) -> Iterator[Metric]:
        """Yields further metrics for Prometheus."""
        return iter(())

    @abstractmethod
    def wake(self) -> None:
        """Wakes waiting threads, so that they check their `stop`."""


#: Seconds until a request for less than the whole machine is renewed; the second value if larger jobs have come.
_PATIENCE, _PATIENCE_WITH_LARGE = 5.0, 0.5

#: Launchers' name of the machine that they run on.
HERE = "localhost"


class MachineReservation(JobReservation):
    """One job's share of the machine.

    Attributes:
        cores: cores of the job.
        gpus: assigned GPUs.
        share: number of jobs on its GPU; 1: it shares none.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.share = 1
        self.gpus: tuple[MachineGpu, ...] = ()
        self.granted = False


class MachinePool(ResourcePool[MachineReservation]):
    """Divides one machine among jobs. Each job takes one slot and its requested cores; no core is used twice.

    If a server sends more jobs than fit, they wait here, first come, first served. A job that asks for more than the
    machine has gets the whole machine.
    """

    def __init__(
        self, slots: int, cores: int, gpus: Sequence[MachineGpu] = (), *, shows_gpus: bool = True, mps: bool = False
    ) -> None:
        """Sets the resources to divide.

        Args:
            slots: jobs at the same time.
            cores: cores for all jobs together.
            gpus: the GPUs for the jobs.
            shows_gpus: jobs that asked for no GPU see all GPUs.
            mps: NVIDIA's Multi-Process Service runs here.
        """
        self.most = slots
        self._mps = mps
        self._shared: dict[MachineGpu, Fraction] = {}  # free part of each shared GPU
        self._shows_gpus = shows_gpus
        self._slots, self._cores, self._gpus = slots, cores, tuple(gpus)
        self._all_cores, self._all_gpus = cores, tuple(gpus)
        self._has_seen_large = False  # jobs that do not fit every request
        self._waiting: deque[MachineReservation] = deque()
        self._changed = threading.Condition()

    def wait_for_some(self, stop: threading.Event) -> FreeResources:
        """See ResourcePool."""
        with self._changed:
            while not stop.is_set() and (self._slots <= 0 or self._cores <= 0 or self._waiting):
                self._changed.wait()
            shared = (replace(gpu, left=left) for gpu, left in self._shared.items() if left)
            return FreeResources(self._slots, self._cores, (*self._gpus, *shared), self._patience())

    def reserve(self, data: Mapping[str, Any]) -> MachineReservation:
        """See ResourcePool: takes one slot, and the cores as soon as enough are free."""
        reservation = MachineReservation(min(needed_cores(data), self._all_cores))
        with self._changed:
            self._slots -= 1
            self._has_seen_large = self._has_seen_large or reservation.cores > 1
            self._waiting.append(reservation)
            self._grant()
        return reservation

    def enter(self, reservation: MachineReservation, stop: threading.Event) -> bool:
        """See ResourcePool: waits for the cores of a reservation."""
        with self._changed:
            while not reservation.granted and not stop.is_set():
                self._changed.wait()
            return reservation.granted

    def assign(
        self, reservation: MachineReservation, job: Job, document: PayloadSettings, starting: StartingJob
    ) -> AssignedResources:
        """See ResourcePool: waits for the GPUs that a job asked for."""
        if document.nodes > 1:
            raise JobFailure(
                f"the job needs {document.nodes} nodes, and this pilot has one machine: start a pilot in an "
                "allocation (hpo-pilot pilots submit)"
            )
        if document.ranks_per_node and document.gpus > len(self._all_gpus):
            raise JobFailure(f"the job needs {document.gpus} GPUs, and this pilot has {len(self._all_gpus)}")
        count = document.gpus or int(job.wants_gpu)
        variables: Mapping[str, str] = {}
        reservation.share = document.gpu_share
        if count and self.take_gpus(reservation, count, starting.draining):
            memory = int(reservation.gpus[0].memory_mb or 0)
            variables = gpu_variables(reservation.gpus) | share_variables(reservation.share, memory, mps=self._mps)
        elif count and starting.draining.is_set():
            raise JobFailure("the pilot was about to end while the job waited for a GPU", PilotErrorCode.SIGTERM)
        elif not self._shows_gpus:
            variables = gpu_variables(())
        return AssignedResources(
            (HERE,), variables, gpus={HERE: tuple(gpu.identifier for gpu in reservation.gpus)}, cores=reservation.cores
        )

    def take_gpus(self, reservation: MachineReservation, count: int, stop: threading.Event) -> bool:
        """Waits for GPUs, at most all of the machine's; False: `stop` was set before, or the machine has none."""
        wanted, part = min(count, len(self._all_gpus)), Fraction(1, reservation.share)
        with self._changed:
            self._has_seen_large = True
            if part < 1:
                return self._take_share(reservation, part, stop)
            while wanted and len(self._gpus) < wanted and not stop.is_set():
                self._changed.wait()
            if not wanted or len(self._gpus) < wanted:
                return False
            reservation.gpus, self._gpus = self._gpus[:wanted], self._gpus[wanted:]
            return True

    def _take_share(self, reservation: MachineReservation, part: Fraction, stop: threading.Event) -> bool:
        """Waits for a part of a GPU: of the fullest shared one with room for it, else of a free one."""
        while self._all_gpus:
            fit = [(left, gpu.identifier, gpu) for gpu, left in self._shared.items() if left >= part]
            if fit or self._gpus:
                gpu = min(fit)[2] if fit else self._gpus[0]
                self._gpus = tuple(other for other in self._gpus if other != gpu)
                self._shared[gpu] = self._shared.get(gpu, Fraction(1)) - part
                reservation.gpus = (gpu,)
                return True
            if stop.is_set():
                break
            self._changed.wait()
        return False

    def free(self, reservation: MachineReservation, ending: Ending = Ending.FAILED) -> None:
        """See ResourcePool."""
        with self._changed:
            self._slots += 1
            if reservation.share > 1:
                for gpu in reservation.gpus:
                    self._shared[gpu] += Fraction(1, reservation.share)
                reservation.gpus = tuple(gpu for gpu in reservation.gpus if self._shared[gpu] == 1)
                self._shared = {gpu: left for gpu, left in self._shared.items() if left < 1}
            if reservation.granted:
                self._cores += reservation.cores
            else:
                self._waiting.remove(reservation)
            self._gpus = tuple(gpu for gpu in self._all_gpus if gpu in self._gpus or gpu in reservation.gpus)
            self._grant()
            self._changed.notify_all()

    def wake(self) -> None:
        """See ResourcePool."""
        with self._changed:
            self._changed.notify_all()

    def _patience(self) -> float:
        if self._cores == self._all_cores and self._gpus == self._all_gpus:
            return math.inf
        return _PATIENCE_WITH_LARGE if self._has_seen_large else _PATIENCE

    def _grant(self) -> None:
        while self._waiting and self._waiting[0].cores <= self._cores:
            reservation = self._waiting.popleft()
            self._cores -= reservation.cores
            reservation.granted = True
            self._changed.notify_all()


def machine_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
