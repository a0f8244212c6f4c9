"""Jobs with all that is shown of them: PanDA's documents, BigPanDA's JSON and the pages only choose and name it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, TextClause, func, select

from hpo_pilot.jobs import JobState
from hpo_pilot.server.database import AnyRow, Transaction, job_documents, jobs
from hpo_pilot.server.task_parameters import JobTexts, KnownTask, known_task, resource_type

#: Returns the path of a file in the storages, by its name; None: it is not there.
FindFile = Callable[[str], Path | None]

#: Sources of errors, in BigPanDA's order: its name, JobSpec's name of the code, the columns of code and text. All but
#: the last have a text, under the name of the code with Diag instead of Code.
ERRORS = (
    ("executor", "exeErrorCode", "exe_error_code", "exe_error_diag"),
    ("jobdispatcher", "jobDispatcherErrorCode", "dispatcher_error_code", "dispatcher_error_diag"),
    ("pilot", "pilotErrorCode", "pilot_error_code", "pilot_error_diag"),
    ("taskbuffer", "taskBufferErrorCode", "buffer_error_code", "buffer_error_diag"),
    ("transform", "transExitCode", "trans_exit_code", ""),
)

_FILE_STATES = {JobState.FINISHED: "ready", JobState.FAILED: "failed", JobState.CANCELLED: "cancelled"}

#: The largest difference between the clocks of server and storage, in seconds.
_CLOCKS = 0.5


#: The queue where a job is or waits; empty: any.
queue_of_job: ColumnElement[Any] = func.coalesce(jobs.c.site, jobs.c.queue)


def scope(dataset: str) -> str:
    """Returns the scope of a dataset's files: ``user.me`` of ``user.me.x/``, or the text before a colon."""
    if ":" in dataset:
        return dataset.split(":", maxsplit=1)[0]
    fields = dataset.split(".")
    return ".".join(fields[:2]) if fields[0] in ("user", "group") else fields[0]


def texts_of(known: KnownTask, job: AnyRow) -> JobTexts:
    """Returns the parameters and files of a job."""
    return known.parameters.job(task_id=known.task_id, number=job.number, attempt_nr=job.attempt_nr)


class JobError(NamedTuple):
    """An error of a job.

    Attributes:
        source: BigPanDA's name of the part that reported it.
        field: JobSpec's name of `code`.
        text: empty: it has none.
    """

    source: str
    field: str
    code: int
    text: str


class JobFile(NamedTuple):
    """A file that a job writes, or its number in the dataset of numbers (`kind` pseudo_input).

    Attributes:
        panda_id: the job.
        place: position of its dataset in the task, from 1.
        status: PanDA's word: ready, failed, cancelled, unknown.
    """

    panda_id: int
    lfn: str
    dataset: str
    kind: str
    place: int
    status: str

    @property
    def guid(self) -> str:
        """Its GUID: always the same, so it needs no column."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.panda_id}/{self.lfn}"))

    def size(self, find: FindFile) -> int | None:
        """Returns its size in bytes; None: it is not in the storages."""
        path = find(self.lfn)
        return path.stat().st_size if path is not None and path.is_file() else None


class JobRecord:
    """An attempt of a job: its row, its task, and what follows from them."""

    def __init__(self, known: KnownTask, row: AnyRow) -> None:
        """Joins a row with its task; a property needs the columns that it reads."""
        self.known = known
        self.parameters = known.parameters
        self.row = row

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.known.name}.{self.row.panda_id}"

    @property
    def queue(self) -> str:
        """The queue where it is or waits; empty: any."""
        return str(self.row.site or self.row.queue)

    @property
    def resource_type(self) -> str:
        """PanDA's resource type."""
        return resource_type(self.row.core_count, self.row.ram_mb)

    @property
    def is_over(self) -> bool:
        """Whether the attempt has ended."""
        return JobState(self.row.status).is_over

    @property
    def heard(self) -> float | None:
        """Time of the last report; None: there is none."""
        heartbeat: float | None = self.row.heartbeat
        return None if heartbeat is None else heartbeat - (0.0 if self.is_over else self.row.patience)

    @property
    def reported(self) -> dict[str, Any]:
        """Values that the pilot measured, by JobSpec's names."""
        return json.loads(self.row.report) if self.row.report else {}

    @property
    def errors(self) -> list[JobError]:
        """Its errors."""
        found = []
        for source, field, code_column, text_column in ERRORS:
            if code := getattr(self.row, code_column):
                text = getattr(self.row, text_column) if text_column else f"Unknown transformation exit code {code}"
                found.append(JobError(source, field, code, text or ""))
        return found

    @cached_property
    def texts(self) -> JobTexts:
        """Its parameters and files as its task gives them."""
        return texts_of(self.known, self.row)

    @cached_property
    def files(self) -> list[JobFile]:
        """Its number, if the task counts its jobs, then its outputs and logs."""
        places = {dataset: place for place, dataset in enumerate(self.parameters.datasets, start=1)}
        numbers = (self.parameters.sequence_dataset, "pseudo_input")
        panda_id, texts = self.row.panda_id, self.texts
        found = []
        if texts.sequence is not None:
            found.append(JobFile(panda_id, str(texts.sequence), *numbers, places[numbers], "ready"))
        status = _FILE_STATES.get(JobState(self.row.status), "unknown")
        for file in texts.files:
            place = places[file.dataset, file.kind]
            found.append(JobFile(panda_id, file.lfn, file.dataset, file.kind, place, status))
        return found

    @property
    def outputs(self) -> list[JobFile]:
        """Its outputs and logs."""
        return [file for file in self.files if file.kind != "pseudo_input"]

    def log_file(self, find: FindFile) -> Path | None:
        """Returns the log that its pilot stored; None: there is none, or the file is of another attempt."""
        if not self.is_over:
            return None
        name = next((file.lfn for file in self.texts.files if file.kind == "log"), "")
        path = find(name) if name else None
        if path is None:
            return None
        try:
            stored = path.stat().st_mtime
        except OSError:
            return None  # removed just now
        return path if self.row.created - _CLOCKS <= stored <= self.row.state_changed + _CLOCKS else None


def job_records(tx: Transaction, rows: Iterable[AnyRow]) -> list[JobRecord]:
    """Returns the records of rows; each task is looked up once."""
    listed = list(rows)
    known = {task_id: known_task(tx, task_id) for task_id in {row.task_id for row in listed}}
    return [JobRecord(known[row.task_id], row) for row in listed]


def job_reports(tx: Transaction, *conditions: ColumnElement[bool]) -> Iterator[AnyRow]:
    """Yields task_id, panda_id and meta_data of jobs that have a report, as their pilots sent it; by PandaID."""
    yield from tx.connection.execute(
        select(jobs.c.task_id, jobs.c.panda_id, job_documents.c.meta_data)
        .join(job_documents, job_documents.c.panda_id == jobs.c.panda_id)
        .where(job_documents.c.meta_data.is_not(None), *conditions)
        .order_by(jobs.c.panda_id)
    )


def job_counts(tx: Transaction, *conditions: ColumnElement[bool]) -> dict[tuple[int, str], int]:
    """Returns the number of attempts by task and state."""
    columns = (jobs.c.task_id, jobs.c.status)
    query = select(*columns, func.count().label("n_jobs")).where(*conditions).group_by(*columns)
    return {(row.task_id, row.status): row.n_jobs for row in tx.connection.execute(query)}


def jobs_at_queues(tx: Transaction, condition: ColumnElement[bool] | TextClause) -> dict[tuple[str, str], int]:
    """Returns the number of attempts by queue and state."""
    query = select(queue_of_job, jobs.c.status, func.count()).where(condition).group_by(queue_of_job, jobs.c.status)
    return {(queue, status): n_jobs for queue, status, n_jobs in tx.connection.execute(query)}
