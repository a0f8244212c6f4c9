"""Outputs and logs on their way to the storage, and what the server is told of them."""

from __future__ import annotations

import io
import logging
import os
import tarfile
import time
import uuid
import zlib
from pathlib import Path
from typing import Any

from hpo_pilot.pilot.execution import LOG_FILE
from hpo_pilot.pilot.failure import JobFailure, PilotErrorCode
from hpo_pilot.pilot.job import Job
from hpo_pilot.pilot.storage import Storage
from hpo_pilot.transformation.job_report import has_verdict
from hpo_pilot.transformation.outputs import find_outputs

log = logging.getLogger(__name__)

_LOG_TAIL = 1_000_000  # bytes


def store_outputs(storage: Storage, job: Job, folder: Path) -> dict[str, Any]:
    """Stores the outputs of a job that finished, and its log where the server wants one.

    Returns:
        What `job_output_report` says of them, by name in the storage.

    Raises:
        JobFailure: one is not there, although nothing allows that, or the storage does not take it.
    """
    outputs = job.arguments.outputs
    found, missing = find_outputs(str(folder), outputs)
    wanted = [file for file in missing if outputs[file] not in job.may_lack]
    if wanted and not has_verdict(str(folder)):  # a trial that failed says so itself
        raise JobFailure(PilotErrorCode.MISSING_OUTPUT, f"the output {wanted[0]} was not made")
    stored = {name: _keep(storage, name, Path(file)) for name, file in found.items()}
    if storage.wants_every_log and job.log_name:
        stored[job.log_name] = _keep(storage, job.log_name, _packed_log(folder))
    return stored


def store_log(storage: Storage, job: Job, folder: Path) -> dict[str, Any]:
    """Stores the end of the logs of a job that failed; a log that does not arrive is no reason to fail more.

    Returns:
        What `job_output_report` says of it, by name in the storage; empty: there is none.
    """
    if not job.log_name:
        return {}
    try:
        return {job.log_name: _keep(storage, job.log_name, _packed_log(folder))}
    except (JobFailure, OSError) as error:
        log.warning("the log of job %s is not stored: %s", job.panda_id, error)
        return {}


def _packed_log(folder: Path) -> bytes:
    """The ends of the payload's and the runner's output, as a tar archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("payload.log", LOG_FILE):
            path = folder / name
            if path.is_file():
                with path.open("rb") as file:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL))
                    content = file.read()
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(content), int(time.time())
                archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def _keep(storage: Storage, name: str, content: Path | bytes) -> dict[str, Any]:
    surl = storage.keep(name, content)
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    entry = {"guid": str(uuid.uuid4()), "fsize": size, "adler32": _adler32(content)}
    return entry | ({"surl": surl} if surl else {})


def _adler32(content: Path | bytes) -> str:
    value = 1
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            value = zlib.adler32(block, value)
    return f"{value:08x}"
