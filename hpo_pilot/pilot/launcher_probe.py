"""Whether a launcher starts anything: one process that does nothing on each of some nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from hpo_pilot.errors import InputError
from hpo_pilot.launchers import Placement, site_variables
from hpo_pilot.pilot.site import Site
from hpo_pilot.transformation.environment import without_secrets

_SECONDS = 60.0
_MEMORY_MB = 64  # of each process
#: What srun says while it waits for cores that others have: then it has been answered.
_BUSY = "step creation temporarily disabled"
_SAID = 300  # characters of the launcher's words


def probe(site: Site, nodes: Sequence[str], allocation: Sequence[str]) -> str:
    """Why the launcher starts nothing there; empty: it does.

    Args:
        site: whose launcher it is.
        nodes: that have a core free each.
        allocation: all nodes.
    """
    launcher = site.launcher.per_node
    placement = Placement(
        nodes=tuple(nodes),
        gpu_kind=site.gpu_kind,
        environment=site_variables(os.environ),
        allocation=tuple(allocation),
        memory_mb=_MEMORY_MB,
    )
    try:
        done = subprocess.run(
            launcher.command(["true"], placement),
            env=launcher.environment(placement, without_secrets(os.environ)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, InputError) as error:
        return str(error)
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        return "" if _BUSY in text else f"{launcher.name} has started nothing for {_SECONDS:.0f} s"
    if done.returncode == 0:
        return ""
    words = " ".join((launcher.traces.failure(done.stdout) or done.stdout).split())
    return words[:_SAID] or f"{launcher.name} ended with status {done.returncode}"
