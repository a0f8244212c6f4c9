"""Why a job ends here although its payload did not say so."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the transformation ends with; the payload's own status passes through.

    Up to EXECUTION_FAILED they are those of PanDA's analysis transformations (runGen, runHPO), which keep no codes for
    the rest.
    """

    BAD_ARGUMENTS = 10  #: the job parameters make no sense
    NO_INPUT = 11  #: an input file does not come
    BAD_SANDBOX = 143  #: the sandbox is no archive, or one that is refused
    NO_SANDBOX = 146  #: the sandbox does not come
    EXECUTION_FAILED = 150  #: the command cannot be started
    NO_CONTAINER_RUNTIME = 151  #: its image cannot be run here
    NO_OUTPUT = 152  #: a promised output is not there
    NO_SPACE = 153  #: the disk is full, or cannot be written


class TransformationFailure(Exception):
    """This attempt of a job failed.

    Attributes:
        code: the exit status that says why.
    """

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
