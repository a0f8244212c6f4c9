"""Why a job failed at the pilot, in the codes that PanDA's pilots use."""

from __future__ import annotations

from enum import IntEnum

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.transformation.failure import ExitCode, TransformationFailure


class PilotErrorCode(IntEnum):
    """From `pilot/common/errorcodes.py` of panda-pilot 3.7.0.36."""

    NO_LOCAL_SPACE = 1098  #: the disk is full
    STAGE_IN_FAILED = 1099  #: the sandbox does not come, or is not what it should be
    STAGE_OUT_FAILED = 1137  #: an output cannot be stored
    PANDA_KILL = 1144  #: the server said `tobekilled`
    MISSING_OUTPUT = 1165  #: an output that the job promised is not there
    SIGTERM = 1201  #: the pilot was told to stop
    REACHED_MAX_TIME = 1213  #: over its walltime, and the runner did not end it
    PAYLOAD_EXECUTION_FAILURE = 1305  #: it cannot be started, or the runner itself failed
    INTERNAL_PILOT_PROBLEM = 1319  #: a defect of this pilot
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
    """This attempt of a job failed; the pilot goes on."""

    #: Whether the job goes back to the queue without counting the attempt, where the server can do that.
    is_given_back = False

    def __init__(self, code: PilotErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code

    @classmethod
    def of(cls, failure: TransformationFailure) -> JobFailure:
        """What the transformation found wrong, in a pilot's codes."""
        return cls(_OF_TRANSFORMATION.get(failure.code, PilotErrorCode.PAYLOAD_EXECUTION_FAILURE), str(failure))


class GivenBack(JobFailure):
    """The pilot has no time or no place for the job, which may as well run elsewhere."""

    is_given_back = True


class LauncherAway(GivenBack):
    """The launcher starts nothing, whatever the job: there is nothing wrong with it."""


class CutOff(JobFailure):
    """The allocation came to its end under the job. It is given back if this attempt has kept a checkpoint."""


class NodeLost(JobFailure):
    """A node of the job is of no use any more."""
