"""A job's folder between the unpacking of its sandbox and the start of its command."""

import os
from typing import List, Optional

from hpo_pilot.transformation.arguments import Arguments
from hpo_pilot.transformation.command import make_executable, payload_argv, shell_command
from hpo_pilot.transformation.inputs import link_inputs
from hpo_pilot.transformation.stage_in import StageIn, from_environment


class Prepared:
    """A job that may start.

    Attributes:
        folder: where the command runs.
        argv: the command, as a program to be started.
        script: the command, as lines for a shell.
        elsewhere: what its inputs link to outside the job's folder.
    """

    def __init__(self, folder: str, argv: List[str], script: str, elsewhere: List[str]) -> None:
        self.folder, self.argv, self.script, self.elsewhere = folder, argv, script, elsewhere


def run_folder(arguments: Arguments, work: str) -> str:
    """Where the command runs."""
    return os.path.normpath(os.path.join(work, arguments.run_dir))


def prepare(arguments: Arguments, here: str, work: str, stage_in: Optional[StageIn] = None) -> Prepared:
    """Makes a job ready.

    Args:
        arguments: of the job.
        here: where the pilot put its input files.
        work: the folder with its sandbox, unpacked.
        stage_in: brings what the payload's own document names under `inputs`; None: as the environment says.

    Raises:
        TransformationFailure: an input is missing.
        OSError: the disk.
    """
    folder = run_folder(arguments, work)
    os.makedirs(folder, exist_ok=True)
    replacements = link_inputs(arguments, here, folder)
    brought = [*arguments.inputs, *(name for names in arguments.input_map.values() for name in names)]
    elsewhere = (stage_in or from_environment(os.environ)).bring(folder, list(dict.fromkeys(brought)))
    make_executable(arguments.command, folder)
    argv, script = payload_argv(arguments, replacements), shell_command(arguments, replacements)
    return Prepared(folder, argv, script, elsewhere)
