"""A task's parameters as prun would write them (panda-client 2.2.0), for jobs that the payload runner tells apart.

Each job gets a number from the pseudo-input `seq_number`, which picks (trial, fold) among the generation's points; the
points travel in the `-p` string. `tests/panda/` compares the dictionary with prun's own, key by key.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any
from urllib.parse import quote

from hpo_pilot.jobs import TaskSpec

#: How long the encoded points of one task may be, in characters; a longer generation is cut before it is submitted.
ENCODED_LIMIT = 24_000

#: How often PanDA starts a job that the infrastructure lost, first attempt included.
MAX_ATTEMPTS = 3

#: Seconds that a pilot adds to the payload's own limit for staging in and out before it ends the job.
WALLTIME_MARGIN = 300

_TRANSFORMATION = "/trf/user/runGen-00-00-02"


def encode_points(task: TaskSpec) -> str:
    """The runner's `--task` argument: base64url(zlib(JSON)) of identity, jobs and points."""
    document = {
        "search": task.search,
        "uid": task.uid,
        "generation": task.generation,
        "folds": task.folds,
        "jobs": [list(job) for job in task.jobs],
        "points": {str(trial): task.points[trial] for trial in task.points},
    }
    packed = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 9)
    return base64.urlsafe_b64encode(packed).decode()


def output_name(task: str, jedi_task_id: int, number: int) -> str:
    """The logical file name of job `number`'s packed outputs: what the server makes of the template below."""
    return f"{task.rstrip('/')}.{jedi_task_id}._{number:06d}.outputs.tar.gz"


def task_parameters(task: TaskSpec, *, owner: str, vo: str, server: str, sandbox: str) -> dict[str, Any]:
    """The dictionary that panda-client's `insertTaskParams` takes.

    Args:
        task: what to submit.
        owner: the user's name at the server.
        vo: the user's virtual organisation.
        server: scheme://host:port of the server whose file cache has the sandbox.
        sandbox: the archive's name in that cache.
    """
    base = task.name.rstrip("/")
    needs = task.needs
    exec_head = quote(f"python3 -I -S hpo_pilot_runner.py --task {encode_points(task)} --number ")
    output = f"{base}.$JEDITASKID._${{SN/P}}.outputs.tar.gz"
    parameters: list[dict[str, Any]] = [
        {"type": "constant", "value": '-j "" --sourceURL ${SURL}'},
        {"type": "constant", "value": "-r ."},
        {"type": "constant", "value": "__delimiter__", "hidden": True},
        {"type": "constant", "value": f"-a {sandbox}"},
    ]
    if task.has_outputs:
        dataset = f"{base}_outputs.tar.gz/"
        parameters += [
            {
                "type": "template",
                "value": output,
                "param_type": "output",
                "dataset": dataset,
                "container": dataset,
                "hidden": True,
            },
            {"type": "constant", "value": f"-o \"{{'outputs.tar.gz': '{output}'}}\""},
        ]
    parameters += [
        {"type": "constant", "value": '-p "', "padding": False},
        {"type": "constant", "value": exec_head, "padding": False},
        {
            "type": "template",
            "value": "${SEQNUMBER}",
            "param_type": "pseudo_input",
            "dataset": "seq_number",
            "offset": 0,
            "padding": False,
        },
        {"type": "constant", "value": "", "padding": False},
        {"type": "constant", "value": '"'},
    ]
    minutes = int(needs.minutes * 60) + WALLTIME_MARGIN
    result: dict[str, Any] = {
        "taskName": task.name,
        # Without this the server would reactivate a finished task of the same name, with its old points.
        "uniqueTaskName": True,
        "vo": vo,
        "userName": owner,
        "prodSourceLabel": "user",
        "processingType": "hpo-pilot",
        "architecture": "" if task.container else None,
        "transUses": "",
        "transHome": None,
        "transPath": server + _TRANSFORMATION,
        "site": task.queue or "LOCAL",
        "includedSite": None,
        "excludedSite": [],
        "noInput": True,
        "nEvents": len(task.jobs),
        "nEventsPerJob": 1,
        "nMaxFilesPerJob": 200,
        "coreCount": needs.cores,
        "ramCount": needs.memory_mb,
        "maxWalltime": minutes,
        "maxAttempt": MAX_ATTEMPTS,
        "skipScout": True,
        "noEmail": True,
        "respectSplitRule": True,
        "cliParams": f"hpo-pilot {task.search} generation {task.generation}",
        "sourceURL": server,
        "log": {
            "dataset": f"{base}.log/",
            "container": f"{base}.log/",
            "type": "template",
            "param_type": "log",
            "value": f"{base}.log.$JEDITASKID.${{SN}}.log.tgz",
        },
        "jobParameters": parameters,
    }
    if task.container:
        result["container_name"] = task.container
        result["multiStepExec"] = {
            "preprocess": {"command": "${TRF}", "args": "--preprocess ${TRF_ARGS}"},
            "postprocess": {"command": "${TRF}", "args": "--postprocess ${TRF_ARGS}"},
            "containerOptions": {
                "containerExec": "/bin/sh __run_main_exec.sh",
                "containerImage": task.container,
            },
        }
    return result
