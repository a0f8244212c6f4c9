"""The reports of the runner and of the server on a job, and the only parser of both.

`RunReport` is the runner's report on one fold, and `JobReport` the server's report on one attempt of a job. `Attempt`
is one fold in one attempt of its job, as the store keeps it.

Sources: panda-server 1.0.4 `taskbuffer/JobSpec.py` (attributes, error pairs) and `get_metadata_for_analysis_jobs`.
`hpo_pilot_runner.py` writes the metadata; for jobs that run several points, `hpo_pilot_series.py` writes them.
"""

from __future__ import annotations

import calendar
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from hpo_pilot.jobs.tasks import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The runner's report on one fold, from the metadata of a finished job; steering checks its identity.

    Attributes:
        uid: the search's random identity.
        generation: number of the generation.
        trial: number of the trial.
        fold: number of the fold.
        job: number of the job in its task, from 1.
        attempt: attempt number of the job.
        status: ok: the payload gave its figures of merit; not run: the job's time ended before this fold did.
        values: figures of merit, one for each objective; empty unless the status is ok.
        message: the reason of a failure; of a good run, a remark such as missing outputs.
        ran_in: the attempt of the job that ran it: an attempt skips the folds that an earlier one finished.
        metrics: figures that the runner measured or the payload reported.
        metadata: metadata of the payload itself.
        log_tail: the end of the log.
        seconds: the payload's run time.
        started: start of the payload, in seconds since the epoch.
        ended: end of the payload, in seconds since the epoch.
        node: name of the node.
        progress: (step, value) pairs reported while it ran.
        has_outputs: whether output files were packed.
        folder: the folder of its outputs in the job's packed outputs; empty: all are its own.
        from_start: whether it found no checkpoint of the level below, and trained from the start.
    """

    uid: str
    generation: int
    trial: int
    fold: int
    job: int
    attempt: int = 1
    status: Literal["ok", "failed", "not run"]
    values: tuple[float, ...] = ()
    message: str = ""
    ran_in: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    log_tail: str | None = None
    seconds: float | None = None
    started: float | None = None
    ended: float | None = None
    node: str | None = None
    progress: tuple[tuple[int, float], ...] = ()
    has_outputs: bool = False
    folder: str = ""
    from_start: bool = False


@dataclass(frozen=True)
class JobReport:
    """One attempt of one job, as the server knows it.

    Attributes:
        panda_id: the PandaID.
        state: the state of the attempt.
        attempt: attempt number, from 1.
        number: number of the job in its task, from 1; None: not known.
        reports: the runner's report on each fold, for finished jobs; a finished job without one has failed.
        error: error codes and texts of server and pilot, for jobs that ended without a report of the runner.
        node: name of the node.
        started: start of the job, in seconds since the epoch.
        ended: end of the job, in seconds since the epoch.
        running: (trial, fold) of the fold that runs now, if known.
        progress: (step, value) pairs of that fold in the last heartbeat, by step; infinity: not a finite number.
        output: the server's name of its packed outputs; None: the name in the task's parameters.
    """

    panda_id: int
    state: JobState
    attempt: int
    number: int | None = None
    reports: tuple[RunReport, ...] = ()
    error: str | None = None
    node: str | None = None
    started: float | None = None
    ended: float | None = None
    running: tuple[int, int] | None = None
    progress: tuple[tuple[int, float], ...] = ()
    output: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One fold in one attempt of its job, from the runner's report and the server's. Times in seconds since the epoch.

    It is a row of the store's table `jobs`.

    Attributes:
        task_id: number of the task in the store.
        attempt: attempt number of the job, from 1 in each task; `Fold.attempt` counts over all tasks.
        state: FINISHED with figures of merit, or with an error of the payload itself; FAILED or CANCELLED if the
            infrastructure lost it; NOT_RUN if the job's time ended before this fold; RUNNING and other states before.
        values: figures of merit, one for each objective; empty: none.
        metrics: figures that the runner measured or the payload reported; None: no report of the runner.
        metadata: metadata of the payload itself.
        output: logical file name of its packed outputs at the server, if any; for a job with several folds, with a
            slash and the folder inside.
        seconds: its run time; of a lost attempt, its share of the job's time.
        joules: its energy, if measured.
        progress: new (step, value) pairs; the store keeps them in a table of their own.
    """

    task_id: int = 0
    trial: int
    fold: int
    attempt: int = 1
    state: JobState
    panda_id: int | None = None
    values: tuple[float, ...] = ()
    metrics: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    error: str | None = None
    log_tail: str | None = None
    output: str | None = None
    node: str | None = None
    seconds: float | None = None
    joules: float | None = None
    started: float | None = None
    ended: float | None = None
    progress: tuple[tuple[int, float], ...] = ()

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Identifies the attempt in its search."""
        return (self.task_id, self.trial, self.fold, self.attempt)

    @property
    def value(self) -> float | None:
        """The figure of merit of the first objective; None if there is none."""
        return next(iter(self.values), None)

    @property
    def is_final(self) -> bool:
        """True for figures of merit, or a failure of the payload itself: a retry would repeat it."""
        return self.state is JobState.FINISHED

    @property
    def has_begun(self) -> bool:
        """False if the job's time ended before it came to this fold."""
        return self.state is not JobState.NOT_RUN or bool(self.seconds)


class Measure(NamedTuple):
    """A figure that the runner or the pilot measures for a fold.

    `metrics` of a fold's JSON document and the trial's page show every metric. A measure in `MEASURES` also has a
    column in CSV (the mean over the folds) and a label on the page. To add one, put a key into `metrics` of the
    verdict and a line into `MEASURES`: the runner puts its own figures into `used` of `hpo_pilot_runner.run`, where a
    metric of the payload with the same name replaces them; the pilot calls `report.note_metric` after the job.

    Attributes:
        name: its key in `RunReport.metrics`.
        label: its name in tables for people.
        unit: its unit; %: a fraction of 1, which the report shows in percent.
        of_ranks: whether it describes how the ranks of a training use their time; see `hpo_pilot_ranks.py`.
    """

    name: str
    label: str
    unit: str = ""
    of_ranks: bool = False

    @property
    def heading(self) -> str:
        """Label and unit; figures in percent have the sign themselves."""
        return f"{self.label}, {self.unit}" if self.unit not in ("", "%") else self.label


MEASURES = (
    Measure("energy_joules", "energy", "J"),
    Measure("gpu_energy_joules", "energy of the GPUs", "J"),
    Measure("memory_mb", "memory", "MB"),
    Measure("ranks", "ranks", of_ranks=True),
    Measure("pop_parallel_efficiency", "parallel efficiency", "%", of_ranks=True),
    Measure("pop_load_balance", "load balance", "%", of_ranks=True),
    Measure("pop_communication_efficiency", "communication efficiency", "%", of_ranks=True),
    Measure("pop_input_fraction", "input", "%", of_ranks=True),
    Measure("images_per_second", "images/s", of_ranks=True),
    Measure("stage_in_seconds", "staging", "s", of_ranks=True),
)


#: Texts in errors of jobs that were ended for using too much, by the figure: the runner's, the pilots' and Slurm's.
RAN_OUT = {
    "memory_mb": re.compile(r"memory runs out|of memory|allowed memory|MemoryError|oom[-_ ]kill", re.IGNORECASE),
    "seconds": re.compile(r"time limit|walltime", re.IGNORECASE),
}


def figure_of(metrics: Mapping[str, Any] | None, name: str) -> float | None:
    """Returns a metric as a finite number, else None; payloads may report anything."""
    value = (metrics or {}).get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def from_epoch(seconds: float | None) -> datetime | None:
    """Returns seconds since the epoch as an aware UTC datetime."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


#: Error sources of a PanDA job, the most informative first.
_ERROR_SOURCES = ("exe", "pilot", "ddm", "brokerage", "jobDispatcher", "taskBuffer", "sup")

#: States of real servers as ours.
_STATES = {
    **dict.fromkeys(("assigned", "pending", "waiting", "throttled"), JobState.DEFINED),
    "merging": JobState.HOLDING,
}

#: The runner's file name of a job's packed outputs.
OUTPUTS = "outputs.tar.gz"

#: Most characters of a job's metrics at a server.
_METRICS = 500

#: Larger steps lose digits as JSON numbers.
_LARGEST_STEP = 2**53

_NUMBER = re.compile(r"--number(?:%20|\s)+(\d+)")
_PROGRESS = re.compile(r"hpoStep=(\d+) hpoValue=(\S+)")
_PAST = re.compile(r"hpoPast=(\S+)")
_RUNNING = re.compile(r"hpoMember=t(\d{1,9})f(\d{1,9})\b")

#: Keys that `hpo_pilot_hpogrid.py` adds to the metadata: `kHPOGridMetadataFormat` of `hpogrid/core/defaults.py`.
HPOGRID_KEYS = frozenset(
    {
        *("project_name", "start_datetime", "end_datetime", "start_timestamp", "task_time_s", "hyperparameters"),
        *("metric", "mode", "best_config", "best_metric_score", "result"),
    }
)

#: Texts of figures that are not finite.
_NOT_FINITE = ("nan", "inf", "-inf")

#: The runner's words for the status of a fold.
_STATUS: Mapping[object, Literal["ok", "not run"]] = {0: "ok", 2: "not run"}


def parse_reports(metadata: object) -> tuple[RunReport, ...]:
    """Returns the runner's reports in a job's metadata; none for a payload without our runner."""
    merged = metadata.get("user_job_metadata") if isinstance(metadata, Mapping) else None
    ours = merged.get("hpo_pilot") if isinstance(merged, Mapping) else None
    if not isinstance(merged, Mapping) or not isinstance(ours, Mapping):
        return ()
    members = ours.get("members")
    if isinstance(members, list):
        found = [_report(member, member.get("metadata")) for member in members if isinstance(member, Mapping)]
    else:
        # The runner itself wrote the figures under hpogrid's keys: they repeat its report.
        not_the_payloads = {"hpo_pilot", *(HPOGRID_KEYS if ours.get("hpogrid") else ())}
        found = [_report(ours, {key: value for key, value in merged.items() if key not in not_the_payloads} or None)]
    return tuple(report for report in found if report is not None)


def _report(ours: Mapping[str, Any], metadata: object) -> RunReport | None:
    """Returns the report on one fold; None: it is not from the runner."""
    try:
        status: Literal["ok", "failed", "not run"] = _STATUS.get(ours["status"], "failed")
        if status == "ok" and _number(ours["value"]) is None:
            status = "failed"
        figures = [_number(figure) for figure in ours.get("values") or (ours["value"],)] if status == "ok" else []
        trial, fold, ran_in = int(ours["trial"]), int(ours["fold"]), ours.get("ran_in")
        return RunReport(
            uid=str(ours["uid"]),
            generation=int(ours["generation"]),
            trial=trial,
            fold=fold,
            job=int(ours["number"]),
            attempt=int(ours.get("attempt", 1)),
            status=status,
            values=tuple(figure for figure in figures if figure is not None),
            message=str(ours.get("message", "")) or ("" if status == "ok" else "the payload failed without a reason"),
            ran_in=None if ran_in is None else int(ran_in),
            metrics=dict(ours.get("metrics") or {}),
            metadata=metadata if isinstance(metadata, Mapping) else None,
            log_tail=tail if isinstance(tail := ours.get("log_tail"), str) else None,
            seconds=_number(ours.get("seconds")),
            started=_number(ours.get("started")),
            ended=_number(ours.get("ended")),
            node=node if isinstance(node := ours.get("node"), str) else None,
            progress=_progress(ours.get("progress") or ()),
            has_outputs=bool(ours.get("outputs")),
            folder=f"t{trial}f{fold}" if ours.get("folder") else "",
            from_start=ours.get("from_start") is True,
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def read_description(job: Mapping[str, Any], metadata: object) -> JobReport:
    """Returns the report on a job from its description (`task/get_job_descriptions`) and its metadata, if any."""
    state = job_state(str(job.get("jobStatus")))
    number = _NUMBER.search(str(job.get("jobParameters") or ""))
    metrics = str(job.get("jobMetrics") or "")
    running = _RUNNING.search(metrics)
    return JobReport(
        panda_id=int(job["PandaID"]),
        state=state,
        attempt=int(job.get("attemptNr") or 1),
        number=int(number[1]) if number else None,
        reports=parse_reports(metadata) if state is JobState.FINISHED else (),
        error=error_text(job),
        node=_text(job.get("modificationHost")),
        started=_seconds(job.get("startTime")),
        ended=_seconds(job.get("endTime")),
        running=(int(running[1]), int(running[2])) if running else None,
        progress=reported_progress(metrics),
    )


def finished_report(panda_id: int, reports: Sequence[RunReport]) -> JobReport:
    """Returns the report of a job from its metadata alone. It has metadata, so it finished.

    Args:
        panda_id: the job.
        reports: the runner's reports in its metadata; at least one.
    """
    first = reports[0]
    started = [report.started for report in reports if report.started is not None and report.ran_in is None]
    return JobReport(
        panda_id=panda_id,
        state=JobState.FINISHED,
        attempt=first.attempt,
        number=first.job,
        reports=tuple(reports),
        node=first.node,
        started=min(started, default=None),
        ended=max((report.ended for report in reports if report.ended is not None), default=None),
    )


def output_did(job: Mapping[str, Any]) -> str | None:
    """Returns Rucio's name, ``scope:file``, of a job's packed outputs from its description; None if it has none.

    The file of a retried job has another number than before: only the description has it.
    """
    for file in job.get("Files") or ():
        name = str(file.get("lfn") or "")
        if file.get("type") == "output" and name.endswith(f".{OUTPUTS}"):
            # Only the servers of some collaborations name the scope. Else it follows from the name, as in Rucio.
            scope = _text(file.get("scope")) or ".".join(name.split(".")[:2])
            return f"{scope}:{name}"
    return None


def job_state(name: str) -> JobState:
    """Converts PanDA's state of a job to ours; an unknown state counts as not started."""
    if name in _STATES:
        return _STATES[name]
    try:
        return JobState(name)
    except ValueError:
        return JobState.DEFINED


def error_text(job: Mapping[str, Any]) -> str | None:
    """Returns a job's errors from its description (exeErrorCode, exeErrorDiag, …); None: there are none."""
    parts = []
    for source in _ERROR_SOURCES:
        code, text = job.get(f"{source}ErrorCode"), _text(job.get(f"{source}ErrorDiag"))
        if code and code not in ("NULL", "0"):
            parts.append(f"{source} error {code}: {text}" if text else f"{source} error {code}")
    exit_code = job.get("transExitCode")
    if not parts and exit_code and str(exit_code) not in ("0", "NULL", "None"):
        parts.append(f"exit code {exit_code}")
    return "; ".join(parts) or None


def _text(value: object) -> str | None:
    return None if value in (None, "", "NULL") else str(value)


def _number(value: object) -> float | None:
    """Returns the value as a finite float; None: it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _progress(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[int, float], ...]:
    """Returns the valid (step, value) pairs.

    A pair is left out if one of the two is not a number, or if the step is too large for a database. NaN and infinity,
    which are null in metadata, become infinity: it equals itself, and a database can store it.
    """
    found = []
    for step, value in pairs:
        at, shown = _number(step), _number(value)
        if shown is None and (value is None or str(value).lower() in _NOT_FINITE):
            shown = math.inf
        if at is not None and shown is not None and abs(at) <= _LARGEST_STEP:
            found.append((int(at), shown))
    return tuple(found)


def reported_progress(metrics: str) -> tuple[tuple[int, float], ...]:
    """Returns the (step, value) pairs in the metrics of a running job: earlier ones, then the last."""
    past, last = _PAST.search(metrics), _PROGRESS.search(metrics)
    pairs = [pair.partition(":")[::2] for pair in past[1].split(",")] if past else []
    if past and past.end() == _METRICS:
        pairs.pop()  # a server that cuts them short has cut a number in two
    return _progress([*pairs, last.groups()] if last else ())  # type: ignore[list-item]


def _seconds(value: object) -> float | None:
    """Returns a server's time (UTC, `YYYY-MM-DD hh:mm:ss[.f]`, or with a T) in seconds since the epoch."""
    text = _text(value)
    if text is None:
        return None
    try:
        whole = calendar.timegm(time.strptime(text[:19].replace("T", " "), "%Y-%m-%d %H:%M:%S"))
        return whole + (float("0" + text[19:26]) if text[19:20] == "." else 0.0)
    except ValueError:
        return None
