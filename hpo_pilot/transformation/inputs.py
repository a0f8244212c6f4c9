"""Input files that a pilot put beside the job, where the command finds them."""

import json
import os
from typing import Dict

from hpo_pilot.transformation.arguments import Arguments
from hpo_pilot.transformation.failure import ExitCode, TransformationFailure


def link_inputs(arguments: Arguments, source: str, folder: str) -> Dict[str, str]:
    """Links the job's inputs into the folder where the command runs, and writes their lists.

    Args:
        arguments: of the job.
        source: where the pilot put them.
        folder: where the command runs.

    Returns:
        What stands for `%NAME` in the command: names of files, separated by commas.

    Raises:
        TransformationFailure: one is missing.
    """
    streams = dict(arguments.input_map) or {"IN": arguments.inputs} if arguments.inputs or arguments.input_map else {}
    found = {}
    for name in set(arguments.inputs).union(*streams.values()):
        path, link = os.path.join(source, name), os.path.join(folder, name)
        if os.path.basename(name) != name or name in (".", "..") or not os.path.exists(path):
            raise TransformationFailure(ExitCode.NO_INPUT, "the input file %s is not there" % name)
        if not os.path.lexists(link):
            os.symlink(os.path.relpath(path, os.path.realpath(folder)), link)
    for stream, names in streams.items():
        found[stream] = ",".join(names)
        if stream in arguments.input_lists:
            where = os.path.join(folder, os.path.basename(arguments.input_lists[stream]))
            with open(where, "w") as file:
                json.dump(list(names), file)
    return found
