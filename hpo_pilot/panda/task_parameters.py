"""Builds a task's parameters as prun does (panda-client 2.2.0), with a number for each job.

Each job gets a number from the pseudo-input `seq_number`; the payload runner finds its (trial, fold) by it. The
points of the generation are in the `-p` string. `tests/panda/` compares the dictionary with prun's own, key by key.
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

from hpo_pilot.jobs import TaskSpec, TrialLevel

#: Most characters of the encoded points of one task; a longer generation is split before submission.
ENCODED_LIMIT = 24_000

#: Seconds for staging that a pilot adds to the payload's limit before it ends the job.
WALLTIME_MARGIN = 300

_TRANSFORMATION = "/trf/user/runGen-00-00-02"

#: The transformation writes the names of the staged input files here; the runner reads them.
_STAGED_FILE = "hpo_pilot_inputs.json"

#: The GPU of a search that names no kind of GPU: JEDI needs a vendor.
_ANY_GPU = "&nvidia"

_TASK_ARGUMENT = re.compile(r"hpo_pilot_runner\.py --task ([A-Za-z0-9_=-]+)")


def points_document(task: TaskSpec) -> dict[str, Any]:
    """Returns the runner's document of a task for JSON: identity, jobs and points. No two tasks have the same."""
    single = all(len(job) == 1 for job in task.jobs)
    document: dict[str, Any] = {
        "search": task.search,
        "uid": task.uid,
        "generation": task.generation,
        "folds": task.folds,
        # The old form for one point a job: a search may go on with an older runner in its sandbox.
        "jobs": [list(job[0]) if single else [list(member) for member in job] for job in task.jobs],
        "points": {str(trial): dict(task.points[trial]) for trial in task.points},
    }
    if task.levels:
        document["levels"] = {str(trial): _level_document(task.levels[trial]) for trial in task.points}
    return document


def _level_document(level: TrialLevel) -> dict[str, Any]:
    """Returns the keys that the runner adds to job.json: `level`, and `chain` and `keep_checkpoint` if set."""
    return {key: value for key, value in level._asdict().items() if value is not None and value is not False}


def encode_points(task: TaskSpec) -> str:
    """Returns the runner's `--task` argument: base64url(zlib(JSON)) of identity, jobs and points."""
    packed = zlib.compress(json.dumps(points_document(task), separators=(",", ":")).encode(), 9)
    return base64.urlsafe_b64encode(packed).decode()


def submitted_points(parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the `points_document` in the parameters of a submitted task; None: it is not our task."""
    try:
        texts = [unquote(str(piece.get("value", ""))) for piece in parameters["jobParameters"]]
        found = next(match for text in texts if (match := _TASK_ARGUMENT.search(text)))
        document = json.loads(zlib.decompress(base64.urlsafe_b64decode(found[1])))
    except (KeyError, TypeError, AttributeError, StopIteration, binascii.Error, zlib.error, ValueError):
        return None
    return document if isinstance(document, dict) else None


def output_name(task: str, jedi_task_id: int, number: int) -> str:
    """Returns the logical file name of a job's packed outputs, which the server makes from the template below."""
    return f"{task.rstrip('/')}.{jedi_task_id}._{number:06d}.outputs.tar.gz"


def task_parameters(
    task: TaskSpec, *, owner: str, vo: str, server: str, sandbox: str, ours: bool = True
) -> dict[str, Any]:
    """Returns the dictionary for panda-client's `insertTaskParams`.

    Args:
        task: the task.
        owner: the user's name at the server.
        vo: the user's virtual organisation, for a task without its own.
        server: scheme://host:port of the host whose file cache has the sandbox.
        sandbox: the archive's name in that cache.
        ours: True for an embedded server: it has its own transformation and queue, and its pilots fetch input data.
            With a real server, sites have the transformation, and JEDI brings datasets.
    """
    base = task.name.rstrip("/")
    needs = task.needs
    exec_head = quote(f"python3 -I -S hpo_pilot_runner.py --task {encode_points(task)} --number ")
    output = f"{base}.$JEDITASKID._${{SN/P}}.outputs.tar.gz"
    parameters = [
        _constant('-j "" --sourceURL ${SURL}'),
        _constant("-r ."),
        _constant("__delimiter__", hidden=True),
        _constant(f"-a {sandbox}"),
    ]
    if task.has_outputs:
        dataset = f"{base}_outputs.tar.gz/"
        parameters += [
            _template("output", output, dataset, container=dataset, hidden=True),
            _constant(f"-o \"{{'outputs.tar.gz': '{output}'}}\""),
        ]
    if task.datasets and not ours:
        # JEDI brings whole datasets to every job, as phpo does for --trainingDS.
        parameters += [
            _constant(f"--writeInputToTxt IN_DATA:{_STAGED_FILE}"),
            _template("input", '-i "${IN_DATA/T}"', ",".join(task.datasets), attributes="nosplit,repeat"),
            _constant("--inMap \"{'IN_DATA': ${IN_DATA/T}}\""),
        ]
    parameters += [
        _constant('-p "', padding=False),
        _constant(exec_head, padding=False),
        _template("pseudo_input", "${SEQNUMBER}", "seq_number", offset=0, padding=False),
        _constant("", padding=False),
        _constant('"'),
    ]
    payload_seconds = int(needs.minutes * 60)
    seconds = task.walltime or payload_seconds + WALLTIME_MARGIN
    options = task.options
    included = task.queue.split(",") if task.queue and "," in task.queue else None
    result: dict[str, Any] = {
        "taskName": task.name,
        # Otherwise the server would reactivate a finished task of the same name, with its old points.
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
        "cliParams": _described(task),
        "sourceURL": server,
        "log": _template("log", f"{base}.log.$JEDITASKID.${{SN}}.log.tgz", f"{base}.log/", container=f"{base}.log/"),
        "jobParameters": parameters,
    }
    if ours:
        own = {
            "transPath": server + _TRANSFORMATION,
            "hpoWalltime": seconds,  # the limit that its pilots enforce
            "hpoPayloadSeconds": min(payload_seconds, seconds),  # the run time for the scheduler of an allocation
            "hpoCheckpoints": needs.checkpoints,  # it may run across several allocations
            "hpoValues": task.wants_values,  # it reports values of running jobs too
            "hpoNodes": needs.nodes if needs.nodes > 1 else 0,  # only pilots in an allocation get the job
            "hpoSite": options.profile,  # no pilot with another site profile gets the job
            "nGPU": needs.whole_gpus,  # for its brokerage; a real server reads the architecture
            "hpoGpuShare": needs.gpu_share if needs.gpu_share > 1 else 0,  # the number of jobs on one GPU
        }
        result |= {name: value for name, value in own.items() if value}
    if options.priority is not None:
        result["currentPriority"] = options.priority
    if options.working_group:
        # Without its role, as with prun.
        result["workingGroup"] = re.split(r"[.:]", options.working_group)[0]
    if options.official:
        result["official"] = True
    if task.container:
        result["container_name"] = task.container
        result["multiStepExec"] = {
            "preprocess": {"command": "${TRF}", "args": "--preprocess ${TRF_ARGS}"},
            "postprocess": {"command": "${TRF}", "args": "--postprocess ${TRF_ARGS}"},
            "containerOptions": {"containerExec": "/bin/sh __run_main_exec.sh", "containerImage": task.container},
        }
    return result


def _described(task: TaskSpec) -> str:
    """Returns what the task is for, as monitors show it; the encoded points are not readable there."""
    first, last = min(task.points), max(task.points)
    trials = f"{len(task.points)} trials, {first} to {last}" if last > first else f"trial {first}"
    folds = f", {task.folds} folds" if task.folds > 1 else ""
    return f"hpo-pilot {task.search} generation {task.generation}: {trials}{folds}"


def _architecture(task: TaskSpec, *, ours: bool) -> str | None:
    """Returns the CPU and GPU as prun does from --architecture: the text, with JSON normalised."""
    wanted = task.options.architecture
    if wanted is None and task.needs.gpus_per_node and not ours:
        wanted = _ANY_GPU
    if not wanted:
        return "" if task.container else None
    return wanted if task.container or "{" not in wanted else json.dumps(json.loads(wanted))


def _constant(value: str, **more: Any) -> dict[str, Any]:
    """Returns a text of the job's parameters."""
    return {"type": "constant", "value": value, **more}


def _template(kind: str, value: str, dataset: str, **more: Any) -> dict[str, Any]:
    """Returns a text of the job's parameters with a number or name for each job."""
    return {"type": "template", "param_type": kind, "value": value, "dataset": dataset, **more}
