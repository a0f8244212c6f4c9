"""A job as the server hands it out, and the reasons why it can fail at the pilot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from hpo_pilot.errors import HpoPilotError, InputError
from hpo_pilot.transformation.job import Arguments, ExitCode, TransformationFailure, parse_arguments_text

#: PandaID and attempt number.
Identity = tuple[int, int]


@dataclass(frozen=True)
class Job:
    """One attempt of a job.

    Attributes:
        arguments: its parsed parameters.
        log_name: name of the log in the storage; empty: no log is stored.
        container: image, file or unpacked root; empty: none.
        memory_mb: memory limit; 0: no limit.
        walltime: time limit in seconds; 0: no limit.
        wants_gpu: whether its task asks for a GPU.
        may_lack: optional outputs, by their names in the storage.
        server_stores: whether the server stores outputs and logs, as the embedded one does.
        points: key with which the payload reads the job's hyper-parameter points at the server; empty: no access.
        user: owner of its task.
    """

    panda_id: int
    attempt: int
    task_id: int
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
    user: str = ""

    @property
    def identity(self) -> Identity:
        """PandaID and attempt number."""
        return self.panda_id, self.attempt


def job_identity(data: Mapping[str, Any]) -> Identity:
    """Returns the PandaID and the attempt number.

    Raises:
        InputError: the server's answer has no usable PandaID.
    """
    try:
        return int(data["PandaID"]), int(data.get("attemptNr") or 0)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the server handed out a job without a usable PandaID: {error!r}") from error


def parse_job(data: Mapping[str, Any]) -> Job:
    """Reads the server's dictionary (`jobdispatcher/Protocol.py` of panda-server 1.0.4).

    Raises:
        TransformationFailure: its parameters are invalid.
        InputError: it has no usable PandaID.
    """
    panda_id, attempt = job_identity(data)
    arguments = parse_arguments_text(str(data.get("jobPars") or ""))
    return Job(
        panda_id=panda_id,
        attempt=attempt,
        task_id=_number(data.get("taskID")),
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
        user=_text(data.get("prodUserID")),
    )


def needed_cores(data: Mapping[str, Any]) -> int:
    """Returns the number of cores of a job, at least 1."""
    return max(1, _number(data.get("coreCount")))


def _text(value: object) -> str:
    return "" if value in (None, "NULL") else str(value)


def _number(value: object) -> int:
    try:
        return max(0, int(str(value)))
    except ValueError:  # PanDA's empty values: None, "NULL", ""
        return 0


class PilotErrorCode(IntEnum):
    """From `pilot/common/errorcodes.py` of panda-pilot 3.7.0.36."""

    NO_LOCAL_SPACE = 1098  #: the disk is full
    STAGE_IN_FAILED = 1099  #: the sandbox cannot be fetched, or is invalid
    STAGE_OUT_FAILED = 1137  #: an output cannot be stored
    PANDA_KILL = 1144  #: the server said `tobekilled`
    MISSING_OUTPUT = 1165  #: a promised output is missing
    SIGTERM = 1201  #: the pilot was told to stop
    REACHED_MAX_TIME = 1213  #: over its walltime, and the runner did not end it
    PAYLOAD_EXECUTION_FAILURE = 1305  #: the command cannot be started, or the runner itself failed
    NO_CONTAINER_RUNTIME = 1325  #: its image cannot be run here


_OF_TRANSFORMATION = {
    ExitCode.NO_INPUT: PilotErrorCode.STAGE_IN_FAILED,
    ExitCode.BAD_SANDBOX: PilotErrorCode.STAGE_IN_FAILED,
    ExitCode.NO_SANDBOX: PilotErrorCode.STAGE_IN_FAILED,
    ExitCode.NO_CONTAINER_RUNTIME: PilotErrorCode.NO_CONTAINER_RUNTIME,
    ExitCode.NO_OUTPUT: PilotErrorCode.MISSING_OUTPUT,
    ExitCode.NO_SPACE: PilotErrorCode.NO_LOCAL_SPACE,
}


class JobFailure(HpoPilotError):
    """This attempt of a job failed; the pilot continues."""

    #: The job goes back to the queue without counting the attempt, if the server supports that.
    is_given_back = False

    #: The error code for the server, unless another one is given.
    code = PilotErrorCode.PAYLOAD_EXECUTION_FAILURE

    def __init__(self, message: str, code: PilotErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = code or self.code

    @classmethod
    def of(cls, failure: TransformationFailure) -> JobFailure:
        """Returns the failure with the pilot's error code for a failure of the transformation."""
        return cls(str(failure), _OF_TRANSFORMATION.get(failure.code))


class GivenBack(JobFailure):
    """The pilot has no time or no resources for the job; it can run elsewhere."""

    code = PilotErrorCode.SIGTERM
    is_given_back = True


class LauncherAway(GivenBack):
    """The launcher starts no job at all, so the job is not at fault."""

    code = PilotErrorCode.PAYLOAD_EXECUTION_FAILURE


class LauncherMissing(LauncherAway):
    """The launcher that the job needs is not installed here: this pilot takes no jobs of its search for a while."""


class CutOff(JobFailure):
    """The allocation ended while the job ran. The job is given back if this attempt has kept a checkpoint."""

    code = PilotErrorCode.SIGTERM


class CutLate(CutOff):
    """As `CutOff`, of a job that began in the second half of the allocation: the next one may give it all its time."""

    is_given_back = True


class NodeLost(JobFailure):
    """The job lost a node."""
