"""Which Python a payload runs in: hpo_pilot_runner.py loads this where the search names one, or a payload failed.

Standard library alone, Python 3.6 syntax.
"""

import os
import re
import shlex
import shutil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

FOLDER = "hpo_pilot_python"

#: `python` and `python3`: a link would not do, for a virtual environment is found by where its own Python is.
PROGRAM = '#!/bin/sh\nexec "$HPO_PILOT_PYTHON" "$@"\n'

#: Runs where the payload does, in its container and on its node, before its command.
USE = """\
HPO_PILOT_PYTHON=$(command -v %(python)s) || {
  echo "payload.python: there is no "%(python)s" on $(uname -n); PATH is $PATH" >&2
  exit 127
}
hpo_pilot_bin=${HPO_PILOT_PYTHON%%/*}
PATH=%(folder)s:$hpo_pilot_bin:$PATH
export HPO_PILOT_PYTHON PATH
unset PYTHONHOME VIRTUAL_ENV CONDA_PREFIX
if [ -f "$hpo_pilot_bin/../pyvenv.cfg" ]; then VIRTUAL_ENV=${hpo_pilot_bin%%/*}; export VIRTUAL_ENV; fi
if [ -d "$hpo_pilot_bin/../conda-meta" ]; then CONDA_PREFIX=${hpo_pilot_bin%%/*}; export CONDA_PREFIX; fi
"""

#: The word of a command that starts a Python.
WORD = re.compile(r"(?:^|[\s;&|('\"])((?:[\w.+/-]*/)?python[0-9.]*)(?=$|[\s;&|)'\"])")
#: What a payload says that lacks a module.
NO_MODULE = re.compile(r"ModuleNotFoundError|ImportError|No module named")
#: How a payload ends whose shell finds no program of a name.
NO_PROGRAM = "exit code 127"


def command_with(python: str, command: str, here: str) -> str:
    """The payload's command, in which `python` is the interpreter of that path or name."""
    folder = os.path.join(here, FOLDER)
    os.makedirs(folder, exist_ok=True)
    for name in ("python", "python3"):
        write(os.path.join(folder, name), PROGRAM)
        os.chmod(os.path.join(folder, name), 0o700)
    script = os.path.join(folder, "use.sh")
    write(script, USE % {"python": shlex.quote(python), "folder": shlex.quote(folder)})
    return ". %s\n%s" % (shlex.quote(script), command)


def write(path: str, text: str) -> None:
    """Write a file anew, unless it is there already: a rank of before may still run it."""
    if not os.path.exists(path):
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)


def which(payload: "Dict[str, Any]", command: str, said: str, is_inside: bool) -> str:
    """For a message: the Python of a payload that failed for want of something; empty where that was not why.

    Args:
        payload: its description.
        command: of the payload, as the search has it.
        said: the message so far and the end of its log.
        is_inside: whether the payload ran where this does, not in a container around it alone.
    """
    found = WORD.search(command)
    is_why = NO_MODULE.search(said) or (NO_PROGRAM in said and (found or payload.get("python")))
    if not is_why or not is_inside:
        return ""
    word = found.group(1) if found else "python"
    named = payload.get("python") if word in ("python", "python3") else None
    path = shutil.which(named or word)
    if path is None:
        return "there is no %s in PATH=%s" % (named or word, os.environ.get("PATH", ""))
    chosen = "payload.python" if named else "PATH; payload.python names another"
    return "%s is %s, by %s" % (word, path, chosen)
