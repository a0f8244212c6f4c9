"""Outputs and logs on their way to the server's storage."""

from __future__ import annotations

import gzip
import logging
import os
import time
import uuid
import zlib
from pathlib import Path
from typing import Any

from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.pilot.client import Backoff, JobServer
from hpo_pilot.pilot.execution import LOG_FILE
from hpo_pilot.pilot.failure import JobFailure, PilotErrorCode
from hpo_pilot.pilot.job import Job
from hpo_pilot.transformation.job_report import has_verdict
from hpo_pilot.transformation.outputs import find_outputs

log = logging.getLogger(__name__)

_LOG_TAIL = 1_000_000  # bytes
_PATIENCE = 300.0  # seconds that an upload is tried again


def upload_outputs(server: JobServer, job: Job, folder: Path) -> dict[str, Any]:
    """Uploads the outputs of a job.

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
    stored = {}
    for name, path in ((name, Path(file)) for name, file in found.items()):
        _upload(server, name, path)
        stored[name] = {"guid": str(uuid.uuid4()), "fsize": path.stat().st_size, "adler32": _adler32(path)}
    return stored


def upload_log(server: JobServer, job: Job, folder: Path) -> None:
    """Uploads the end of the logs of a job that failed; a log that does not arrive is no reason to fail more."""
    if not job.log_name:
        return
    parts = []
    for name in ("payload.log", LOG_FILE):
        path = folder / name
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL))
                parts += [f"--- {name} ---\n".encode(), file.read()]
    try:
        if parts:
            server.upload(job.log_name, gzip.compress(b"".join(parts)[-_LOG_TAIL:]))
    except HpoPilotError as error:
        log.warning("the log of job %s is not stored: %s", job.panda_id, error)


def _upload(server: JobServer, name: str, path: Path) -> None:
    backoff, give_up = Backoff(), time.monotonic() + _PATIENCE
    while True:
        try:
            server.upload(name, path)
            return
        except TryAgainError as error:
            if time.monotonic() > give_up:
                raise JobFailure(PilotErrorCode.STAGE_OUT_FAILED, f"{name}: {error}") from error
            time.sleep(backoff.seconds())
        except (HpoPilotError, OSError) as error:
            raise JobFailure(PilotErrorCode.STAGE_OUT_FAILED, f"{name}: {error}") from error


def _adler32(path: Path) -> str:
    value = 1
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            value = zlib.adler32(block, value)
    return f"{value:08x}"
