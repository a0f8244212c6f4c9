"""Measures the energy of a job from counters of its nodes, read before, during and after the payload.

hpo_pilot_runner.py loads it or, where a launcher starts ranks on nodes, hpo_pilot_orphans.py for each rank. Ranks write
their readings into a folder of the job, and the runner adds up each counter of each node once.

Node: Cray's /sys/cray/pm_counters (HPE, "PM Counters": the whole node with GPUs, in joules), otherwise the RAPL
counters of the CPU packages (Linux, Documentation/power/powercap: in microjoules, they wrap to 0; often only root may
read them). GPUs of NVIDIA: nvmlDeviceGetTotalEnergyConsumption of NVML, in millijoules, for those that the job sees. Of
AMD: rsmi_dev_energy_count_get of ROCm SMI; of Intel: energy1_input of the drivers i915 and xe, in microjoules (Linux,
Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon). Both only for jobs with all GPUs of a node, because these
number GPUs in their own way.

A job that shares its node gets a share of the node's counters: its share of the cores or, if the counters include GPUs,
of the GPUs, the larger of the two. This is an estimate. If a counter of one node is missing, there is no figure. If
only the GPUs can be measured, the figure has another name, gpu_energy_joules. Standard library only, Python 3.6 syntax.
"""

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List

CRAY, RAPL = "/sys/cray/pm_counters", "/sys/class/powercap"
NVML, RSMI, DRM = "libnvidia-ml.so.1", "librocm_smi64.so", "/sys/class/drm"
FOLDER = "hpo_pilot_energy"  # for the readings of ranks, beside HPO_PILOT_MEASURED
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


def library(name: str) -> "Callable[..., None]":
    """Return a function that calls a function of a C library; it raises OSError if that returns an error."""
    import ctypes  # noqa: PLC0415  5 ms, needed only with GPUs

    lib = ctypes.CDLL(name)

    def call(function: str, *arguments: "Any") -> None:
        code = getattr(lib, function)(*arguments)
        if code:
            raise OSError("%s: error %d" % (function, code))

    return call


def nvml(name: str, visible: "List[str]") -> "Dict[str, Counter]":
    """Return the counters of the NVIDIA GPUs with these numbers or UUIDs; OSError without such a GPU or NVML."""
    from ctypes import byref, c_uint, c_ulonglong, c_void_p, create_string_buffer  # noqa: PLC0415  as above

    call = library(name)

    def reader(device: "Any") -> "Callable[[], float]":
        def read() -> float:
            value = c_ulonglong()
            call("nvmlDeviceGetTotalEnergyConsumption", device, byref(value))
            return float(value.value)

        return read

    call("nvmlInit_v2")
    found = {}
    for which in visible:
        device, uuid = c_void_p(), create_string_buffer(96)  # NVML_DEVICE_UUID_V2_BUFFER_SIZE
        if which.isdigit():
            call("nvmlDeviceGetHandleByIndex_v2", c_uint(int(which)), byref(device))
        else:
            call("nvmlDeviceGetHandleByUUID", which.encode(), byref(device))
        call("nvmlDeviceGetUUID", device, uuid, c_uint(96))
        found[uuid.value.decode()] = Counter(reader(device), 1e-3)
    return found


def rsmi(name: str) -> "Dict[str, Counter]":
    """Return the counters of all AMD GPUs; OSError without ROCm SMI."""
    from ctypes import byref, c_float, c_uint32, c_uint64  # noqa: PLC0415  as above

    call, count = library(name), c_uint32()

    def reader(number: int) -> "Callable[[], float]":
        def read() -> float:
            value, unit, when = c_uint64(), c_float(), c_uint64()
            call("rsmi_dev_energy_count_get", c_uint32(number), byref(value), byref(unit), byref(when))
            return float(value.value) * unit.value  # in microjoules

        return read

    call("rsmi_init", c_uint64(0))
    call("rsmi_num_monitor_devices", byref(count))
    return {"gpu %d" % number: Counter(reader(number), 1e-6) for number in range(count.value)}


def intel(root: str) -> "Dict[str, Counter]":
    """Return the counters of all Intel GPUs on cards of their own: one for each card, also with several tiles."""
    found = {}
    for name in os.listdir(root) if os.path.isdir(root) else ():
        device = os.path.realpath(os.path.join(root, name, "device"))
        folder = os.path.join(device, "hwmon")
        for each in os.listdir(folder) if name.startswith("renderD") and os.path.isdir(folder) else ():
            with open(os.path.join(folder, each, "name"), "rb") as file:
                if file.read(100).strip() in (b"i915", b"xe"):
                    found[device] = Counter(file_reader(os.path.join(folder, each, "energy1_input")), 1e-6)
    return found


class Meter:
    """Measures the energy of one job on one node, from now on."""

    def __init__(
        self,
        cores: int,
        gpus: int,
        gpu_share: int = 1,
        *,
        ranks: bool = False,
        cray: str = CRAY,
        powercap: str = RAPL,
        libraries: "Iterable[str]" = (NVML, RSMI),
        drm: str = DRM,
        every: float = 0.0,
    ) -> None:
        """Find the counters and read them.

        Args:
            cores: the job's share of the node.
            gpus: as `cores`.
            gpu_share: jobs on its GPU.
            ranks: this is for one rank, which may see only some of these GPUs.
            cray, powercap, libraries, drm, every: for tests.
        """
        self.node, self.gpus, self.share = [], {}, 1.0  # type: List[Counter], Dict[str, Counter], float
        self.gpu_share = gpu_share
        self.wanted = gpus  # counters of GPUs that a complete measurement has
        cores_share = min(1.0, cores / (os.cpu_count() or 1))
        try:
            self.node = [Counter(file_reader(os.path.join(cray, "energy")), 1.0)]
            names = os.listdir(cray)
            parts = sum(name.startswith("accel") and name.endswith("_energy") for name in names)
            self.share = max(cores_share, min(1.0, gpus / gpu_share / parts)) if parts else cores_share
            self.wanted = 0
        except (OSError, ValueError, IndexError):
            self.node, self.share = self._quiet(rapl, powercap) or [], cores_share
        if self.wanted:
            self._find_gpus(gpus, ranks, drm, *libraries)
        self._done = self._thread = None  # type: Any
        if self.node or self.gpus:
            import threading  # noqa: PLC0415  few nodes have readable counters

            self._done = threading.Event()
            self._thread = threading.Thread(target=self._watch, args=(every or LOOK_SECONDS,), daemon=True)
            self._thread.start()

    def _find_gpus(self, gpus: int, ranks: bool, drm: str, of_nvidia: str, of_amd: str) -> None:
        visible = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
        if len(visible) == gpus or (ranks and 0 < len(visible) < gpus):
            self.gpus = self._quiet(nvml, of_nvidia, visible) or {}
        if not self.gpus:
            found = self._quiet(rsmi, of_amd) or {}
            self.gpus = found if len(found) == gpus else {}
        if not self.gpus:
            found = self._quiet(intel, drm) or {}
            if found and len(found) in (gpus, gpus // 2):  # tiles count as GPUs; a card has two of them
                self.gpus, self.wanted = found, len(found)

    @staticmethod
    def _quiet(find: "Callable[..., Any]", *arguments: "Any") -> "Any":
        """Return the counters; None if one cannot be read, because a part of the energy would mislead."""
        try:
            return find(*arguments)
        except (OSError, ValueError, IndexError, AttributeError):
            return None

    def _watch(self, every: float) -> None:
        while not self._done.wait(every):
            self._look()

    def _look(self) -> None:
        try:
            for counter in [*self.node, *self.gpus.values()]:
                counter.look()
        except (OSError, ValueError, IndexError):
            self.node, self.gpus = [], {}

    def reading(self) -> "Dict[str, Any]":
        """Stop and return the energy so far, by counter in joules, with the name of the node."""
        if self._thread is not None:
            self._done.set()
            self._thread.join(5)
        self._look()
        joules = {key: counter.joules / self.gpu_share for key, counter in self.gpus.items()}
        if self.node:
            joules["node"] = self.share * sum(counter.joules for counter in self.node)
        # Emulated nodes of one machine have only this name for each.
        at = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        return {"at": at, "wanted": self.wanted, "joules": joules}

    def metrics(self) -> "Dict[str, float]":
        """Stop and return the energy so far: energy_joules of the whole job, or gpu_energy_joules of its GPUs only."""
        return total([self.reading()], 1)


def total(readings: "Iterable[Dict[str, Any]]", nodes: int) -> "Dict[str, float]":
    """Return the energy of a job by the readings of its ranks; several ranks may have read the same counter."""
    found, wanted = {}, 0  # type: Dict[str, Dict[str, float]], int
    for one in readings:
        joules, wanted = found.setdefault(one["at"], {}), max(wanted, one["wanted"])
        for key, value in one["joules"].items():
            joules[key] = max(value, joules.get(key, 0.0))  # of the rank that ended last
    of_nodes = [joules.pop("node", None) for joules in found.values()]
    of_gpus = sum(sum(joules.values()) for joules in found.values())  # the others
    complete = len(found) == nodes and all(len(joules) == wanted for joules in found.values())
    if complete and None not in of_nodes:
        return {"energy_joules": of_gpus + sum(filter(None, of_nodes))}
    return {"gpu_energy_joules": of_gpus} if complete and wanted else {}


def meter_of_rank() -> "Callable[[], None]":
    """Start to measure for one rank; returns a function that writes its reading."""
    cores, gpus = (int(os.environ["HPO_PILOT_" + name]) for name in ("CORES", "GPUS"))
    folder = os.path.join(os.path.dirname(os.environ["HPO_PILOT_MEASURED"]), FOLDER)
    meter = Meter(cores, gpus, ranks=True)

    def save() -> None:
        reading = meter.reading()
        path = os.path.join(folder, "%s-%d" % (reading["at"], os.getpid()))
        try:
            os.makedirs(folder, exist_ok=True)
            with open(path + ".new", "w") as file:
                json.dump(reading, file)
            os.rename(path + ".new", path + ".json")
        except OSError as error:
            print("hpo_pilot_energy: %s is not written: %s" % (path, error))

    return save


def of_ranks(nodes: int) -> "Dict[str, float]":
    """Return the energy of a job by the readings of its ranks; empty if they are incomplete."""
    readings = []
    try:
        for name in os.listdir(FOLDER):
            if name.endswith(".json"):
                with open(os.path.join(FOLDER, name), "rb") as file:
                    readings.append(json.loads(file.read().decode()))
        return total(readings, nodes)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def meter_of(job: "Dict[str, Any]", payload: "Dict[str, Any]", *, ranks: bool) -> "Callable[[], Dict[str, float]]":
    """Return a function that returns the job's energy; `ranks`: they measure it on their nodes."""
    if ranks:
        return lambda: of_ranks(job["nodes"])
    return (
        Meter(payload["cores"], job["gpus"], payload.get("gpu_share") or 1).metrics
        if job["nodes"] == 1 and payload.get("cores")
        else dict
    )
