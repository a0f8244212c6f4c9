"""Measures the energy of a job where its node tells: counters that are read before, during and after.

Loaded by hpo_pilot_runner.py where there may be any. Of the node: Cray's /sys/cray/pm_counters (HPE, "PM Counters": all
of the node, GPUs included, in joules), else the CPU packages' RAPL counters (Linux, Documentation/power/powercap: in
microjoules, and they start again at 0; where only root may read them they are not there). Of NVIDIA's GPUs: NVML's
nvmlDeviceGetTotalEnergyConsumption, in millijoules, of those that the job sees.

Of the node's counters a job that shares it counts its share of the cores or, where the counters have them in, of the
GPUs, the larger one: an estimate then, for nobody knows who drew what. Nothing is told of jobs on several nodes. Where
GPUs are measured and the rest is not, that is told by another name. Standard library alone, Python 3.6 syntax.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

CRAY, RAPL = "/sys/cray/pm_counters", "/sys/class/powercap"
NVML = "libnvidia-ml.so.1"
LOOK_SECONDS = 60.0  # a RAPL counter of 262 kJ starts again after 10 minutes at 400 W


class Counter:
    """A counter of energy; `joules` is what it went on since it was made."""

    def __init__(self, read: "Callable[[], float]", unit: float, size: float = 0.0) -> None:
        """`read`: the counter, in `unit` joules; `size`: where it starts again at 0; 0: never."""
        self.read, self.unit, self.size, self.joules = read, unit, size, 0.0
        self.last = read()

    def look(self) -> None:
        """Reads it; between two looks it may start again once."""
        now = self.read()
        gone = now - self.last
        if gone < 0 and self.size:
            gone += self.size
        self.joules, self.last = self.joules + max(0.0, gone) * self.unit, now


def file_reader(path: str) -> "Callable[[], float]":
    """Reads the first word of a file as a number; OSError or ValueError where it is none."""

    def read() -> float:
        with open(path, "rb") as file:
            return float(file.read(100).split()[0])

    return read


def rapl(root: str) -> "List[Counter]":
    """Those of the CPU packages; none where one of them cannot be read."""
    found = []
    for zone in sorted(os.listdir(root)):
        folder = os.path.join(root, zone)
        if zone.startswith("intel-rapl:") and zone.count(":") == 1:  # intel-rapl:0:0 is a part of intel-rapl:0
            name = os.path.join(folder, "name")
            with open(name, "rb") as file:
                package = file.read(100).startswith(b"package")
            if package:  # psys, the platform, has the packages in
                size = file_reader(os.path.join(folder, "max_energy_range_uj"))()
                found.append(Counter(file_reader(os.path.join(folder, "energy_uj")), 1e-6, size))
    return found


def nvml(library: str, visible: "List[str]") -> "List[Counter]":
    """Those of the NVIDIA GPUs with these numbers or UUIDs; OSError where there is no such thing."""
    import ctypes  # noqa: PLC0415  5 ms, and only where there are GPUs

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
    """The energy of one job on one node, from now on."""

    def __init__(
        self, cores: int, gpus: int, *, cray: str = CRAY, powercap: str = RAPL, library: str = NVML, every: float = 0.0
    ) -> None:
        """`cores`, `gpus`: that the job has of the node; the others are for tests."""
        self.node, self.gpus, self.share = [], [], 1.0  # type: List[Counter], List[Counter], float
        self.gpus_in = False
        cores_share = min(1.0, cores / (os.cpu_count() or 1))
        try:
            self.node = [Counter(file_reader(os.path.join(cray, "energy")), 1.0)]
            names = os.listdir(cray)
            parts = sum(name.startswith("accel") and name.endswith("_energy") for name in names)
            self.share = max(cores_share, min(1.0, gpus / parts)) if parts else cores_share
            self.gpus_in = True
        except (OSError, ValueError, IndexError):
            self.node, self.share = self._quiet(rapl, powercap), cores_share
        visible = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
        if gpus and not self.gpus_in and len(visible) == gpus:
            self.gpus = self._quiet(nvml, library, visible)
        self.wanted = gpus
        self._done = self._thread = None  # type: Any
        if self.node or self.gpus:
            import threading  # noqa: PLC0415  few nodes tell anything

            self._done = threading.Event()
            self._thread = threading.Thread(target=self._watch, args=(every or LOOK_SECONDS,), daemon=True)
            self._thread.start()

    @staticmethod
    def _quiet(find: "Callable[..., List[Counter]]", *arguments: "Any") -> "List[Counter]":
        """What is found; nothing where something cannot be read: half an energy is none."""
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
        """What the job drew until now, once: energy_joules of all of it, or gpu_energy_joules of the GPUs alone."""
        if self._thread is not None:
            self._done.set()
            self._thread.join(5)
        self._look()
        node = self.share * sum(counter.joules for counter in self.node)
        of_gpus = sum(counter.joules for counter in self.gpus)
        if self.node and (self.gpus_in or not self.wanted or self.gpus):
            return {"energy_joules": node + of_gpus}
        return {"gpu_energy_joules": of_gpus} if self.gpus else {}


def meter_of(job: "Dict[str, Any]", payload: "Dict[str, Any]") -> "Callable[[], Dict[str, float]]":
    """What tells the energy of a job from now on; nothing where it has several nodes, or says not how much of one."""
    return Meter(payload["cores"], job["gpus"]).metrics if job["nodes"] == 1 and payload.get("cores") else dict
