"""A task's parameters as prun would write them (panda-client 2.2.0), for jobs that the payload runner tells apart.

Each job gets a number from the pseudo-input `seq_number`, which picks (trial, fold) among the generation's points; the
points travel in the `-p` string. `tests/panda/` compares the dictionary with prun's own, key by key.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from hpo_pilot.jobs import TaskSpec

#: How long the encoded points of one task may be, in characters; a longer generation is cut before it is submitted.
ENCODED_LIMIT = 24_000

#: Seconds that a pilot adds to the payload's own limit for staging in and out before it ends the job.
WALLTIME_MARGIN = 300

_TRANSFORMATION = "/trf/user/runGen-00-00-02"

#: Where the transformation writes the names of the input files that the pilot has brought; the runner reads it.
_STAGED_FILE = "hpo_pilot_inputs.json"

#: What a job of ours needs where the search asks for GPUs and says no more: JEDI takes no GPU without a make.
_ANY_GPU = "&nvidia"

_TASK_ARGUMENT = re.compile(r"hpo_pilot_runner\.py --task ([A-Za-z0-9_=-]+)")


def points_document(task: TaskSpec) -> dict[str, Any]:
    """What the runner is told of a task: identity, jobs and points, as JSON has it. No two tasks have the same."""
    single = all(len(job) == 1 for job in task.jobs)
    return {
        "search": task.search,
        "uid": task.uid,
        "generation": task.generation,
        "folds": task.folds,
        # One point a job as it always was: a search goes on with the runner in the sandbox that it began with.
        "jobs": [list(job[0]) if single else [list(member) for member in job] for job in task.jobs],
        "points": {str(trial): dict(task.points[trial]) for trial in task.points},
    }


def encode_points(task: TaskSpec) -> str:
    """The runner's `--task` argument: base64url(zlib(JSON)) of identity, jobs and points."""
    packed = zlib.compress(json.dumps(points_document(task), separators=(",", ":")).encode(), 9)
    return base64.urlsafe_b64encode(packed).decode()


def submitted_points(parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """The `points_document` of a task that was submitted with these parameters; None where it is no task of ours."""
    try:
        texts = [unquote(str(piece.get("value", ""))) for piece in parameters["jobParameters"]]
        found = next(match for text in texts if (match := _TASK_ARGUMENT.search(text)))
        document = json.loads(zlib.decompress(base64.urlsafe_b64decode(found[1])))
    except (KeyError, TypeError, AttributeError, StopIteration, binascii.Error, zlib.error, ValueError):
        return None
    return document if isinstance(document, dict) else None


def output_name(task: str, jedi_task_id: int, number: int) -> str:
    """The logical file name of job `number`'s packed outputs: what the server makes of the template below."""
    return f"{task.rstrip('/')}.{jedi_task_id}._{number:06d}.outputs.tar.gz"


def task_parameters(
    task: TaskSpec, *, owner: str, vo: str, server: str, sandbox: str, ours: bool = True
) -> dict[str, Any]:
    """The dictionary that panda-client's `insertTaskParams` takes.

    Args:
        task: what to submit.
        owner: the user's name at the server.
        vo: the user's virtual organisation, where the task names none.
        server: scheme://host:port of the server whose file cache has the sandbox.
        sandbox: the archive's name in that cache.
        ours: whether the server is an embedded one: it has its own transformation and queue, and its pilots bring
            input data by themselves. A real one has its sites' transformation, and JEDI brings datasets.
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
    if task.datasets and not ours:
        parameters += _inputs(task.datasets)
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
    seconds = int(needs.minutes * 60) + WALLTIME_MARGIN
    options = task.options
    included = task.queue.split(",") if task.queue and "," in task.queue else None
    result: dict[str, Any] = {
        "taskName": task.name,
        # Without this the server would reactivate a finished task of the same name, with its old points.
        "uniqueTaskName": True,
        "vo": options.vo or vo,
        "userName": owner,
        "prodSourceLabel": options.label,
        "processingType": "hpo-pilot",
        "architecture": _architecture(task, ours=ours),
        "transUses": "",
        "transHome": None,
        "site": None if included else task.queue or ("LOCAL" if ours else None),
        "includedSite": included,
        "excludedSite": list(options.exclude),
        "noInput": True,
        "nEvents": len(task.jobs),
        "nEventsPerJob": 1,
        "nMaxFilesPerJob": 200,
        "coreCount": needs.cores,
        "ramCount": math.ceil(needs.memory_mb / needs.cores),
        "ramCountUnit": "MBPerCore",
        "maxWalltime": math.ceil(seconds / 3600),  # hours, to JEDI
        "maxAttempt": options.attempts,
        "skipScout": True,
        "noEmail": True,
        "respectSplitRule": True,
        "campaign": f"{task.search}.{task.uid}",
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
    if ours:
        result["transPath"] = server + _TRANSFORMATION
        result["hpoWalltime"] = seconds  # what its pilots hold the job to
        result["hpoPayloadSeconds"] = seconds - WALLTIME_MARGIN  # what an allocation plans for it
        if task.wants_values:
            result["hpoValues"] = True  # it tells of the values of running jobs, and not of results alone
        if needs.nodes > 1:
            result["hpoNodes"] = needs.nodes  # only pilots that have an allocation get it
        if needs.gpus_per_node:
            result["nGPU"] = needs.gpus_per_node  # what its brokerage looks at; a real one reads the architecture
    if options.priority is not None:
        result["currentPriority"] = options.priority
    if options.working_group:
        # Without its role, as prun has it.
        result["workingGroup"] = re.split(r"[.:]", options.working_group)[0]
    if options.official:
        result["official"] = True
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


def _architecture(task: TaskSpec, *, ours: bool) -> str | None:
    """CPU and GPU wanted, as prun makes it of its --architecture: the text itself, JSON in its own writing."""
    wanted = task.options.architecture
    if wanted is None and task.needs.gpus_per_node and not ours:
        wanted = _ANY_GPU
    if not wanted:
        return "" if task.container else None
    return wanted if task.container or "{" not in wanted else json.dumps(json.loads(wanted))


def _inputs(datasets: tuple[str, ...]) -> list[dict[str, Any]]:
    """The parameters with which JEDI brings whole datasets to every job, as phpo has them for its --trainingDS."""
    return [
        {"type": "constant", "value": f"--writeInputToTxt IN_DATA:{_STAGED_FILE}"},
        {
            "type": "template",
            "param_type": "input",
            "value": '-i "${IN_DATA/T}"',
            "dataset": ",".join(datasets),
            "attributes": "nosplit,repeat",
        },
        {"type": "constant", "value": "--inMap \"{'IN_DATA': ${IN_DATA/T}}\""},
    ]
