"""Reads a job's arguments and payload document; makes its command, environment, outputs and job report."""

import ast
import glob
import json
import os
import re
import shlex
import tarfile
from enum import IntEnum
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import unquote


class ExitCode(IntEnum):
    """Exit statuses of the transformation; otherwise it ends with the payload's own status.

    Codes up to EXECUTION_FAILED are those of PanDA's analysis transformations (runGen, runHPO). The others are ours.
    """

    BAD_ARGUMENTS = 10  #: the job parameters are invalid
    NO_INPUT = 11  #: an input file cannot be fetched
    BAD_SANDBOX = 143  #: the sandbox is not an archive, or is refused
    NO_SANDBOX = 146  #: the sandbox cannot be fetched
    EXECUTION_FAILED = 150  #: the command cannot be started
    NO_CONTAINER_RUNTIME = 151  #: the image cannot be run here
    NO_OUTPUT = 152  #: a promised output is missing
    NO_SPACE = 153  #: the disk is full or cannot be written


class TransformationFailure(Exception):
    """This attempt of a job failed.

    Attributes:
        code: the exit status that says why.
    """

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class ImageFault(TransformationFailure):
    """The job's image is missing or is for another processor: further attempts would fail too."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.NO_CONTAINER_RUNTIME, message)


_VALUE_NAMES = (
    "-a -o -p -j -r -i -l -f -t -u --sourceURL --containerImage --inMap --writeInputToTxt --inputGUIDs --oldPrefix "
    "--newPrefix --lfcHost --envvarFile --liveLog --dbrFile --dbrRun --accessmode --rootVer --cmtConfig --jem-config "
    "--overwriteQueuedata --datadir --workdir --useCentralRegistry --fileToSave --fileToLoad --skipInputByRetry"
)
_FLAG_NAMES = (
    "--preprocess --postprocess --debug --execWithRealFileNames --noTarballDownload --usePFCTurl --pilotpars --cvmfs "
    "--noX509 --noExpandDBR --notExpandDBR --directIn --useAthenaPackages --useCMake --useRootCore --givenPFN "
    "--mergeSingleFile --useFileStager --enable-jem"
)
#: Options with a value. Options that are ignored on purpose are listed too, so that their values are skipped.
_WITH_VALUE, _FLAGS = frozenset(_VALUE_NAMES.split()), frozenset(_FLAG_NAMES.split())
#: Options that payloads depend on but that are not supported: set-up of ATLAS software, inputs over the network.
_UNSUPPORTED = ("--useAthenaPackages", "--useCMake", "--useRootCore", "--rootVer", "--dbrFile", "--directIn")

_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"']+)+""")
_PART = re.compile(r""""([^"]*)"|'([^']*)'|([^\s"']+)""")


class Arguments(NamedTuple):
    """The arguments of a job.

    Attributes:
        command: a shell command, as the job's owner wrote it.
        archive: name of the sandbox in the server's cache; empty: none.
        library: a sandbox that the pilot has put beside the job; empty: none.
        source_url: URL of the server that has the sandbox.
        run_dir: folder in the sandbox where the command runs.
        inputs: files that the pilot has put beside the job.
        input_map: further input files, by their placeholder in the command.
        input_lists: placeholder -> file into which the names of its inputs are written.
        outputs: file or pattern in the folder where the command runs -> name in the storage.
        image: image of a container; empty: none.
        step: `preprocess`, `postprocess`, or empty for the whole job.
        real_names: the command uses the outputs' names in the storage.
        warnings: warnings about ignored arguments.
    """

    command: str
    archive: str = ""
    library: str = ""
    source_url: str = ""
    run_dir: str = "."
    inputs: Tuple[str, ...] = ()
    input_map: Mapping[str, Tuple[str, ...]] = {}
    input_lists: Mapping[str, str] = {}
    outputs: Mapping[str, str] = {}
    image: str = ""
    step: str = ""
    real_names: bool = False
    warnings: Tuple[str, ...] = ()


def parse_arguments(words: Sequence[str]) -> Arguments:
    """Reads the arguments. Unknown ones become warnings, because they change between versions of panda-client.

    Raises:
        TransformationFailure: the arguments are invalid.
    """
    found, flags, warnings = _options(words)
    try:
        archive, run_dir = found.get("-a", ""), found.get("-r", ".") or "."
        if "/" in archive or archive in (".", ".."):
            raise ValueError("-a %r is not a file name" % archive)
        if run_dir.startswith("/") or ".." in run_dir.split("/"):
            raise ValueError("-r %r leads out of the job's folder" % run_dir)
        outputs = {str(file): str(name) for file, name in _literal(found.get("-o"), dict).items()}
        for name in outputs.values():
            if "/" in name or name in ("", ".", ".."):
                raise ValueError("-o: %r is not a file name" % name)
        command = (unquote(found.get("-j", "")) + " " + unquote(found.get("-p", ""))).strip()
        step = "preprocess" if "--preprocess" in flags else "postprocess" if "--postprocess" in flags else ""
        if not command and step != "postprocess":
            raise ValueError("no command: neither -p nor -j")
        pairs = [part.split(":") for part in found.get("--writeInputToTxt", "").split(",") if part]
        return Arguments(
            command=command,
            archive=archive,
            library=found.get("-l", ""),
            source_url=found.get("--sourceURL", "").rstrip("/"),
            run_dir=run_dir,
            inputs=tuple(_files(found.get("-i", ""))),
            input_map={str(k): tuple(map(str, v)) for k, v in _literal(found.get("--inMap"), dict).items()},
            input_lists=dict(pairs),
            outputs=outputs,
            image=found.get("--containerImage", ""),
            step=step,
            real_names="--execWithRealFileNames" in flags,
            warnings=tuple(warnings),
        )
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise TransformationFailure(ExitCode.BAD_ARGUMENTS, "the job parameters are invalid: %s" % error) from error


def parse_arguments_text(text: str) -> Arguments:
    """Reads the arguments from one line; see `parse_arguments`.

    Raises:
        TransformationFailure: the arguments are invalid.
    """
    try:
        return parse_arguments(split_words(text))
    except ValueError as error:
        raise TransformationFailure(
            ExitCode.BAD_ARGUMENTS, "the job parameters are invalid: %s in %.200r" % (error, text)
        ) from error


def split_words(text: str) -> List[str]:
    """Splits as `shlex.split` does, about a hundred times faster: tables of points are long arguments."""
    words, end = [], 0
    for match in _WORD.finditer(text):
        words.append("".join(a or b or c for a, b, c in _PART.findall(match.group())))
        if text[end : match.start()].strip(" \t\r\n"):
            return shlex.split(text)
        end = match.end()
    # shlex handles escapes and reports open quotes.
    return shlex.split(text) if "\\" in text or text[end:].strip(" \t\r\n") else words


def _options(words: Sequence[str]) -> Tuple[Dict[str, str], List[str], List[str]]:
    found: Dict[str, str] = {}
    flags: List[str] = []
    warnings: List[str] = []
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        name, equals, value = word.partition("=")
        if name.startswith("--") and equals:
            found[name] = value
        elif name in _WITH_VALUE:
            found[name] = rest.pop() if rest else ""
        elif name[:2] in _WITH_VALUE and not name.startswith("--"):
            found[name[:2]] = word[2:]
        else:
            flags.append(word)
            if word.startswith("-") and word not in _FLAGS and rest and not rest[-1].startswith("-"):
                warnings.append("%s %s is not known and is ignored" % (word, rest.pop()))
            elif word not in _FLAGS:
                warnings.append("%s is not known and is ignored" % word)
    warnings += ["%s is not supported here" % name for name in _UNSUPPORTED if name in found or name in flags]
    return found, flags, warnings


def _literal(text: Optional[str], kind: type) -> Any:
    value = ast.literal_eval(text) if text else kind()
    if not isinstance(value, kind):
        raise ValueError("%.60r is not a Python %s" % (text, kind.__name__))
    return value


def _files(text: str) -> List[str]:
    """Returns the file names in a Python list (panda-client) or in a comma-separated list (JEDI)."""
    if text.lstrip().startswith(("[", "(")):
        return [str(name) for name in ast.literal_eval(text)]
    return [name for name in text.split(",") if name]


#: The command of our own tasks. It needs no shell, so signals reach the runner directly.
_RUNNER = ["python3", "-I", "-S", "hpo_pilot_runner.py"]
_SHELL_SIGNS = frozenset("\"'\\$`;&|<>()[]{}*?!#~\n")

#: panda-client allows commands without ./ before the script's name.
_PATH = 'PATH=".:$PATH"; export PATH; '


def payload_argv(arguments: Arguments, replacements: Mapping[str, str]) -> List[str]:
    """Returns the command as words, with its placeholders replaced.

    Args:
        arguments: arguments of the job.
        replacements: values of `%NAME` in the command; see `stage_in.link_inputs`.
    """
    command = arguments.command
    if not _SHELL_SIGNS & set(command) and split_words(command)[:4] == _RUNNER:
        return split_words(command)
    return ["/bin/sh", "-c", _PATH + shell_command(arguments, replacements)]


def shell_command(arguments: Arguments, replacements: Mapping[str, str]) -> str:
    """Returns the command as text for a shell, with its placeholders replaced."""
    command = arguments.command
    for name, value in replacements.items():
        # `%IN` must not match `%IN2` or `%INDS`.
        command = _replace("%" + re.escape(name) + r"(?!\w)", value, command)
    if arguments.real_names:
        for file, name in arguments.outputs.items():
            command = _replace(r"(?<![\w./-])" + re.escape(file) + r"(?![\w./-])", name, command)
    return command


def _replace(pattern: str, value: str, text: str) -> str:
    return re.sub(pattern, lambda _: value, text)  # a function, because names may have backslashes


def make_executable(command: str, folder: str) -> None:
    """Makes the first script of the command executable, because users forget it."""
    name = re.match(r"(?:\./)?([\w.+-]+)(?:\s|$)", command)
    path = os.path.join(folder, name.group(1)) if name else ""
    if os.path.isfile(path) and not os.path.islink(path):
        os.chmod(path, os.stat(path).st_mode | 0o100)


PAYLOAD_DOCUMENT = "hpo_pilot_payload.json"


class PayloadSettings(NamedTuple):
    """The part of `hpo_pilot_payload.json` that pilots use; the runner reads the rest.

    Attributes:
        image: image of the container; empty: none.
        gpus: number of GPUs on each node.
        progress: file to which the payload appends intermediate values.
        metric: name of the value in that file.
        report_seconds: interval for reports of new values, in seconds; 0: with the usual heartbeats.
        nodes: number of nodes.
        ranks_per_node: processes that a launcher starts on each node; 0: one process without a launcher.
        minutes: time limit of the job; 0: not given.
        python: interpreter that replaces `python` in the command; empty: the one in PATH.
        inputs: paths, URLs and Rucio datasets to fetch before the command starts.
        outputs: declared output files.
        checkpoint: declared checkpoint files.
        segment: whether the search has segments.
        function: a Python function that the command calls; empty: none.
        gpu_share: number of jobs on its GPU; 1: it shares none.
    """

    image: str = ""
    gpus: int = 0
    progress: str = "progress.jsonl"
    metric: str = "value"
    report_seconds: float = 0.0
    nodes: int = 1
    ranks_per_node: int = 0
    minutes: float = 0.0
    python: str = ""
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    checkpoint: Sequence[str] = ()
    segment: bool = False
    function: str = ""
    gpu_share: int = 1

    @classmethod
    def read(cls, work: str) -> "PayloadSettings":
        """Reads the document from an unpacked sandbox; the defaults if there is none, as in sandboxes of prun.

        Raises:
            TransformationFailure: the document is invalid.
        """
        path = os.path.join(work, PAYLOAD_DOCUMENT)
        if not os.path.isfile(path):
            return cls()
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            names = document.get("file_names") or {}
            nodes, gpus = max(1, int(document.get("nodes") or 1)), int(document.get("gpus_per_node") or 0)
            # Earlier versions did not write it: the default of the search file.
            ranks = document.get("ranks_per_node", (gpus or 1) if nodes > 1 else 0)
            inputs = document.get("inputs") or []
            if not isinstance(inputs, list) or not all(isinstance(text, str) for text in inputs):
                raise ValueError("inputs is not a list of texts")
            return cls(
                str(document.get("container") or ""),
                gpus,
                os.path.basename(str(names.get("progress") or cls().progress)),
                str(document.get("progress_metric") or document.get("metric") or cls().metric),
                max(0.0, float(document.get("report_seconds") or 0.0)),
                nodes,
                max(0, int(ranks or 0)),
                max(0.0, float(document.get("minutes") or 0.0)),
                str(document.get("python") or ""),
                inputs,
                [str(name) for name in document.get("outputs") or ()],
                [str(name) for name in document.get("checkpoint") or ()],
                bool(document.get("segment")),
                str(document.get("function") or ""),
                max(1, int(document.get("gpu_share") or 1)),
            )
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
            raise TransformationFailure(ExitCode.BAD_SANDBOX, "%s: %s" % (PAYLOAD_DOCUMENT, error)) from error


#: Words in the names of secret variables; jobs do not get these variables of the pilot.
_SECRETS = frozenset(["TOKEN", "TOKENS", "X509", "OIDC"])

#: Parts of names of secret variables, such as PGPASSWORD.
_SECRET = re.compile("SECRET|PASSW(OR)?D|CREDENTIAL")

#: Databases of the service, which may let its account in without a password.
_DATABASES = frozenset(["HPO_PILOT_STORE", "HPO_PILOT_SERVER_DATABASE"])

#: A URL with a password, such as a database's. Proxies are excepted: without them a job may have no network.
_PASSWORD = re.compile(r"://[^/\s@:]*:[^/\s@]+@")
_PROXY = "_PROXY"

#: Variables of batch systems and launchers. They describe one batch job and must not be copied to another.
_OF_THE_JOB = ("COBALT_", "FLUX_", "LSB_", "LSF_", "OMPI_", "PALS_", "PBS_", "PMI", "SLURM")


def kept_environment(folder: str, name: str, here: Mapping[str, str]) -> Optional[Dict[str, str]]:
    """Returns a stored environment; None: there is none.

    Args:
        folder: where the environments of submitting processes are stored.
        name: the search's uid.
        here: environment of this process; its variables of the batch system are used.
    """
    try:
        with open(os.path.join(folder, name + ".json")) as file:
            kept = json.load(file)
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict):
        return None
    found = {str(key): str(value) for key, value in kept.items() if not key.startswith(_OF_THE_JOB)}
    found.update((key, value) for key, value in here.items() if key.startswith(_OF_THE_JOB))
    return without_secrets(found)


def without_secrets(environment: Mapping[str, str]) -> Dict[str, str]:
    """Returns a copy without variables that look like credentials or name the service's databases."""
    return {name: value for name, value in environment.items() if not _is_secret(name.upper(), value)}


def _is_secret(name: str, value: str) -> bool:
    if name in _DATABASES or _SECRETS & set(name.split("_")) or _SECRET.search(name):
        return True
    return _PASSWORD.search(value) is not None and not name.endswith(_PROXY)


def find_outputs(folder: str, outputs: Mapping[str, str]) -> Tuple[Dict[str, str], List[str]]:
    """Finds the outputs of a command. The files that match a pattern are packed into one archive, as runGen does.

    Args:
        folder: where the command ran.
        outputs: file or pattern, below `folder` -> name in the storage.

    Returns:
        (name in the storage -> path, missing files and patterns).

    Raises:
        OSError: an archive cannot be written.
    """
    found, missing = {}, []
    for file, name in outputs.items():
        path = os.path.join(folder, file)
        if "*" in file and not os.path.exists(path):
            path = _pack(folder, file, name)
        if path and os.path.isfile(path) and _is_inside(path, folder):
            found[name] = path
        else:
            missing.append(file)
    return found, missing


def write_empty(path: str) -> None:
    """Writes an empty archive, for a pilot that requires an output which a failed trial does not have."""
    with tarfile.open(path, "w:gz"):
        pass


def _pack(folder: str, pattern: str, name: str) -> str:
    files = [path for path in sorted(glob.glob(os.path.join(folder, pattern))) if _is_inside(path, folder)]
    if not files:
        return ""
    path = os.path.join(folder, ".hpo_pilot_" + name)
    with tarfile.open(path, "w:gz", compresslevel=3) as archive:
        for file in files:
            archive.add(file, os.path.relpath(file, folder))
    return path


def _is_inside(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


JOB_REPORT, USER_METADATA = "jobReport.json", "userJobMetadata.json"
METADATA_LIMIT = 1000000  # bytes of metadata that a server accepts


def job_report(folder: str, exit_code: int = 0) -> str:
    """Returns the job report as JSON: the exit code, the payload's own report, and its metadata.

    Args:
        folder: where the command ran.
        exit_code: exit code of the command.
    """
    metadata = _user_metadata(folder)
    report = _own_report(folder)
    report["exitCode"] = exit_code
    text = json.dumps(report)
    # Inserted as text: the metadata is JSON already, and large ones take long to decode and encode again.
    return '%s, "user_job_metadata": %s}' % (text[:-1], metadata) if metadata else text


#: The reason why a payload is not started; see `refuse_payload`.
_REFUSAL = "hpo_pilot_refusal.txt"


def refuse_payload(folder: str, reason: str) -> bool:
    """Makes a job's runner report a reason in place of the payload, as the verdict: PanDA does not repeat the job.

    The runner must then be started outside of the job's container.

    Args:
        folder: the job's folder.
        reason: one line.

    Returns:
        False if the job has no runner of ours.

    Raises:
        OSError: reading or writing a file failed.
    """
    path, told = os.path.join(folder, PAYLOAD_DOCUMENT), os.path.join(folder, _REFUSAL)
    if not os.path.isfile(path) or not os.path.isfile(os.path.join(folder, _RUNNER[-1])):
        return False
    with open(path) as file:
        document = json.load(file)
    with open(told, "w") as file:
        file.write(reason + "\n")
    document.update(command="cat %s; exit 1" % shlex.quote(told), python=None)
    with open(path + ".new", "w") as file:
        json.dump(document, file)
    os.rename(path + ".new", path)
    return True


def has_verdict(folder: str) -> bool:
    """Returns whether the payload wrote metadata, which has its verdict."""
    return os.path.isfile(os.path.join(folder, USER_METADATA))


def _user_metadata(folder: str) -> str:
    path = os.path.join(folder, USER_METADATA)
    if not os.path.isfile(path):
        return ""
    try:
        if os.path.getsize(path) >= METADATA_LIMIT:
            raise ValueError(
                "%s has %d bytes, a server takes %d" % (USER_METADATA, os.path.getsize(path), METADATA_LIMIT)
            )
        with open(path, encoding="utf-8") as file:
            text = file.read()
        json.loads(text)
        return text
    except (OSError, ValueError, RecursionError) as error:
        return json.dumps({"pilot_error": str(error)})


def _own_report(folder: str) -> Dict[str, object]:
    path = os.path.join(folder, JOB_REPORT)
    if os.path.isfile(path) and os.path.getsize(path) < METADATA_LIMIT:
        try:
            with open(path, encoding="utf-8") as file:
                report = json.load(file)
            if isinstance(report, dict):
                report.pop("user_job_metadata", None)
                return report
        except (OSError, ValueError, RecursionError) as error:
            return {"exitMsg": "%s of the payload cannot be read: %s" % (JOB_REPORT, error)}
    return {}
