"""Needs of jobs, offers of pilots, and the waiting jobs in memory for a fast choice."""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobNeeds
from hpo_pilot.jobs.resources import gpu_count, usable_gpus

# Hardware that a task asks for, in the words of prun's ``--architecture``, and whether a queue or pilot has it.
#
# Both formats of PanDA (`pandaserver/taskbuffer/JediTaskSpec.py` of panda-server 1.0.4) are read. The first is
# ``sw_platform<@base_platform><#cpu><&gpu>``. Its cpu is ``architecture<-vendor<-instruction set>>``, or several of
# those as ``(a|b)``; its gpu is ``vendor<-model><:key operator value>…``. The second is a JSON object with
# ``base_platform``, ``cpu_specs``, ``gpu_spec``. GPUs match as in `pandaserver/srvcore/hardware_matching.py`: one
# GPU must have the vendor, model and generation; every GPU must fulfil the minima. A CPU or platform that a queue
# does not state is taken to fit.

ANY = "*"
_ATTRIBUTES = {
    "cuda": "version",
    "uarch": "microarchitecture",
    "driver": "driver_version",
    "model": "model",
    "vram": "vram",
}
_ATTRIBUTE = re.compile(r"(\w+)(>=|<=|!=|==|>|<|=)(.*)")
_COMPARE = {"==": eq, "!=": ne, ">=": ge, "<=": le, ">": gt, "<": lt}
_COMPARED = re.compile(r"(>=|<=|!=|==|>|<)?\s*([0-9][0-9.]*)$")
#: Model patterns come from users. They may have few repetitions and groups, none of them repeated, so that matching is
#: fast.
_HARMLESS = re.compile(r"^[\w .|()\-/+*^$]{1,120}$")
_REPEATED_GROUP = re.compile(r"\)[*+?{]")
_MOST_REPETITIONS = 3


class HardwareError(InputError):
    """A hardware requirement is not valid; the message says where."""


@dataclass(frozen=True)
class CpuRequirement:
    """The CPU requirements of a job; `ANY`: any value."""

    architecture: str = ANY
    vendor: str = ANY
    instructions: str = ANY


@dataclass(frozen=True)
class GpuRequirement:
    """The GPU requirements of a job.

    Attributes:
        vendor: a pattern; `ANY`: any vendor.
        model: a pattern; `ANY`: any model.
        not_model: whether GPUs that match `model` are excluded.
        generations: the accepted microarchitectures; empty: any.
        minima: conditions (property of the GPU, operator, version); all must be true.
    """

    vendor: str = ANY
    model: str = ANY
    not_model: bool = False
    generations: tuple[str, ...] = ()
    minima: tuple[tuple[str, str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class HardwareRequirements:
    """Hardware that a task's jobs ask for.

    Attributes:
        platform: operating system; empty: any.
        cpus: accepted CPUs; empty: any.
        gpu: the GPU requirements; None: the task asks for no GPU.
    """

    platform: str = ""
    cpus: tuple[CpuRequirement, ...] = ()
    gpu: GpuRequirement | None = None


@dataclass(frozen=True)
class GpuOffer:
    """GPUs of one kind at a queue or a pilot; an empty value is not known. `left`: the free part of a shared GPU."""

    count: int
    vendor: str = ""
    model: str = ""
    generation: str = ""
    memory_mb: str = ""
    framework_version: str = ""
    driver_version: str = ""
    left: Fraction = Fraction(1)


@lru_cache(maxsize=1024)
def parse_architecture(text: str) -> HardwareRequirements:
    """Returns the hardware requirements in a task's ``architecture``.

    Raises:
        HardwareError: it is not valid.
    """
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise HardwareError(f"architecture {text!r} is not JSON: {error}") from error
        if "encoded_platform" not in document:
            return _from_document(document)
        text = str(document["encoded_platform"])
    platform = re.search(r"@([^#&]*)", text)
    gpu = re.search(r"&([^\^@#]*)", text)
    return HardwareRequirements(platform[1] if platform else "", _cpus(text), _gpu(gpu[1]) if gpu and gpu[1] else None)


def _cpus(text: str) -> tuple[CpuRequirement, ...]:
    if "#" not in text:
        architecture = "" if re.match(r"[\^@&]", text) else re.split("[-&@]", text, maxsplit=1)[0]
        return (CpuRequirement(architecture),) if architecture else ()
    match = re.search(r"#([^\^@&]*)", text)
    wanted = match[1].removeprefix("(").removesuffix(")") if match else ""
    found = []
    for one in filter(None, wanted.split("|")):
        architecture, vendor, instructions = (*one.split("-", 2), ANY, ANY)[:3]
        found.append(CpuRequirement(architecture or ANY, vendor or ANY, instructions or ANY))
    return tuple(found)


def _gpu(text: str) -> GpuRequirement:
    first, *attributes = text.split(":")
    vendor, _, model = first.partition("-")
    found: dict[str, Any] = {"vendor": vendor or ANY, "model": model or ANY}
    for attribute in attributes:
        match = _ATTRIBUTE.match(attribute)
        if match is None or match[1] not in _ATTRIBUTES:
            raise HardwareError(
                f"architecture: GPU attribute {attribute!r}; expected {', '.join(_ATTRIBUTES)} with an operator"
            )
        name, sign, value = _ATTRIBUTES[match[1]], match[2], match[3]
        if name == "model":
            found["model"] = {"pattern": value, "excl": True} if sign == "!=" else value
        elif name == "microarchitecture":
            found["microarchitecture"] = value
        else:
            found[name] = ("==" if sign == "=" else sign) + value
    return _gpu_from(found)


def _from_document(document: Any) -> HardwareRequirements:
    if not isinstance(document, dict):
        raise HardwareError("architecture: a JSON object is expected")
    cpus = document.get("cpu_specs") or []
    gpu = document.get("gpu_spec")
    if not isinstance(cpus, list) or not all(isinstance(one, dict) for one in cpus):
        raise HardwareError("architecture: cpu_specs must be a list of objects")
    if gpu is not None and not isinstance(gpu, dict):
        raise HardwareError("architecture: gpu_spec must be an object")
    cpus_required = tuple(
        CpuRequirement(*(str(one.get(key) or ANY) for key in ("arch", "vendor", "instr"))) for one in cpus
    )
    return HardwareRequirements(
        str(document.get("base_platform") or ""), cpus_required, None if gpu is None else _gpu_from(gpu)
    )


def _gpu_from(required: Mapping[str, Any]) -> GpuRequirement:
    model: Any = required.get("model") or ANY
    excluded = False
    if isinstance(model, dict):
        model, excluded = model.get("pattern") or ANY, bool(model.get("excl"))
    generations = required.get("microarchitecture") or ()
    minima = []
    for name in ("vram", "version", "driver_version"):
        if name in required:
            match = _COMPARED.match(str(required[name]).strip())
            if match is None:
                raise HardwareError(f"architecture: {name} of the GPU: {required[name]!r} is not a version or size")
            minima.append((name, match[1] or "==", version(match[2])))
    vendor = str(required.get("vendor") or ANY)
    for pattern in (vendor, str(model)):
        _check_pattern(pattern)
    named = (generations,) if isinstance(generations, str) else tuple(str(one) for one in generations)
    return GpuRequirement(vendor, str(model), excluded, named, tuple(minima))


def _check_pattern(pattern: str) -> None:
    repetitions = sum(pattern.count(sign) for sign in "*+(")
    if pattern == ANY:
        return
    if not _HARMLESS.match(pattern) or _REPEATED_GROUP.search(pattern) or repetitions > _MOST_REPETITIONS:
        short = pattern if len(pattern) <= 120 else f"{pattern[:120]}…"
        raise HardwareError(f"architecture: pattern {short!r} is too complex: name the GPU, with .* if needed")
    try:
        re.compile(pattern)
    except re.error as error:
        raise HardwareError(f"architecture: pattern {pattern!r}: {error}") from error


def version(text: str) -> tuple[int, ...]:
    """Returns a version such as ``12.4`` as numbers for comparisons, without zeros at the end."""
    numbers = [int(part) for part in re.findall(r"\d+", text)[:8]]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def cpu_fits(required: tuple[CpuRequirement, ...], offer: str) -> bool:
    """Returns whether the CPU ``architecture<-vendor<-instruction set>>`` fits one of the requirements."""
    architecture, vendor, instructions = (*offer.split("-", 2), "", "")[:3]
    return not required or any(
        _same(one.architecture, architecture) and _same(one.vendor, vendor) and _same(one.instructions, instructions)
        for one in required
    )


def _same(required: str, offered: str) -> bool:
    return required == ANY or not offered or required.lower() == offered.lower()


@lru_cache(maxsize=4096)
def gpus_fit(required: GpuRequirement, count: int | Fraction, offers: tuple[GpuOffer, ...]) -> bool:
    """Returns whether there are at least `count` GPUs, and they meet the requirements."""
    if usable_gpus(free_gpus(offers), count) < count or not offers:
        return False
    if required.vendor != ANY and not any(re.match(required.vendor, offer.vendor, re.IGNORECASE) for offer in offers):
        return False
    if required.model != ANY:
        found = any(re.match(required.model, offer.model, re.IGNORECASE) for offer in offers if offer.model)
        if found == required.not_model:
            return False
    if required.generations and not any(offer.generation in required.generations for offer in offers):
        return False
    said = {"vram": "memory_mb", "version": "framework_version", "driver_version": "driver_version"}
    return all(
        getattr(offer, said[name]) and _COMPARE[sign](version(getattr(offer, said[name])), least)
        for name, sign, least in required.minima
        for offer in offers
    )


def free_gpus(offers: Iterable[GpuOffer]) -> tuple[int | Fraction, ...]:
    """Returns the GPUs of offers as a room has them: the whole ones, then the free parts of shared ones."""
    whole = sum(offer.count for offer in offers if offer.left == 1)
    parts = sorted((offer.left for offer in offers if offer.left < 1), reverse=True)
    return (*((whole,) if whole else ()), *parts)


def offered_gpus(target_architecture: Mapping[str, Any]) -> tuple[GpuOffer, ...] | None:
    """Returns the GPUs that a pilot states in ``pilot/acquire_jobs``; None: it states none.

    Raises:
        HardwareError: the statement is not valid.
    """
    gpus = target_architecture.get("gpus")
    if gpus is None:
        return None
    if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
        raise HardwareError("target_architecture: gpus must be a list of objects")
    return tuple(
        GpuOffer(
            count=gpu["count"] if isinstance(gpu.get("count"), int) and 0 < gpu["count"] < 10_000 else 1,
            left=_part(gpu.get("hpo_left")),
            vendor=str(gpu.get("vendor") or "")[:128],
            model=str(gpu.get("model") or "")[:128],
            generation=str(gpu.get("architecture") or "")[:128],
            memory_mb=str(gpu.get("vram") or "")[:32],
            framework_version=str(gpu.get("framework_version") or "")[:32],
            driver_version=str(gpu.get("driver_version") or "")[:32],
        )
        for gpu in gpus
    )


def _part(stated: Any) -> Fraction:
    """Returns the free part of a GPU that our pilot states as text, such as 1/2; 1: it is not shared."""
    found = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", stated) if isinstance(stated, str) else None
    return min(Fraction(1), Fraction(int(found[1]), int(found[2]))) if found else Fraction(1)


_CAMPAIGN_LIMIT = 250


@dataclass(frozen=True)
class TaskNeeds:
    """The needs of a task's jobs. Zero and empty: none, or not known.

    Attributes:
        job: resources of one job; its minutes are the payload's, or else the walltime.
        walltime: time limit of one job in seconds, with the time for its start and end.
        disk_mb: disk space for one job, in MB.
        architecture: the hardware in the format of prun.
        container: whether the jobs run in a container.
        site: the site profile that the search names.
    """

    job: JobNeeds
    walltime: int
    disk_mb: int
    architecture: str
    container: bool
    site: str

    @property
    def hardware(self) -> HardwareRequirements:
        """The hardware asked for."""
        return parse_architecture(self.architecture)

    def __str__(self) -> str:
        """Returns the text for the database."""
        job, payload = self.job, round(60 * self.job.minutes)
        document = {
            "architecture": self.architecture,
            "checkpoints": job.checkpoints,
            "container": self.container,
            "cores": job.cores,
            "disk_mb": self.disk_mb,
            "gpus": job.whole_gpus,
            **({"gpu_share": job.gpu_share} if job.gpu_share > 1 else {}),
            "nodes": job.nodes,
            "payload_seconds": 0 if payload == self.walltime else payload,
            "ram_mb": job.memory_mb,
            "seconds": self.walltime,
            "site": self.site,
        }
        return json.dumps(document, separators=(",", ":"))


@lru_cache(maxsize=4096)
def parse_needs(text: str) -> TaskNeeds:
    """Reads needs from the text that `TaskNeeds.__str__` wrote."""
    known = json.loads(text)
    minutes = (known.get("payload_seconds", 0) or known["seconds"]) / 60
    checkpoints = known.get("checkpoints", False)
    return TaskNeeds(
        JobNeeds(
            known["nodes"],
            gpu_count(known["gpus"], known.get("gpu_share", 1)),
            known["cores"],
            known["ram_mb"],
            minutes,
            checkpoints=checkpoints,
        ),
        walltime=known["seconds"],
        disk_mb=known["disk_mb"],
        architecture=known["architecture"],
        container=known["container"],
        site=known.get("site", ""),
    )


def campaign_of(params: Mapping[str, Any], user_name: str, task_name: str) -> str:
    """Returns the name under which shares are counted: the search, or the task if it is not of hpo-pilot."""
    named = params.get("campaign")
    key = f"{user_name}/{named}" if isinstance(named, str) and named else f"{user_name}/task/{task_name}"
    return key[:_CAMPAIGN_LIMIT]


# Waiting jobs in memory, sorted so that the cost of a pilot's request does not grow with their number.
#
# The database has the valid state; this is a copy that only the writing thread uses. A task is added when a committed
# transaction reports waiting jobs or a change of a column in `BROKERED`. A task is removed when a look finds no waiting
# job. So the copy may have too many tasks, but never too few. After a rollback a new copy is made.

#: The columns of a task whose change moves it to another group.
BROKERED = frozenset({"priority", "queue", "included", "excluded", "campaign", "needs"})

_TURNS = 10_000  # number of campaigns whose last turn is remembered
_LOADS_SECONDS = 1.0  # largest age of the count of cores at pilots, in seconds; acquisitions since then are added


@dataclass(frozen=True)
class JobKind:
    """Properties of waiting jobs that decide whether a pilot may take them.

    Attributes:
        included: ",A,B," or empty: the queues to which they may go.
        excluded: the queues to which they must not go, in the same form.
    """

    label: str
    included: str
    excluded: str
    needs: TaskNeeds


@dataclass(frozen=True)
class WaitingTask:
    """The waiting jobs of a task at one queue (empty: at any)."""

    task_id: int
    queue: str
    priority: int
    campaign: str
    kind: JobKind

    @property
    def group(self) -> tuple[int, JobKind]:
        """Its place in its queue: priority and kind."""
        return (-self.priority, self.kind)


#: Waiting tasks of one queue, priority and kind: campaign -> heap of task ids.
Group = dict[str, list[int]]


class WaitingTasks:
    """Waiting jobs by task and queue, and the cores at pilots by campaign."""

    def __init__(self) -> None:
        #: Whether all jobs that were waiting when the database was opened have been added.
        self.complete = False
        self._changed: set[tuple[int, str]] = set()
        self._tasks: dict[tuple[int, str], WaitingTask] = {}
        self._queues_of: defaultdict[int, set[str]] = defaultdict(set)
        self._groups: defaultdict[str, dict[tuple[int, JobKind], Group]] = defaultdict(dict)
        self._loads: Counter[str] = Counter()
        self._loads_of: float | None = None
        self._turns: dict[str, int] = {}
        self._turn = 0

    def note(self, activated: Iterable[tuple[str, int]], changed: Iterable[int]) -> None:
        """Notes the changes of a committed transaction.

        Args:
            activated: (queue, task) of jobs that started to wait.
            changed: tasks whose columns in `BROKERED` changed.
        """
        self._changed.update((task_id, queue) for queue, task_id in activated)
        for task_id in changed:
            self._changed.update((task_id, queue) for queue in self._queues_of.get(task_id, ()))

    def changed(self) -> frozenset[tuple[int, str]]:
        """Returns what must be read again, as (task, queue)."""
        return frozenset(self._changed)

    def add(self, waiting_tasks: Iterable[WaitingTask]) -> None:
        """Adds the tasks that `changed` returned, with their current state in the database."""
        for task in waiting_tasks:
            self._add(task)
        self._changed.clear()

    def _add(self, task: WaitingTask) -> None:
        if self._tasks.get((task.task_id, task.queue)) == task:
            return
        self._tasks[task.task_id, task.queue] = task
        self._queues_of[task.task_id].add(task.queue)
        group = self._groups[task.queue].setdefault(task.group, {})
        heapq.heappush(group.setdefault(task.campaign, []), task.task_id)

    def remove(self, task_id: int, queue: str) -> None:
        """Removes a task's jobs at a queue; the heaps drop them at the next look."""
        if self._tasks.pop((task_id, queue), None) is not None:
            self._queues_of[task_id].discard(queue)
            if not self._queues_of[task_id]:
                del self._queues_of[task_id]

    def groups(self, queues: Iterable[str]) -> list[tuple[int, list[tuple[str, JobKind, Group]]]]:
        """Returns (priority, groups) of these queues, the highest priority first."""
        found: defaultdict[int, list[tuple[str, JobKind, Group]]] = defaultdict(list)
        for queue in queues:
            for (minus, kind), group in self._groups.get(queue, {}).items():
                found[-minus].append((queue, kind, group))
        return sorted(found.items(), key=lambda item: -item[0])

    def first(self, queue: str, key: tuple[int, JobKind], campaign: str) -> WaitingTask | None:
        """Returns the oldest task of a campaign in a group; None: none is left, and the campaign leaves the group."""
        group = self._groups[queue][key]
        heap = group[campaign]
        while heap:
            task = self._tasks.get((heap[0], queue))
            if task is not None and task.group == key and task.campaign == campaign:
                return task
            heapq.heappop(heap)
        del group[campaign]
        if not group:
            del self._groups[queue][key]
        return None

    def any_at(self, queue: str) -> bool:
        """Returns whether jobs may wait for a pilot of this queue."""
        return any(place in ("", queue) for _, place in self._tasks)

    def may_have(self, queue: str) -> bool:
        """Returns whether a look for a pilot of this queue may find jobs. Any thread may call."""
        return not self.complete or bool(self._changed or self._groups.get("") or self._groups.get(queue))

    def find(self, task_id: int, queue: str) -> WaitingTask | None:
        """Returns the waiting jobs of a task at a queue; None: none wait there."""
        return self._tasks.get((task_id, queue))

    # Shares.

    def loads_are_stale(self, now: float) -> bool:
        """Returns whether the cores at pilots should be counted anew; `now` in seconds since the epoch."""
        # If the clock was set back, they are stale too.
        return self._loads_of is None or not 0 <= now - self._loads_of < _LOADS_SECONDS

    def set_loads(self, now: float, loads: Mapping[str, int]) -> None:
        """Sets the number of cores that each campaign has at pilots."""
        self._loads, self._loads_of = Counter(loads), now

    def burden(self, campaign: str) -> tuple[int, int]:
        """Returns the sort key of a campaign, lowest first: cores at pilots, then the time of its last turn."""
        return self._loads[campaign], self._turns.get(campaign, 0)

    def serve(self, campaign: str, cores: int) -> None:
        """Notes that a campaign got jobs with this number of cores."""
        self._turn += 1
        self._turns.pop(campaign, None)  # so that the oldest turns come first
        self._turns[campaign] = self._turn
        if len(self._turns) > _TURNS:
            del self._turns[next(iter(self._turns))]
        self._loads[campaign] += cores
