"""What a job script does, the same for every batch system: modules, variables, setup lines, the way out, the pilot."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from hpo_pilot.batch.allocation_spec import AllocationSpec

_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")


def script_of(spec: AllocationSpec, directives: list[str]) -> str:
    """The whole script.

    Args:
        spec: what it is for.
        directives: its lines for the batch system, as they stand.
    """
    return "\n".join(["#!/bin/bash", *directives, "", *_body(spec), ""])


def _body(spec: AllocationSpec) -> Iterator[str]:
    site = spec.site
    # Some batch systems pass the environment on, others do not. What the site loads and sets comes after it, and counts
    # more.
    for name, value in spec.environment.items():
        if name == "PATH":
            yield f'[ "$PATH" = {shlex.quote(value)} ] || export PATH={shlex.quote(value)}"${{PATH:+:$PATH}}"'
        else:
            yield f"export {name}={shlex.quote(value)}"
    yield f"cd {shlex.quote(str(spec.folder))} || exit 1"
    if site.modules:
        # Batch shells are no login shells, and not everywhere do they get the function from where the job comes.
        yield "command -v module >/dev/null || . /etc/profile"
        yield from (f"module load {shlex.quote(module)} || exit 1" for module in site.modules)
    yield from (f"export {name}={shlex.quote(value)}" for name, value in site.environment.items())
    yield from site.setup
    if proxy := spec.proxy or site.network.proxy:
        yield from (f"export {name}={shlex.quote(proxy)}" for name in _PROXY_VARIABLES)
        # A proxy is no way to this machine itself.
        direct = shlex.quote(",".join(dict.fromkeys(("localhost", "127.0.0.1", *site.network.no_proxy))))
        yield from (f"export {name}={direct}" for name in ("no_proxy", "NO_PROXY"))
    # The pilot takes the shell's place: signals to the batch script are its own, and its end is the job's.
    yield f"exec {shlex.join(spec.command)}"
