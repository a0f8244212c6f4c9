"""The command of a job: as words where it is ours, through a shell where its owner wrote it for one."""

import os
import re
from typing import List, Mapping

from hpo_pilot.transformation.arguments import Arguments, split_words

#: How our own tasks call the payload runner. They need no shell, and then none stands between it and our signals.
_RUNNER = ["python3", "-I", "-S", "hpo_pilot_runner.py"]
_SHELL_SIGNS = frozenset("\"'\\$`;&|<>()[]{}*?!#~\n")

#: Panda-client lets users call their scripts by bare names.
_PATH = 'PATH=".:$PATH"; export PATH; '


def payload_argv(arguments: Arguments, replacements: Mapping[str, str]) -> List[str]:
    """The command with its names filled in.

    Args:
        arguments: of the job.
        replacements: what stands for `%NAME` in the command; see `inputs.link_inputs`.
    """
    command = arguments.command
    if not _SHELL_SIGNS & set(command) and split_words(command)[:4] == _RUNNER:
        return split_words(command)
    return ["/bin/sh", "-c", _PATH + shell_command(arguments, replacements)]


def shell_command(arguments: Arguments, replacements: Mapping[str, str]) -> str:
    """The command as the shell gets it."""
    command = arguments.command
    for name, value in replacements.items():
        # `%IN` must leave `%IN2` and `%INDS` alone.
        command = _replace("%" + re.escape(name) + r"(?!\w)", value, command)
    if arguments.real_names:
        for file, name in arguments.outputs.items():
            command = _replace(r"(?<![\w./-])" + re.escape(file) + r"(?![\w./-])", name, command)
    return command


def _replace(pattern: str, value: str, text: str) -> str:
    return re.sub(pattern, lambda _: value, text)  # not as a template: names may have backslashes


def make_executable(command: str, folder: str) -> None:
    """Users forget it: the script that is called first may be run."""
    name = re.match(r"(?:\./)?([\w.+-]+)(?:\s|$)", command)
    path = os.path.join(folder, name.group(1)) if name else ""
    if os.path.isfile(path) and not os.path.islink(path):
        os.chmod(path, os.stat(path).st_mode | 0o100)
