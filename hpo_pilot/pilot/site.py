"""What a pilot is told of its site: the profile as `hpo-pilot sites show NAME --json` prints it.

Profiles are checked where they are read from YAML, by pydantic, which pilots install without; here only what they need
is taken.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.launchers import Launcher, make_launcher
from hpo_pilot.launchers.plain import Plain
from hpo_pilot.transformation.container import RUNTIMES, Inside

#: How many GPUs in a row are close to each other on a node, where it is known: two of an MI250X, three on each socket
#: of Summit (the guides that deploy/sites/ names). Else they count as alike.
_CLOSE = {"MI250X": 2, "V100": 3}


@dataclass(frozen=True)
class EndWarning:
    """The batch system's word before the end; `seconds` before it."""

    number: signal.Signals
    seconds: float


@dataclass(frozen=True)
class Site:
    """One site.

    Attributes:
        launcher: starts the ranks of payloads.
        cores: of a node; 0: not said, as for the other numbers.
        threads_per_core: hardware threads of a core, as the batch system counts CPUs.
        memory_mb: of a node, in MB.
        gpus: of a node.
        gpu_kind: nvidia, amd or none.
        gpu_model: empty: not said.
        gpu_memory_mb: of one.
        close: how many GPUs in a row are close to each other.
        batch: slurm, lsf, pbs, flux or none.
        warning: the signal before the end of an allocation; None: there is none.
        job_steps: that an allocation can have side by side; 0: not limited.
        runtime: of containers, or auto.
        read_only: folders that payloads in containers see too.
        mpi: folders of the node's MPI, which takes the place of the image's.
        scratch: a folder on the node's own disk; empty: there is none.
        environment: variables of every job.
    """

    name: str = ""
    launcher: Launcher = field(default_factory=Plain)
    cores: int = 0
    threads_per_core: int = 1
    memory_mb: int = 0
    gpus: int = 0
    gpu_kind: str = "none"
    gpu_model: str = ""
    gpu_memory_mb: int = 0
    close: int = 1
    batch: str = "none"
    warning: EndWarning | None = None
    job_steps: int = 0
    runtime: str = "auto"
    read_only: tuple[str, ...] = ()
    mpi: tuple[str, ...] = ()
    scratch: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def inside(self, *, gpus: bool) -> Inside:
        """What payloads in containers find there; `gpus`: whether they have any."""
        read_only, mpi = ([Path(os.path.expandvars(name)) for name in names] for names in (self.read_only, self.mpi))
        kind = self.gpu_kind if gpus and self.gpu_kind != "none" else None if gpus else "none"
        return Inside(kind, read_only, mpi)


def load_site(path: Path) -> Site:
    """Reads a site's file.

    Raises:
        InputError: it cannot be read, or is none.
    """
    remedy = f"write it with: hpo-pilot sites show NAME --json > {path.name}"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or "launcher" not in data:
            raise ValueError("no site profile")
        return _site(data)
    except InputError as error:
        raise InputError(f"--site {path}: {error}") from error
    except OSError as error:
        raise InputError(f"--site {path}: {error.strerror or error}; {remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"--site {path} cannot be understood ({error}); {remedy}") from error


def _site(data: Mapping[str, Any]) -> Site:
    node, batch = _section(data, "node"), _section(data, "batch")
    gpus, containers = _section(node, "gpus"), _section(data, "containers")
    runtime, model = str(containers.get("runtime") or "auto"), str(gpus.get("model") or "")
    if runtime not in ("auto", *RUNTIMES):
        raise InputError(f"there is no container runtime {runtime!r}; there is auto, {', '.join(RUNTIMES)}")
    threads = int(node.get("threads_per_core") or 1)
    return Site(
        name=str(data.get("name") or ""),
        launcher=make_launcher(_section(data, "launcher"), threads),
        cores=int(node.get("cores") or 0),
        threads_per_core=threads,
        memory_mb=int(node.get("memory_mb") or 0),
        gpus=int(gpus.get("count") or 0),
        gpu_kind=str(gpus.get("kind") or "none"),
        gpu_model=model,
        gpu_memory_mb=int(gpus.get("memory_mb") or 0),
        close=next((close for name, close in _CLOSE.items() if name in model), 1),
        batch=str(batch.get("system") or "none"),
        warning=_warning(_section(batch, "warning")),
        job_steps=int(batch.get("job_steps") or 0),
        runtime=runtime,
        read_only=tuple(map(str, containers.get("read_only") or ())),
        mpi=tuple(map(str, containers.get("mpi") or ())),
        scratch=str(_section(data, "scratch").get("node") or ""),
        environment={str(name): str(value) for name, value in _section(data, "environment").items()},
    )


def _section(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = data.get(name) or {}
    if not isinstance(found, dict):
        raise ValueError(f"{name} is no mapping")
    return found


def _warning(said: Mapping[str, Any]) -> EndWarning | None:
    if not said:
        return None
    name = f"SIG{said['signal']}"
    if name not in signal.Signals.__members__:
        raise InputError(f"there is no signal {said['signal']!r}")
    return EndWarning(signal.Signals[name], float(said.get("seconds") or 0))
