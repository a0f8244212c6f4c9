"""A task's parameters as prun writes them, PanDA's field names, and the parsed tasks kept in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import bindparam, select

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobNeeds
from hpo_pilot.jobs.resources import MOST_ON_A_GPU, gpu_count
from hpo_pilot.server.brokerage import HardwareError, TaskNeeds, parse_architecture
from hpo_pilot.server.database import AnyRow, Transaction, tasks
from hpo_pilot.server.file_store import is_safe

# PanDA's names, from panda-server 1.0.4.


def words(text: str) -> tuple[str, ...]:
    """Returns the words of a text, such as a list of names."""
    return tuple(text.split())


#: Parameters that a retry or a resubmission may change: those of `insertTaskParamsPanda`, and what our jobs need.
CHANGEABLE_PARAMETERS = frozenset(
    words(
        """
        site cloud includedSite excludedSite cliParams nFiles nEvents fixedSandbox sourceURL currentPriority
        taskPriority priority ramCount ramUnit ramCountUnit loopingCheck forceStaged maxAttempt coreCount maxWalltime
        """
    )
)

#: Split rules that a retry or a resubmission may change (`task_split_rules.py`).
SPLIT_RULES = words(
    """
    allowIncompleteInDS t1Weight nEsConsumers nMaxFilesPerJob nGBPerJob noInputPooling nFilesPerJob
    nEventsPerWorker nJumboJobs avoidVP allowInputLAN useLocalIO noLoopingCheck maxCoreCount onlyTagsForFC useZipToPin
    ignoreMissingInDS noAutoPause
    """
)

#: MB per core above which the names end in _HIMEM.
HIGH_MEMORY = 2000

#: PanDA's table of resource types; None: no bound. Memory in MB per core.
RESOURCE_TYPES: list[dict[str, str | int | None]] = [
    {"resource_name": name, "mincore": least, "maxcore": most, "minrampercore": above, "maxrampercore": below}
    for name, least, most, above, below in (
        ("SCORE", 1, 1, None, HIGH_MEMORY),
        ("MCORE", 2, None, None, HIGH_MEMORY),
        ("SCORE_HIMEM", 1, 1, HIGH_MEMORY, None),
        ("MCORE_HIMEM", 2, None, HIGH_MEMORY, None),
    )
]


def resource_type(core_count: int, ram_mb: int) -> str:
    """Returns PanDA's resource type of a job of this size."""
    name = "SCORE" if core_count <= 1 else "MCORE"
    return name if ram_mb <= core_count * HIGH_MEMORY else f"{name}_HIMEM"


# Task parameters, as prun writes them. The rules are those of panda-server 1.0.4
# (`pandajedi/jedirefine/TaskRefinerBase.py`, `pandajedi/jediorder/JobGenerator.py`):
#
# - blanks join the pieces of ``jobParameters``; hidden pieces are left out; ``"padding": false`` joins without a blank;
# - ``${SN}`` in a file's name and ``${SN/P}`` anywhere are the job's number in its task, from 1, with six digits;
#   ``${SN}`` elsewhere has no leading zeros;
# - ``${SEQNUMBER}`` is the piece's offset plus the job's number; ``$JEDITASKID`` is the task's id.
#
# Unlike there, a retried job keeps its ``${SN}``: its outputs replace the previous attempt's. Their names consist of
# task and number only.

#: Largest number of jobs in one task; more are taken as a mistake.
MAX_JOBS = 100_000
_DEFAULT_ATTEMPTS, _MOST_ATTEMPTS = 3, 1000  # the first is what JEDI gives an analysis task
_DISK_UNITS = {"": 1, "MB": 1, "GB": 1024, "TB": 1024 * 1024}
_LONGEST_SITE = 128
_DEFAULT_RAM_MB = 2000

#: Parameters of features that this server does not have, and the reason or remedy. A task with one of them is refused:
#: pbook's tables do not show why a task is broken.
UNSUPPORTED = {
    "buildSpec": "has no build jobs: submit with --noBuild",
    "mergeSpec": "merges no outputs: submit without --mergeOutput",
    "nEventsPerWorker": "has no event service",
    "hpoWorkflow": "has no iDDS to steer the points of phpo: `hpo-pilot import phpo -- phpo ...` makes a search of the "
    "same command, and `hpo-pilot run` runs it",
    "useSecrets": "has no secrets: submit without --useSecrets",
}

_PLACEHOLDER = re.compile(
    r"\$\{(SN/P|SN|SEQNUMBER|RNDMSEED|FIRSTEVENT|ATTEMPTNR|MAXEVENTS|SKIPEVENTS|SURL)\}|\$(JEDITASKID)"
)
_TASK_ID = "$JEDITASKID"
_INPUT = re.compile(r"\$\{(IN[^}]*)\}")
_ARCHIVE = re.compile(r"(?:^|\s)-a\s+[\"']?([^\s\"']+)")


class TaskParametersError(InputError):
    """The parameters are not valid. The task becomes broken, and the message becomes its error dialog."""


class OutputNameError(InputError):
    """An output or log has a name that is not its user's or its task's. The task is refused."""


@dataclass(frozen=True)
class OutputFile:
    """A file that a job writes."""

    lfn: str
    dataset: str
    kind: str  # output or log


@dataclass(frozen=True)
class JobTexts:
    """Parameters and files of one job."""

    job_pars: str
    files: tuple[OutputFile, ...]
    steps: Mapping[str, Any] | None  # multiStepExec with its placeholders filled
    sequence: int | None  # the number that ${SEQNUMBER} became


@dataclass(frozen=True)
class _Piece:
    """A text with placeholders; `offset` is added to the job's number in counting placeholders."""

    text: str
    offset: int = 0

    def fill(self, values: Mapping[str, int | str], number: int) -> str:
        if "$" not in self.text:
            return self.text
        counted = {"SEQNUMBER": self.offset + number, "RNDMSEED": self.offset + number}
        return _PLACEHOLDER.sub(lambda match: str(({**values, **counted})[match[1] or match[2]]), self.text)


@dataclass(frozen=True)
class _Template:
    """An output or log file before its numbers are known."""

    piece: _Piece
    dataset: str
    kind: str


class TaskParameters:
    """A task's parameters, parsed and checked."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        """Reads the parameters of a task that has a name, a VO and a label.

        Raises:
            TaskParametersError: they are not valid here.
        """
        self.params = params
        self.n_events_per_job = self._integer("nEventsPerJob", 1, least=1)
        self.n_jobs = self._count()
        self.core_count = self._integer("coreCount", 1) or 1
        self.max_attempt = min(self._integer("maxAttempt", _DEFAULT_ATTEMPTS) or _DEFAULT_ATTEMPTS, _MOST_ATTEMPTS)
        # PanDA's parameter is in hours, as in JEDI; our own is in seconds.
        walltime = self._integer("hpoWalltime", 0) or 3600 * self._integer("maxWalltime", 0)
        self.max_walltime = min(walltime, 2**31 - 1)
        self.ram_mb = self._ram()
        self.queue = self._text("site")
        self.included = _names(params.get("includedSite"))
        self.excluded = _names(params.get("excludedSite"))
        self.transformation = self._text("transPath")
        self.architecture = self._text("architecture")
        self.container = self._text("container_name")
        self.processing_type = self._text("processingType")
        self.working_group = self._text("workingGroup")
        self.source_url = self._text("sourceURL")
        self.needs = self._needs()
        self._read_pieces()

    # Numbers and texts.

    def _integer(self, key: str, default: int, least: int = 0) -> int:
        value = self.params.get(key)
        if value is None:
            return default
        try:
            number = int(value)
        except (ValueError, TypeError, OverflowError):
            raise TaskParametersError(f"{key} must be a whole number, not {value!r}") from None
        if not least <= number <= 2**31 - 1:
            raise TaskParametersError(f"{key} must be at least {least} and below 2**31, not {number}")
        return number

    def _text(self, key: str) -> str:
        value = self.params.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise TaskParametersError(f"{key} must be a text, not {value!r}")
        return value

    def _count(self) -> int:
        if self.params.get("nEvents") is not None:
            total, each = self._integer("nEvents", 1, least=1), self.n_events_per_job
        else:
            total, each = self._integer("nFiles", 1, least=1), self._integer("nFilesPerJob", 1, least=1)
        count = -(-total // each)
        if count > MAX_JOBS:
            raise TaskParametersError(f"{count} jobs in one task; at most {MAX_JOBS}: split the task")
        return count

    def _needs(self) -> TaskNeeds:
        """Returns the needs of a job."""
        try:
            required = parse_architecture(self.architecture)
        except HardwareError as error:
            raise TaskParametersError(str(error)) from error
        unit = str(self.params.get("workDiskUnit") or "")
        if unit not in _DISK_UNITS:
            units = ", ".join(filter(None, _DISK_UNITS))
            raise TaskParametersError(f"workDiskUnit must be one of {units}, not {unit!r}")
        job = JobNeeds(
            nodes=self._amount("hpoNodes") or 1,
            gpus_per_node=gpu_count(
                self._amount("nGPU") or (1 if required.gpu is not None else 0),
                min(self._amount("hpoGpuShare"), MOST_ON_A_GPU),
            ),
            cores=self.core_count,
            memory_mb=self.ram_mb,
            minutes=(self._amount("hpoPayloadSeconds") or self.max_walltime) / 60,
            checkpoints=bool(self.params.get("hpoCheckpoints")),
        )
        return TaskNeeds(
            job,
            walltime=self.max_walltime,
            disk_mb=self._amount("workDiskCount") * _DISK_UNITS[unit],
            architecture=self.architecture,
            container=bool(self.container),
            site=str(self.params.get("hpoSite") or "")[:_LONGEST_SITE],
        )

    def _amount(self, key: str) -> int:
        value = self.params.get(key)
        if value is None:
            return 0
        if not isinstance(value, int) or not 0 <= value < 2**31:
            raise TaskParametersError(f"{key} must be a whole number, not {value!r}")
        return value

    def _ram(self) -> int:
        ram = self._integer("ramCount", _DEFAULT_RAM_MB)
        per_core = str(self.params.get("ramUnit") or self.params.get("ramCountUnit") or "MB").startswith("MBPerCore")
        return min(ram * (self.core_count if per_core else 1), 2**31 - 1)

    # Pieces.

    def _read_pieces(self) -> None:
        items = self.params.get("jobParameters")
        if not isinstance(items, list) or not items:
            raise TaskParametersError("jobParameters must be a list of at least one parameter")
        pieces: list[_Piece] = []
        files: list[_Template] = []
        self.sequence_offset: int | None = None
        self.sequence_dataset = "pseudo_dataset"
        padded = False
        for position, item in enumerate(items):
            if not isinstance(item, dict) or item.get("type") not in ("constant", "template"):
                raise TaskParametersError(
                    f'jobParameters[{position}] must be an object with "type": "constant" or "template"'
                )
            piece = self._piece(item, position, files)
            if piece is None or item.get("hidden") is True:
                continue
            if pieces and padded:
                pieces.append(_Piece(" "))
            pieces.append(piece)
            padded = item.get("padding") is not False
        log = self.params.get("log")
        if log is not None:
            if not isinstance(log, dict):
                raise TaskParametersError("log must be an object like an item of jobParameters")
            files.append(self._file(log, "log", "log"))
        self._pieces = pieces
        self._files = tuple(files)

    def _piece(self, item: Mapping[str, Any], position: int, files: list[_Template]) -> _Piece | None:
        if "value" not in item or item.get("es_only") is True:
            return None
        value = str(item["value"])
        kind = item.get("param_type", "constant") if item["type"] == "template" else "constant"
        where = f"jobParameters[{position}]"
        offset = item.get("offset", 0)
        if not isinstance(offset, int):
            raise TaskParametersError(f"{where}: offset must be a whole number, not {offset!r}")
        if kind in ("output", "log"):
            files.append(self._file(item, kind, where))
            value = value.replace("${SN}", "${SN/P}")
        elif kind == "pseudo_input":
            self.sequence_offset = offset
            self.sequence_dataset = str(item.get("dataset", "seq_number"))
        elif kind == "input":
            raise TaskParametersError(
                f"{where}: input dataset {item.get('dataset')!r}: the embedded PanDA server has no data management"
            )
        elif kind not in ("constant", "number"):
            raise TaskParametersError(f"{where}: param_type {kind!r} is not known to this server")
        if found := _INPUT.search(value):
            raise TaskParametersError(f"{where}: unresolved {found[0]} when making job parameters")
        if "${SEQNUMBER}" in value and kind != "pseudo_input":
            raise TaskParametersError(f"{where}: unresolved ${{SEQNUMBER}} when making job parameters")
        return _Piece(value, offset)

    def _file(self, item: Mapping[str, Any], kind: str, where: str) -> _Template:
        name = str(item.get("value", "")).split("=")[-1].replace("'", "")
        dataset = item.get("dataset")
        if not name or not isinstance(dataset, str):
            raise TaskParametersError(f"{where}: an output needs a value and a dataset")
        return _Template(_Piece(name.replace("${SN}", "${SN/P}")), dataset, kind)

    # Values derived from the parameters.

    @property
    def sandbox(self) -> str | None:
        """Returns the archive that the jobs fetch from this server's cache; None: no archive."""
        match = _ARCHIVE.search(self.template)
        return None if match is None or match[1] == "None" else match[1].rsplit("/", 1)[-1]

    @property
    def template(self) -> str:
        """Returns the jobs' parameters with their placeholders."""
        return "".join(piece.text for piece in self._pieces)

    @cached_property
    def datasets(self) -> list[tuple[str, str]]:
        """Returns name and kind of each dataset: pseudo_input, which numbers the jobs; then output and log."""
        return [
            (self.sequence_dataset, "pseudo_input"),
            *dict.fromkeys((file.dataset, file.kind) for file in self._files),
        ]

    @property
    def output_datasets(self) -> list[str]:
        """Returns the datasets of outputs and logs, each once."""
        return list(dict.fromkeys(file.dataset for file in self._files))

    def check_outputs(self, owners: Sequence[str]) -> None:
        """Checks that the files of other users and of other tasks cannot have the names of this task's files.

        Args:
            owners: the names of the submitter.

        Raises:
            OutputNameError: they can, or no storage takes a file of this name.
        """
        for name in (file.piece.text for file in self._files):
            parts = name.split(".")
            filled = _PLACEHOLDER.sub(lambda found: "/" if found[1] == "SURL" else "1", name)  # SURL is any text
            if _TASK_ID not in parts or not is_safe(filled):
                raise OutputNameError(
                    f"{name!r} cannot be the name of an output or log: it must have the task's number, {_TASK_ID}, "
                    "between points, and otherwise only letters, digits and . _ + : @ = -"
                )
            if parts[0] == "user" and not any(_begins_as(owner, parts) for owner in owners):
                raise OutputNameError(
                    f"{name!r} would be an output of another user: yours begin with user.{owners[0]}."
                )

    def job(self, *, task_id: int, number: int, attempt_nr: int) -> JobTexts:
        """Returns parameters and files of one job.

        Args:
            task_id: the task.
            number: number of the job in its task, from 1.
            attempt_nr: from 1.
        """
        values: dict[str, int | str] = {
            "SN": number,
            "SN/P": f"{number:06d}",
            "JEDITASKID": task_id,
            "ATTEMPTNR": attempt_nr,
            "MAXEVENTS": self.n_events_per_job,
            "SKIPEVENTS": 0,
            "FIRSTEVENT": (number - 1) * self.n_events_per_job,
            "SURL": self.source_url,
        }
        job_pars = "".join(piece.fill(values, number) for piece in self._pieces)
        files = tuple(OutputFile(file.piece.fill(values, number), file.dataset, file.kind) for file in self._files)
        sequence = None if self.sequence_offset is None else self.sequence_offset + number
        return JobTexts(job_pars, files, self._steps(job_pars), sequence)

    def _steps(self, job_pars: str) -> dict[str, Any] | None:
        steps = self.params.get("multiStepExec")
        if not isinstance(steps, dict):
            return None
        return {
            step: {
                key: str(value).replace("${TRF_ARGS}", job_pars).replace("${TRF}", self.transformation)
                for key, value in settings.items()
            }
            for step, settings in steps.items()
            if isinstance(settings, dict)
        }


def _begins_as(owner: str, parts: Sequence[str]) -> bool:
    """Returns whether a name that begins with ``user.`` is one of this user's files.

    Only letters and digits count: panda-client lets users replace the others in their nickname. Of a nickname with
    points prun takes the first part, before the task's number.
    """
    begins = ["".join(parts[1:end]) for end in range(2, len(parts))]
    short = owner.split(".", maxsplit=1)[0]
    return _plain(owner) in map(_plain, begins) or parts[1:3] == [short, _TASK_ID]


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name)


def _names(value: object) -> tuple[str, ...]:
    """Returns site names, given as a list or with commas between."""
    if not value:
        return ()
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TaskParametersError(f"sites must be a list of names, not {value!r}")
    return tuple(name.strip() for name in names if name.strip())


_LIMIT, _LIMIT_BYTES = 512, 64 << 20  # tasks kept in memory, and the length of their parameters


@dataclass(frozen=True)
class KnownTask:
    """A task with its parsed parameters, of length `size`, valid until they change."""

    task_id: int
    name: str
    user_name: str
    vo: str
    parameters: TaskParameters
    size: int


_REVISION = select(tasks.c.revision).where(tasks.c.task_id == bindparam("task_id"))
_TASK = select(tasks.c.name, tasks.c.user_name, tasks.c.vo, tasks.c.params).where(
    tasks.c.task_id == bindparam("task_id")
)


def known_task(tx: Transaction, task_id: int, row: AnyRow | None = None) -> KnownTask:
    """Returns a task with its parameters. It must exist and not be broken. `row`: its whole row, if there is one."""
    revision = tx.revisions.get(task_id) if row is None else row.revision
    if revision is None:
        revision = tx.connection.execute(_REVISION, {"task_id": task_id}).scalar_one()
    known = tx.cache.get((task_id, revision))
    if known is None:
        row = tx.connection.execute(_TASK, {"task_id": task_id}).one() if row is None else row
        parameters = TaskParameters(json.loads(row.params))
        known = KnownTask(task_id, row.name, row.user_name, row.vo, parameters, len(row.params))
        size = known.size + sum(one.size for one in list(tx.cache.values()))
        if len(tx.cache) >= _LIMIT or size > _LIMIT_BYTES:
            # The oldest are removed first. The other thread may do the same, so a missing key is not an error.
            for key, one in list(tx.cache.items()):
                tx.cache.pop(key, None)
                size -= one.size
                if len(tx.cache) <= _LIMIT // 2 and size <= _LIMIT_BYTES // 2:
                    break
        tx.cache[task_id, revision] = known
    assert isinstance(known, KnownTask)  # for the type checker
    return known
