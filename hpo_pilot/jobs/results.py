"""Parses a server's job descriptions and metadata into `JobReport`; no other module reads their keys.

Sources: panda-server 1.0.4 `taskbuffer/JobSpec.py` (attributes, error pairs) and `get_metadata_for_analysis_jobs`; what
the metadata holds is written by `hpo_pilot_runner.py` and, for jobs that run several points, `hpo_pilot_series.py`.
"""

from __future__ import annotations

import calendar
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpo_pilot.jobs.tasks import JobReport, JobState, Verdict

#: Error sources of a PanDA job, the most informative first.
_ERROR_SOURCES = ("exe", "pilot", "ddm", "brokerage", "jobDispatcher", "taskBuffer", "sup")

#: States of real servers as ours.
_STATES = {
    "assigned": JobState.DEFINED,
    "pending": JobState.DEFINED,
    "waiting": JobState.DEFINED,
    "throttled": JobState.DEFINED,
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

#: Keys that `hpo_pilot_hpogrid.py` adds to the metadata.
_HPOGRID_KEYS = frozenset(
    {
        *("project_name", "start_datetime", "end_datetime", "start_timestamp", "task_time_s", "hyperparameters"),
        *("metric", "mode", "best_config", "best_metric_score", "result"),
    }
)

#: Texts of figures that are not finite.
_NOT_FINITE = ("nan", "inf", "-inf")

#: The runner's status of a member that did not end within the job's time.
_NOT_RUN = 2


def read_verdicts(metadata: object) -> tuple[Verdict, ...]:
    """Returns the runner's reports in a job's metadata; none for a payload without our runner."""
    merged = metadata.get("user_job_metadata") if isinstance(metadata, Mapping) else None
    ours = merged.get("hpo_pilot") if isinstance(merged, Mapping) else None
    if not isinstance(merged, Mapping) or not isinstance(ours, Mapping):
        return ()
    members = ours.get("members")
    if isinstance(members, list):
        found = [_verdict(member, member.get("metadata")) for member in members if isinstance(member, Mapping)]
    else:
        # The runner itself wrote the figures under hpogrid's keys: they repeat its report.
        not_the_payloads = {"hpo_pilot", *(_HPOGRID_KEYS if ours.get("hpogrid") else ())}
        found = [_verdict(ours, {key: value for key, value in merged.items() if key not in not_the_payloads} or None)]
    return tuple(verdict for verdict in found if verdict is not None)


def _verdict(ours: Mapping[str, Any], metadata: object) -> Verdict | None:
    """Returns the report on one member; None: it is not from the runner."""
    try:
        value = _number(ours["value"]) if ours["status"] == 0 else None
        values = [_number(figure) for figure in ours.get("values") or (value,)]
        trial, fold, ran_in = int(ours["trial"]), int(ours["fold"]), ours.get("ran_in")
        return Verdict(
            uid=str(ours["uid"]),
            generation=int(ours["generation"]),
            trial=trial,
            fold=fold,
            number=int(ours["number"]),
            attempt=int(ours.get("attempt", 1)),
            value=value,
            was_run=ours["status"] != _NOT_RUN,
            ran_in=None if ran_in is None else int(ran_in),
            message=str(ours.get("message", ""))
            or ("" if value is not None else "the payload failed without a reason"),
            metrics=dict(ours.get("metrics") or {}),
            metadata=metadata if isinstance(metadata, Mapping) else None,
            log_tail=ours.get("log_tail"),
            seconds=_number(ours.get("seconds")),
            started=_number(ours.get("started")),
            ended=_number(ours.get("ended")),
            node=ours.get("node"),
            progress=_progress(ours.get("progress") or ()),
            has_outputs=bool(ours.get("outputs")),
            values=tuple(figure for figure in values if figure is not None),
            folder=f"t{trial}f{fold}" if ours.get("folder") else "",
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def read_description(job: Mapping[str, Any], metadata: object) -> JobReport:
    """One job as `task/get_job_descriptions` gives it, with its metadata if it has any."""
    state = job_state(str(job.get("jobStatus")))
    number = _NUMBER.search(str(job.get("jobParameters") or ""))
    metrics = str(job.get("jobMetrics") or "")
    running = _RUNNING.search(metrics)
    return JobReport(
        panda_id=int(job["PandaID"]),
        state=state,
        attempt=int(job.get("attemptNr") or 1),
        number=int(number[1]) if number else None,
        verdicts=read_verdicts(metadata) if state is JobState.FINISHED else (),
        error=error_text(job),
        node=_text(job.get("modificationHost")),
        started=_seconds(job.get("startTime")),
        ended=_seconds(job.get("endTime")),
        running=(int(running[1]), int(running[2])) if running else None,
        progress=reported_progress(metrics),
    )


def finished_report(panda_id: int, verdicts: Sequence[Verdict]) -> JobReport:
    """Returns the report of a job from its metadata alone. It has metadata, so it finished.

    Args:
        panda_id: the job.
        verdicts: the verdicts in its metadata; at least one.
    """
    first = verdicts[0]
    started = [verdict.started for verdict in verdicts if verdict.started is not None and verdict.ran_in is None]
    return JobReport(
        panda_id=panda_id,
        state=JobState.FINISHED,
        attempt=first.attempt,
        number=first.number,
        verdicts=tuple(verdicts),
        node=first.node,
        started=min(started, default=None),
        ended=max((verdict.ended for verdict in verdicts if verdict.ended is not None), default=None),
    )


def output_did(job: Mapping[str, Any]) -> str | None:
    """Rucio's name, ``scope:file``, of a job's packed outputs as its description has it; None where it has none.

    A retried job's file has another number than the job had before: only the description knows it.
    """
    for file in job.get("Files") or ():
        name = str(file.get("lfn") or "")
        if file.get("type") == "output" and name.endswith(f".{OUTPUTS}"):
            # Only some collaborations' servers name scopes; the others' are what Rucio would take from the name.
            scope = _text(file.get("scope")) or ".".join(name.split(".")[:2])
            return f"{scope}:{name}"
    return None


def job_state(name: str) -> JobState:
    """PanDA's word for a job's state as ours; an unknown one counts as not started."""
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
