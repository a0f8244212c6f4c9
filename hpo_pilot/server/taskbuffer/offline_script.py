"""A shell script that runs a job by hand, as far as its server has what it needs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from hpo_pilot.server.taskbuffer.known_tasks import KnownTask


def offline_script(known: KnownTask, job: Mapping[str, Any], server: str) -> str:
    """The script.

    Args:
        known: the job's task.
        job: the job's description.
        server: scheme://host:port of this server.
    """
    folder = f"job_{job['PandaID']}"
    lines = [
        "#!/bin/bash",
        f"# Runs PandaID {job['PandaID']} of task {known.task_id} by hand, in the folder {folder}.",
        "# The server's files want a token: export PANDA_AUTH_ID_TOKEN=... first.",
        "set -e",
        f"mkdir {folder}",
        f"cd {folder}",
    ]
    fetch = 'curl --fail --silent --show-error --location --header "Authorization: Bearer $PANDA_AUTH_ID_TOKEN"'
    sandbox = known.parameters.sandbox
    if sandbox is not None:
        lines.append(f"{fetch} --output {shlex.quote(sandbox)} {shlex.quote(f'{server}/cache/{sandbox}')}")
    transformation = str(job["transformation"] or "")
    if "://" in transformation:
        name = shlex.quote(transformation.rsplit("/", 1)[-1])
        lines += [f"curl --fail --silent --show-error --location --output {name} {shlex.quote(transformation)}"]
        lines += [f"chmod +x {name}", f"./{name} {job['jobParameters']}"]
    else:
        # A program of the machine's, or the transformation of hpo-pilot.
        lines.append(f"{shlex.quote(transformation) if transformation else ''} {job['jobParameters']}".strip())
    return "\n".join(lines) + "\n"
