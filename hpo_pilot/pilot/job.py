"""A job as the server hands it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.transformation.arguments import Arguments, parse_text


@dataclass(frozen=True)
class Job:
    """One attempt of a job.

    Attributes:
        arguments: what it is to do.
        log_name: of the log in the storage; empty: none wanted.
        container: image, file or unpacked root; empty: none.
        memory_mb: what it may use; 0: no limit.
        walltime: seconds that it may run; 0: no limit.
        wants_gpu: whether its task asks for a GPU.
        may_lack: outputs, by their names in the storage, that need not be made.
        server_stores: whether the server keeps outputs and logs, as the embedded one does.
        points: what opens the job's hyper-parameter points at the server to its payload; empty: nothing does.
    """

    panda_id: int
    attempt: int
    task_id: int
    name: str
    arguments: Arguments
    log_name: str
    container: str
    memory_mb: int
    walltime: int
    cores: int
    wants_gpu: bool = False
    may_lack: frozenset[str] = frozenset()
    server_stores: bool = False
    points: str = ""


def identity(data: Mapping[str, Any]) -> tuple[int, int]:
    """PandaID and attempt number.

    Raises:
        InputError: the server's answer has none.
    """
    try:
        return int(data["PandaID"]), int(data.get("attemptNr") or 0)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the server handed out a job without a usable PandaID: {error!r}") from error


def parse_job(data: Mapping[str, Any]) -> Job:
    """Reads the server's dictionary (`jobdispatcher/Protocol.py` of panda-server 1.0.4).

    Raises:
        TransformationFailure: its parameters make no sense.
        InputError: it has not even an identity.
    """
    panda_id, attempt = identity(data)
    arguments = parse_text(str(data.get("jobPars") or ""))
    return Job(
        panda_id=panda_id,
        attempt=attempt,
        task_id=_number(data.get("taskID")),
        name=str(data.get("jobName") or ""),
        arguments=arguments,
        log_name=_text(data.get("logFile")),
        container=_text(data.get("container_name")) or arguments.image,
        memory_mb=_number(data.get("minRamCount")),
        walltime=_number(data.get("maxWalltime")),
        cores=needed_cores(data),
        wants_gpu="&" in _text(data.get("cmtConfig")),  # as prun's --architecture has it
        may_lack=frozenset(_text(data.get("allowNoOutput")).split(",")) - {""},
        server_stores=data.get("hpoPilotStorage") is True,
        points=_text(data.get("hpoPilotPoints")),
    )


def needed_cores(data: Mapping[str, Any]) -> int:
    """The cores that a job takes."""
    return max(1, _number(data.get("coreCount")))


def _text(value: object) -> str:
    return "" if value in (None, "NULL") else str(value)


def _number(value: object) -> int:
    try:
        return max(0, int(str(value)))
    except ValueError:  # PanDA's empty values: None, "NULL", ""
        return 0
