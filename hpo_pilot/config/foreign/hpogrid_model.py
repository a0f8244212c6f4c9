"""The function by which hpogrid runs a payload that is a command: a file that goes beside its scripts."""

from __future__ import annotations

from hpo_pilot.search import Search

#: The file, and the function in it.
MODEL_FILE = "hpo_pilot_payload.py"
MODEL = "evaluate"

_TEXT = '''"""Runs one point of the search {name!r} for hpogrid: the payload's command, with its files."""

import json
import os
import shutil
import subprocess
import tempfile

COMMAND = {command!r}
POINT, RESULT, METRIC = {point!r}, {result!r}, {metric!r}


def evaluate(config, reporter):
    """Writes the point, runs the command in a copy of this folder, reports the figure of merit."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = os.path.join(scratch, "payload")
        shutil.copytree(os.path.dirname(os.path.abspath(__file__)), folder)
        with open(os.path.join(folder, POINT), "w") as file:
            json.dump(config, file)
        subprocess.run(COMMAND, shell=True, check=True, cwd=folder)
        with open(os.path.join(folder, RESULT)) as file:
            result = json.load(file)
    if result.get("status"):
        raise RuntimeError(result.get("message") or "the payload failed")
    value = result[METRIC] if METRIC in result else result["metrics"][METRIC]
    reporter(**{{METRIC: value}})
'''


def model_text(search: Search) -> str:
    """The file's text."""
    names = search.payload.file_names
    return _TEXT.format(
        name=search.name,
        command=search.payload.command,
        point=names.point,
        result=names.result,
        metric=search.objective.metric,
    )
