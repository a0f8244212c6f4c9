"""Measures the energy of a job from counters of its node, read before, during and after the payload.

hpo_pilot_runner.py loads it on nodes that may have counters. Node: Cray's /sys/cray/pm_counters (HPE, "PM Counters":
the whole node with GPUs, in joules), otherwise the RAPL counters of the CPU packages (Linux,
Documentation/power/powercap: in microjoules, they wrap to 0; often only root may read them). NVIDIA GPUs:
nvmlDeviceGetTotalEnergyConsumption of NVML, in millijoules, for the GPUs that the job sees.

A job that shares its node gets a share of the node's counters: its share of the cores or, if the counters include GPUs,
of the GPUs, the larger of the two. This is an estimate. Jobs on several nodes get no figure. If only the GPUs can be
measured, the figure has another name, gpu_energy_joules. Standard library only, Python 3.6 syntax.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

CRAY, RAPL = "/sys/cray/pm_counters", "/sys/class/powercap"
NVML = "libnvidia-ml.so.1"
LOOK_SECONDS = 60.0  # a RAPL counter of 262 kJ wraps after 10 minutes at 400 W


class Counter:
    """An energy counter; `joules` is its increase since this object was made."""

    def __init__(self, read: "Callable[[], float]", unit: float, size: float = 0.0) -> None:
        """`read` returns the counter in units of `unit` joules; `size`: the value where it wraps to 0; 0: never."""
        self.read, self.unit, self.size, self.joules = read, unit, size, 0.0
        self.last = read()

    def look(self) -> None:
        """Read the counter; it may wrap once between two readings."""
        now = self.read()
        gone = now - self.last
        if gone < 0 and self.size:
            gone += self.size
        self.joules, self.last = self.joules + max(0.0, gone) * self.unit, now


def file_reader(path: str) -> "Callable[[], float]":
    """Return a function that reads the first word of a file as a number; it raises OSError or ValueError."""

    def read() -> float:
        with open(path, "rb") as file:
            return float(file.read(100).split()[0])

    return read


def rapl(root: str) -> "List[Counter]":
    """Return the counters of the CPU packages. OSError if one of them cannot be read."""
    found = []
    for zone in sorted(os.listdir(root)):
        folder = os.path.join(root, zone)
        if zone.startswith("intel-rapl:") and zone.count(":") == 1:  # intel-rapl:0:0 is a part of intel-rapl:0
            name = os.path.join(folder, "name")
            with open(name, "rb") as file:
                package = file.read(100).startswith(b"package")
            if package:  # psys, the platform, includes the packages
                size = file_reader(os.path.join(folder, "max_energy_range_uj"))()
                found.append(Counter(file_reader(os.path.join(folder, "energy_uj")), 1e-6, size))
    return found


def nvml(library: str, visible: "List[str]") -> "List[Counter]":
    """Return the counters of the NVIDIA GPUs with these numbers or UUIDs; OSError without such a GPU or NVML."""
    import ctypes  # noqa: PLC0415  5 ms, needed only with GPUs

    lib = ctypes.CDLL(library)

    def call(name: str, *arguments: "Any") -> None:
        code = getattr(lib, name)(*arguments)
        if code:
            raise OSError("%s: NVML error %d" % (name, code))

    def reader(device: "Any") -> "Callable[[], float]":
        def read() -> float:
            value = ctypes.c_ulonglong()
            call("nvmlDeviceGetTotalEnergyConsumption", device, ctypes.byref(value))
            return float(value.value)

        return read

    call("nvmlInit_v2")
    found = []
    for which in visible:
        device = ctypes.c_void_p()
        if which.isdigit():
            call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(which)), ctypes.byref(device))
        else:
            call("nvmlDeviceGetHandleByUUID", which.encode(), ctypes.byref(device))
        found.append(Counter(reader(device), 1e-3))
    return found


class Meter:
    """Measures the energy of one job on one node, from now on."""

    def __init__(
        self,
        cores: int,
        gpus: int,
        gpu_share: int = 1,
        *,
        cray: str = CRAY,
        powercap: str = RAPL,
        library: str = NVML,
        every: float = 0.0,
    ) -> None:
        """`cores` and `gpus`: the job's on the node; `gpu_share`: jobs on its GPU; the others are for tests."""
        self.node, self.gpus, self.share = [], [], 1.0  # type: List[Counter], List[Counter], float
        self.gpus_in = False
        cores_share = min(1.0, cores / (os.cpu_count() or 1))
        try:
            self.node = [Counter(file_reader(os.path.join(cray, "energy")), 1.0)]
            names = os.listdir(cray)
            parts = sum(name.startswith("accel") and name.endswith("_energy") for name in names)
            self.share = max(cores_share, min(1.0, gpus / gpu_share / parts)) if parts else cores_share
            self.gpus_in = True
        except (OSError, ValueError, IndexError):
            self.node, self.share = self._quiet(rapl, powercap), cores_share
        visible = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
        if gpus and not self.gpus_in and len(visible) == gpus:
            self.gpus = self._quiet(nvml, library, visible)
        self.wanted, self.gpu_share = gpus, gpu_share
        self._done = self._thread = None  # type: Any
        if self.node or self.gpus:
            import threading  # noqa: PLC0415  few nodes have readable counters

            self._done = threading.Event()
            self._thread = threading.Thread(target=self._watch, args=(every or LOOK_SECONDS,), daemon=True)
            self._thread.start()

    @staticmethod
    def _quiet(find: "Callable[..., List[Counter]]", *arguments: "Any") -> "List[Counter]":
        """Return the counters; none if one cannot be read, because a part of the energy would mislead."""
        try:
            return find(*arguments)
        except (OSError, ValueError, IndexError, AttributeError):
            return []

    def _watch(self, every: float) -> None:
        while not self._done.wait(every):
            self._look()

    def _look(self) -> None:
        try:
            for counter in self.node + self.gpus:
                counter.look()
        except (OSError, ValueError, IndexError):
            self.node, self.gpus = [], []

    def metrics(self) -> "Dict[str, float]":
        """Stop and return the energy so far: energy_joules of the whole job, or gpu_energy_joules of its GPUs only."""
        if self._thread is not None:
            self._done.set()
            self._thread.join(5)
        self._look()
        node = self.share * sum(counter.joules for counter in self.node)
        of_gpus = sum(counter.joules for counter in self.gpus) / self.gpu_share
        if self.node and (self.gpus_in or not self.wanted or self.gpus):
            return {"energy_joules": node + of_gpus}
        return {"gpu_energy_joules": of_gpus} if self.gpus else {}


def meter_of(job: "Dict[str, Any]", payload: "Dict[str, Any]") -> "Callable[[], Dict[str, float]]":
    """Return a function that returns the job's energy; empty for several nodes or an unknown share of the node."""
    if job["nodes"] != 1 or not payload.get("cores"):
        return dict
    return Meter(payload["cores"], job["gpus"], payload.get("gpu_share") or 1).metrics
