"""From the server's job descriptions and metadata to `JobReport`: the one place that knows their keys.

Sources: panda-server 1.0.4 `taskbuffer/JobSpec.py` (attributes, error pairs) and `get_metadata_for_analysis_jobs`; what
the metadata holds is written by `hpo_pilot_runner.py`.
"""

from __future__ import annotations

import calendar
import math
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from hpo_pilot.jobs import JobReport, JobState, Verdict

#: Error sources of a PanDA job, in the order in which they explain best.
_ERROR_SOURCES = ("exe", "pilot", "ddm", "brokerage", "jobDispatcher", "taskBuffer", "sup")

#: States of real servers that mean one of ours.
_STATES = {
    "assigned": JobState.DEFINED,
    "pending": JobState.DEFINED,
    "waiting": JobState.DEFINED,
    "throttled": JobState.DEFINED,
    "merging": JobState.HOLDING,
}

#: Larger steps lose digits as JSON numbers.
_LARGEST_STEP = 2**53

_NUMBER = re.compile(r"--number(?:%20|\s)+(\d+)")
_PROGRESS = re.compile(r"hpoStep=(\d+) hpoValue=(\S+)")


def read_verdict(metadata: object) -> Verdict | None:
    """The runner's word in a job's metadata; None where there is none (a payload of somebody else's)."""
    if not isinstance(metadata, Mapping):
        return None
    merged = metadata.get("user_job_metadata")
    ours = merged.get("hpo_pilot") if isinstance(merged, Mapping) else None
    if not isinstance(ours, Mapping):
        return None
    try:
        value = _number(ours["value"]) if ours["status"] == 0 else None
        return Verdict(
            uid=str(ours["uid"]),
            generation=int(ours["generation"]),
            trial=int(ours["trial"]),
            fold=int(ours["fold"]),
            number=int(ours["number"]),
            attempt=int(ours.get("attempt", 1)),
            value=value,
            message=str(ours.get("message", ""))
            or ("" if value is not None else "the payload failed without a reason"),
            metrics=dict(ours.get("metrics") or {}),
            log_tail=ours.get("log_tail"),
            seconds=_number(ours.get("seconds")),
            started=_number(ours.get("started")),
            ended=_number(ours.get("ended")),
            node=ours.get("node"),
            progress=_progress(ours.get("progress") or ()),
            has_outputs=bool(ours.get("outputs")),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def read_description(job: Mapping[str, Any], metadata: object) -> JobReport:
    """One job as `task/get_job_descriptions` gives it, with its metadata if it has any."""
    state = job_state(str(job.get("jobStatus")))
    number = _NUMBER.search(str(job.get("jobParameters") or ""))
    progress = _PROGRESS.search(str(job.get("jobMetrics") or ""))
    return JobReport(
        panda_id=int(job["PandaID"]),
        state=state,
        attempt=int(job.get("attemptNr") or 1),
        number=int(number[1]) if number else None,
        verdict=read_verdict(metadata) if state is JobState.FINISHED else None,
        error=_error(job),
        node=_text(job.get("modificationHost")),
        started=_seconds(job.get("startTime")),
        ended=_seconds(job.get("endTime")),
        progress=next(iter(_progress([(progress[1], progress[2])] if progress else ())), None),
    )


def finished_report(panda_id: int, verdict: Verdict) -> JobReport:
    """A job of which only the metadata was asked for: it has some, so it finished."""
    return JobReport(
        panda_id=panda_id,
        state=JobState.FINISHED,
        attempt=verdict.attempt,
        number=verdict.number,
        verdict=verdict,
        node=verdict.node,
        started=verdict.started,
        ended=verdict.ended,
    )


def job_state(name: str) -> JobState:
    """PanDA's word for a job's state as ours; an unknown one counts as not started."""
    if name in _STATES:
        return _STATES[name]
    try:
        return JobState(name)
    except ValueError:
        return JobState.DEFINED


def _error(job: Mapping[str, Any]) -> str | None:
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
    """The value as a finite float; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _progress(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[int, float], ...]:
    """(step, value) pairs; those that are no numbers, or whose step no database takes, are left out."""
    found = []
    for step, value in pairs:
        at, shown = _number(step), _number(value)
        if at is not None and shown is not None and abs(at) <= _LARGEST_STEP:
            found.append((int(at), shown))
    return tuple(found)


def _seconds(value: object) -> float | None:
    """A server's time (UTC, `YYYY-MM-DD hh:mm:ss[.f]`, perhaps with a T) as seconds since the epoch."""
    text = _text(value)
    if text is None:
        return None
    try:
        whole = calendar.timegm(time.strptime(text[:19].replace("T", " "), "%Y-%m-%d %H:%M:%S"))
        return whole + (float("0" + text[19:26]) if text[19:20] == "." else 0.0)
    except ValueError:
        return None
