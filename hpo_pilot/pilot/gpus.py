"""The GPUs of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.errors import InputError

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


def visible(gpus: Sequence[Gpu]) -> dict[str, str]:
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
