"""Container runtimes of other packages. The transformation, which is shipped as one file, has only those of its own."""

from __future__ import annotations

from hpo_pilot.errors import InputError
from hpo_pilot.plugins import find_plugin
from hpo_pilot.transformation.container import RUNTIMES, ContainerRuntime


def know_runtime(name: str) -> None:
    """Makes a runtime known to `choose_runtime` in this process: `auto`, one of `RUNTIMES`, or one of another package.

    Raises:
        InputError: there is no such runtime, or that of another package cannot be used.
    """
    if name == "auto" or name in RUNTIMES:
        return
    kind = find_plugin("runtimes", name, ContainerRuntime)
    if kind is None:
        raise InputError(f"there is no container runtime {name!r}; there is auto, {', '.join(RUNTIMES)}")
    RUNTIMES[name] = kind()
