"""What the jobs of a task need, as brokerage looks at it; kept with the task as one line of text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hpo_pilot.server.brokerage.hardware import HardwareError, HardwareWish, parse_architecture

if TYPE_CHECKING:
    from hpo_pilot.server.taskbuffer.task_parameters import TaskParameters

_CAMPAIGN_LIMIT = 250
_UNITS = {"": 1, "MB": 1, "GB": 1024, "TB": 1024 * 1024}


@dataclass(frozen=True)
class Needs:
    """Needs of one job. Zero and empty: none, or not known.

    Attributes:
        cores: on each node, like memory and GPUs.
        seconds: walltime.
        payload_seconds: after which the payload is ended, which allocations are shared out by; 0: not said.
        gpus: how many.
        architecture: prun's words for the hardware.
        container: whether it runs in one.
        nodes: how many at once; more than one can only be had in a batch allocation.
    """

    cores: int = 1
    ram_mb: int = 0
    seconds: int = 0
    disk_mb: int = 0
    gpus: int = 0
    architecture: str = ""
    container: bool = False
    nodes: int = 1
    payload_seconds: int = 0

    @property
    def all_cores(self) -> int:
        """Cores on all its nodes."""
        return self.cores * self.nodes

    @property
    def hardware(self) -> HardwareWish:
        """The hardware asked for."""
        return parse_architecture(self.architecture)

    def __str__(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=4096)
def parse_needs(text: str) -> Needs:
    """The needs that `Needs.__str__` wrote."""
    return Needs(**json.loads(text))


def needs_of(parameters: TaskParameters) -> Needs:
    """The needs of a task's jobs.

    Raises:
        HardwareError: they make no sense.
    """
    gpus = _whole(parameters.params, "nGPU")
    wish = parse_architecture(parameters.architecture)
    return Needs(
        cores=parameters.core_count,
        ram_mb=parameters.ram_mb,
        seconds=parameters.max_walltime,
        disk_mb=_disk(parameters.params),
        gpus=gpus or (1 if wish.gpu is not None else 0),
        architecture=parameters.architecture,
        container=bool(parameters.container),
        nodes=_whole(parameters.params, "hpoNodes") or 1,
        payload_seconds=_whole(parameters.params, "hpoPayloadSeconds"),
    )


def _whole(params: Mapping[str, Any], name: str) -> int:
    value = params.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise HardwareError(f"{name} must be a whole number, not {value!r}")
    return value


def _disk(params: Mapping[str, Any]) -> int:
    unit = str(params.get("workDiskUnit") or "")
    if unit not in _UNITS:
        raise HardwareError(f"workDiskUnit must be one of {', '.join(filter(None, _UNITS))}, not {unit!r}")
    return _whole(params, "workDiskCount") * _UNITS[unit]


def campaign_of(params: Mapping[str, Any], user_name: str, task_name: str) -> str:
    """Between whom shares are fair: a search, or for tasks of others the task."""
    named = params.get("campaign")
    key = f"{user_name}/{named}" if isinstance(named, str) and named else f"{user_name}/task/{task_name}"
    return key[:_CAMPAIGN_LIMIT]
