"""Selects the Python of a payload and names it in error messages.

hpo_pilot_runner.py loads this file if the search names a Python or the payload failed. Standard library only, Python
3.6 syntax.
"""

import os
import re
import shlex
import shutil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

FOLDER = "hpo_pilot_python"

#: `python` and `python3`. A link would not work: Python finds its virtual environment by the path of its executable.
PROGRAM = '#!/bin/sh\nexec "$HPO_PILOT_PYTHON" "$@"\n'

#: Runs before the payload's command, in its container and on its node.
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

#: The word in a command that starts Python.
WORD = re.compile(r"(?:^|[\s;&|('\"])((?:[\w.+/-]*/)?python[0-9.]*)(?=$|[\s;&|)'\"])")
#: Messages about a missing module.
NO_MODULE = re.compile(r"ModuleNotFoundError|ImportError|No module named")
#: The exit code of a shell that finds no program of that name.
NO_PROGRAM = "exit code 127"


def command_with(python: str, command: str, here: str) -> str:
    """Return the payload's command, with `python` set to the interpreter of this path or name."""
    folder = os.path.join(here, FOLDER)
    os.makedirs(folder, exist_ok=True)
    for name in ("python", "python3"):
        write(os.path.join(folder, name), PROGRAM)
        os.chmod(os.path.join(folder, name), 0o700)
    script = os.path.join(folder, "use.sh")
    write(script, USE % {"python": shlex.quote(python), "folder": shlex.quote(folder)})
    return ". %s\n%s" % (shlex.quote(script), command)


def write(path: str, text: str) -> None:
    """Write a file unless it exists: an earlier rank may still run it."""
    if not os.path.exists(path):
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)


def which(payload: "Dict[str, Any]", command: str, said: str, is_inside: bool) -> str:
    """Return a message part that names the payload's Python; empty unless a program or module was missing.

    Args:
        payload: its description.
        command: the payload's command, as in the search file.
        said: the message so far and the end of the log.
        is_inside: whether the payload ran in the same container as the runner.
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
