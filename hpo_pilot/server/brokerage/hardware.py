"""The hardware that a task asks for, in the words of prun's ``--architecture``, and whether a queue or pilot has it.

Both formats of PanDA (`pandaserver/taskbuffer/JediTaskSpec.py` of panda-server 1.0.4) are read:
``sw_platform<@base_platform><#cpu><&gpu>`` with cpu ``architecture<-vendor<-instruction set>>`` or several of those as
``(a|b)``, and gpu ``vendor<-model><:key operator value>…``; or a JSON object with ``base_platform``, ``cpu_specs``,
``gpu_spec``. GPUs match as there (`pandaserver/srvcore/hardware_matching.py`): one of them has the vendor, model and
generation, all have what is a minimum. A CPU or platform that a queue does not tell is taken to fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hpo_pilot.errors import InputError

ANY = "*"
_ATTRIBUTES = {
    "cuda": "version",
    "uarch": "microarchitecture",
    "driver": "driver_version",
    "model": "model",
    "vram": "vram",
}
_ATTRIBUTE = re.compile(r"(\w+)(>=|<=|!=|==|>|<|=)(.*)")
_COMPARED = re.compile(r"(>=|<=|!=|==|>|<)?\s*([0-9][0-9.]*)$")
#: Model patterns come from users: few repetitions, none of a group, so that matching takes no time to speak of.
_HARMLESS = re.compile(r"^[\w .|()\-/+*^$]{1,120}$")
_REPEATED_GROUP = re.compile(r"\)[*+?{]")
_MOST_REPETITIONS = 3


class HardwareError(InputError):
    """The wish makes no sense; the message says where."""


@dataclass(frozen=True)
class CpuWish:
    """A CPU that would do; `ANY` for what does not matter."""

    architecture: str = ANY
    vendor: str = ANY
    instructions: str = ANY


@dataclass(frozen=True)
class GpuWish:
    """A GPU that would do.

    Attributes:
        vendor: a pattern; `ANY`: no matter.
        model: a pattern; `ANY`: no matter.
        not_model: whether `model` is what it must not be.
        generations: microarchitectures, one of which it must have; empty: no matter.
        minima: (what of the GPU, operator, version), all of which must hold.
    """

    vendor: str = ANY
    model: str = ANY
    not_model: bool = False
    generations: tuple[str, ...] = ()
    minima: tuple[tuple[str, str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class HardwareWish:
    """What a task's jobs ask for.

    Attributes:
        platform: operating system; empty: no matter.
        cpus: one of these; empty: no matter.
        gpu: None: no GPU is asked for.
    """

    platform: str = ""
    cpus: tuple[CpuWish, ...] = ()
    gpu: GpuWish | None = None


@dataclass(frozen=True)
class GpuOffer:
    """GPUs of one kind that a queue or a pilot has; empty: not said."""

    count: int
    vendor: str = ""
    model: str = ""
    generation: str = ""
    memory_mb: str = ""
    framework_version: str = ""
    driver_version: str = ""


@lru_cache(maxsize=1024)
def parse_architecture(text: str) -> HardwareWish:
    """The wish behind a task's ``architecture``.

    Raises:
        HardwareError: it makes no sense.
    """
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise HardwareError(f"architecture {text!r} is no JSON: {error}") from error
        if "encoded_platform" not in document:
            return _from_document(document)
        text = str(document["encoded_platform"])
    platform = re.search(r"@([^#&]*)", text)
    gpu = re.search(r"&([^\^@#]*)", text)
    return HardwareWish(platform[1] if platform else "", _cpus(text), _gpu(gpu[1]) if gpu and gpu[1] else None)


def _cpus(text: str) -> tuple[CpuWish, ...]:
    if "#" not in text:
        architecture = "" if re.match(r"[\^@&]", text) else re.split("[-&@]", text, maxsplit=1)[0]
        return (CpuWish(architecture),) if architecture else ()
    match = re.search(r"#([^\^@&]*)", text)
    wanted = match[1].removeprefix("(").removesuffix(")") if match else ""
    found = []
    for one in filter(None, wanted.split("|")):
        architecture, vendor, instructions = (*one.split("-", 2), ANY, ANY)[:3]
        found.append(CpuWish(architecture or ANY, vendor or ANY, instructions or ANY))
    return tuple(found)


def _gpu(text: str) -> GpuWish:
    first, *attributes = text.split(":")
    vendor, _, model = first.partition("-")
    wish: dict[str, Any] = {"vendor": vendor or ANY, "model": model or ANY}
    for attribute in attributes:
        match = _ATTRIBUTE.match(attribute)
        if match is None or match[1] not in _ATTRIBUTES:
            raise HardwareError(
                f"architecture: GPU attribute {attribute!r}; expected {', '.join(_ATTRIBUTES)} with an operator"
            )
        name, operator, value = _ATTRIBUTES[match[1]], match[2], match[3]
        if name == "model":
            wish["model"] = {"pattern": value, "excl": True} if operator == "!=" else value
        elif name == "microarchitecture":
            wish["microarchitecture"] = value
        else:
            wish[name] = ("==" if operator == "=" else operator) + value
    return _gpu_from(wish)


def _from_document(document: Any) -> HardwareWish:
    if not isinstance(document, dict):
        raise HardwareError("architecture: a JSON object is expected")
    cpus = document.get("cpu_specs") or []
    gpu = document.get("gpu_spec")
    if not isinstance(cpus, list) or not all(isinstance(one, dict) for one in cpus):
        raise HardwareError("architecture: cpu_specs must be a list of objects")
    if gpu is not None and not isinstance(gpu, dict):
        raise HardwareError("architecture: gpu_spec must be an object")
    wishes = tuple(CpuWish(*(str(one.get(key) or ANY) for key in ("arch", "vendor", "instr"))) for one in cpus)
    return HardwareWish(str(document.get("base_platform") or ""), wishes, None if gpu is None else _gpu_from(gpu))


def _gpu_from(wish: Mapping[str, Any]) -> GpuWish:
    model: Any = wish.get("model") or ANY
    excluded = False
    if isinstance(model, dict):
        model, excluded = model.get("pattern") or ANY, bool(model.get("excl"))
    generations = wish.get("microarchitecture") or ()
    minima = []
    for name in ("vram", "version", "driver_version"):
        if name in wish:
            match = _COMPARED.match(str(wish[name]).strip())
            if match is None:
                raise HardwareError(f"architecture: {name} of the GPU: {wish[name]!r} is no version or size")
            minima.append((name, match[1] or "==", version(match[2])))
    vendor = str(wish.get("vendor") or ANY)
    for pattern in (vendor, str(model)):
        _check_pattern(pattern)
    named = (generations,) if isinstance(generations, str) else tuple(str(one) for one in generations)
    return GpuWish(vendor, str(model), excluded, named, tuple(minima))


def _check_pattern(pattern: str) -> None:
    repetitions = sum(pattern.count(sign) for sign in "*+")
    if pattern == ANY:
        return
    harmless = _HARMLESS.match(pattern) and not _REPEATED_GROUP.search(pattern) and repetitions <= _MOST_REPETITIONS
    try:
        re.compile(pattern)
    except re.error as error:
        raise HardwareError(f"architecture: pattern {pattern!r}: {error}") from error
    if not harmless:
        raise HardwareError(f"architecture: pattern {pattern!r} is too intricate: name the GPU, with .* where need be")


def version(text: str) -> tuple[int, ...]:
    """``12.4`` as numbers that compare; zeros at the end do not count."""
    numbers = [int(part) for part in re.findall(r"\d+", text)[:8]]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def cpu_fits(wishes: tuple[CpuWish, ...], offer: str) -> bool:
    """Whether the CPU ``architecture<-vendor<-instruction set>>`` is one of those wished for."""
    architecture, vendor, instructions = (*offer.split("-", 2), "", "")[:3]
    return not wishes or any(
        _same(wish.architecture, architecture) and _same(wish.vendor, vendor) and _same(wish.instructions, instructions)
        for wish in wishes
    )


def _same(wish: str, offer: str) -> bool:
    return wish == ANY or not offer or wish.lower() == offer.lower()


@lru_cache(maxsize=4096)
def gpus_fit(wish: GpuWish, count: int, offers: tuple[GpuOffer, ...]) -> bool:
    """Whether these GPUs are at least `count`, and such as is wished for."""
    if sum(offer.count for offer in offers) < count or not offers:
        return False
    if wish.vendor != ANY and not any(re.match(wish.vendor, offer.vendor, re.IGNORECASE) for offer in offers):
        return False
    if wish.model != ANY:
        found = any(re.match(wish.model, offer.model, re.IGNORECASE) for offer in offers if offer.model)
        if found == wish.not_model:
            return False
    if wish.generations and not any(offer.generation in wish.generations for offer in offers):
        return False
    said = {"vram": "memory_mb", "version": "framework_version", "driver_version": "driver_version"}
    return all(
        getattr(offer, said[name]) and _holds(version(getattr(offer, said[name])), operator, least)
        for name, operator, least in wish.minima
        for offer in offers
    )


def _holds(value: tuple[int, ...], operator: str, other: tuple[int, ...]) -> bool:
    return {
        "==": value == other,
        "!=": value != other,
        ">=": value >= other,
        "<=": value <= other,
        ">": value > other,
        "<": value < other,
    }[operator]


def offered_gpus(target_architecture: Mapping[str, Any]) -> tuple[GpuOffer, ...] | None:
    """The GPUs that a pilot says it has, as ``pilot/acquire_jobs`` has them; None: it does not say.

    Raises:
        HardwareError: they make no sense.
    """
    gpus = target_architecture.get("gpus")
    if gpus is None:
        return None
    if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
        raise HardwareError("target_architecture: gpus must be a list of objects")
    return tuple(
        GpuOffer(
            count=gpu["count"] if isinstance(gpu.get("count"), int) and 0 < gpu["count"] < 10_000 else 1,
            vendor=str(gpu.get("vendor") or "")[:128],
            model=str(gpu.get("model") or "")[:128],
            generation=str(gpu.get("architecture") or "")[:128],
            memory_mb=str(gpu.get("vram") or "")[:32],
            framework_version=str(gpu.get("framework_version") or "")[:32],
            driver_version=str(gpu.get("driver_version") or "")[:32],
        )
        for gpu in gpus
    )
