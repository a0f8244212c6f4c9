"""Runs one job from its arguments to its job report. A Pilot 3 starts it as `runGen-00-00-02`.

::

    JOB/                      the current folder; outputs and jobReport.json are left here
    JOB/workDir/              the sandbox
    JOB/workDir/RUN_DIR/      where the command runs

A pilot that starts containers itself calls it twice, with `--preprocess` and `--postprocess`, and runs
`__run_main_exec.sh` in the image between the calls. Otherwise the transformation starts the image of the arguments or
of the payload's document.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import List, Mapping, NamedTuple, Optional, Sequence

from hpo_pilot.transformation.container import ContainerStart, choose_runtime
from hpo_pilot.transformation.job import (
    JOB_REPORT,
    Arguments,
    ExitCode,
    ImageFault,
    PayloadSettings,
    TransformationFailure,
    find_outputs,
    has_verdict,
    job_report,
    make_executable,
    parse_arguments,
    payload_argv,
    refuse_payload,
    shell_command,
    without_secrets,
    write_empty,
)
from hpo_pilot.transformation.process import run_payload
from hpo_pilot.transformation.sandbox import fetch_sandbox, unpack
from hpo_pilot.transformation.stage_in import CACHE_VARIABLE, StageIn, link_inputs


class Prepared(NamedTuple):
    """A job that is ready to start.

    Attributes:
        folder: where the command runs.
        argv: the command as a list of words.
        script: the command as text for a shell.
        elsewhere: targets of links to inputs outside the job's folder.
    """

    folder: str
    argv: List[str]
    script: str
    elsewhere: List[str]


def run_folder(arguments: Arguments, work: str) -> str:
    """Returns the folder where the command runs."""
    return os.path.normpath(os.path.join(work, arguments.run_dir))


def prepare(arguments: Arguments, here: str, work: str, stage_in: Optional[StageIn] = None) -> Prepared:
    """Makes a job ready to start.

    Args:
        arguments: arguments of the job.
        here: folder in which the pilot put the input files.
        work: folder with the unpacked sandbox.
        stage_in: fetches the `inputs` of the payload's document; None: with the settings of the environment.

    Raises:
        TransformationFailure: an input is missing.
        OSError: reading or writing a file failed.
    """
    folder = run_folder(arguments, work)
    os.makedirs(folder, exist_ok=True)
    replacements = link_inputs(arguments, here, folder)
    brought = [*arguments.inputs, *(name for names in arguments.input_map.values() for name in names)]
    elsewhere = (stage_in or StageIn(os.environ.get(CACHE_VARIABLE, ""))).bring(folder, list(dict.fromkeys(brought)))
    make_executable(arguments.command, folder)
    argv, script = payload_argv(arguments, replacements), shell_command(arguments, replacements)
    return Prepared(folder, argv, script, elsewhere)


MAIN_SCRIPT = "__run_main_exec.sh"
WORK_FOLDER = "workDir"
UNPACKED_LIMIT = 20000 << 20  # bytes

#: Names a container runtime of `container.RUNTIMES`; default: the first one that can run the image.
RUNTIME_VARIABLE = "HPO_PILOT_CONTAINER_RUNTIME"


def main(words: Optional[Sequence[str]] = None) -> int:
    """Runs a job in the current folder; returns the exit status."""
    here = os.getcwd()
    try:
        arguments = parse_arguments(sys.argv[1:] if words is None else words)
        for warning in arguments.warnings:
            print("WARNING : " + warning)
        return run(arguments, here, os.environ)
    except TransformationFailure as failure:
        message, code = str(failure), failure.code
    except OSError as error:
        message, code = "the job's folder cannot be used: %s" % error, ExitCode.NO_SPACE
    print("ERROR : " + message, file=sys.stderr)
    _write_report(here, json.dumps({"exitCode": int(code), "exitMsg": message}))
    return int(code)


def run(arguments: Arguments, here: str, environment: Mapping[str, str]) -> int:
    """Runs a job, or the step that the arguments name.

    Args:
        arguments: arguments of the job.
        here: the job's folder.
        environment: the pilot's.

    Returns:
        The payload's exit status; 0 for a step that does not run it.

    Raises:
        TransformationFailure: the payload could not be run to its end.
        OSError: reading or writing a file failed.
    """
    work = os.path.join(here, WORK_FOLDER)
    folder = run_folder(arguments, work)
    status = 0
    if arguments.step == "postprocess" and not os.path.isdir(work):
        return 0  # an earlier call ran the whole job and wrote its report
    if arguments.step != "postprocess":
        _unpack_sandbox(arguments, here, work, environment)
        prepared = prepare(arguments, here, work)
        if arguments.step == "preprocess":
            _write_script(prepared, here)
            return 0
        status = _execute(prepared, arguments.image or PayloadSettings.read(work).image, here, environment)
    if status == 0:
        _deliver(arguments, here, folder)
    report = job_report(folder, status)
    shutil.rmtree(work, ignore_errors=True)
    _write_report(here, report)
    return status


def _unpack_sandbox(arguments: Arguments, here: str, work: str, environment: Mapping[str, str]) -> None:
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    name = arguments.library or arguments.archive
    if not name:
        return
    path = os.path.join(here, name)
    if not os.path.isfile(path):  # the pilot did not bring it
        if arguments.library:
            raise TransformationFailure(ExitCode.NO_SANDBOX, "the sandbox %s is not there" % name)
        fetch_sandbox(arguments.source_url, name, path, UNPACKED_LIMIT, environment)
    unpack(path, work, UNPACKED_LIMIT)


def _write_script(prepared: Prepared, here: str) -> None:
    where = os.path.relpath(prepared.folder, here).replace("'", "'\\''")
    path = os.path.join(here, MAIN_SCRIPT)
    with open(path, "w") as file:
        file.write("cd '%s'\nexport PATH=\".:$PATH\"\n%s\n" % (where, prepared.script))
    os.chmod(path, 0o755)  # noqa: S103  the pilot may run it as another user


def _execute(prepared: Prepared, image: str, here: str, environment: Mapping[str, str]) -> int:
    try:
        runtime = choose_runtime(environment.get(RUNTIME_VARIABLE) or "auto", image)
    except ImageFault as fault:
        if not refuse_payload(prepared.folder, str(fault)):
            raise
        runtime = choose_runtime("auto", "")
    env = without_secrets(environment)
    binds = [Path(here), *map(Path, prepared.elsewhere)]
    if "HPO_PILOT_CHECKPOINT_ROOT" in env:
        binds.append(Path(env["HPO_PILOT_CHECKPOINT_ROOT"]))
    folder = Path(prepared.folder)

    def command(full: Mapping[str, str]) -> List[str]:
        return runtime.wrap(ContainerStart(prepared.argv, image, binds, full, folder))

    return run_payload(command, prepared.folder, env)


def _deliver(arguments: Arguments, here: str, folder: str) -> None:
    """Moves the outputs into the job's folder for the pilot, under their names in the storage."""
    found, missing = find_outputs(folder, arguments.outputs)
    # Of links the content is delivered, before what they lead to is moved.
    for name, path in sorted(found.items(), key=lambda each: not os.path.islink(each[1])):
        (shutil.copyfile if os.path.islink(path) else shutil.move)(path, os.path.join(here, name))
    for file in missing:
        if not has_verdict(folder):
            raise TransformationFailure(ExitCode.NO_OUTPUT, "the output %s was not made" % file)
        # A failed trial has no outputs. An empty file keeps the pilot from failing the job, so its verdict arrives.
        write_empty(os.path.join(here, arguments.outputs[file]))


def _write_report(here: str, text: str) -> None:
    path = os.path.join(here, JOB_REPORT)
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)
