"""Reports on jobs: intermediate values, the arguments of `update_job`, and metrics for Prometheus."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from hpo_pilot.files import write_whole
from hpo_pilot.jobs.results import RunReport, parse_reports
from hpo_pilot.pilot.job import Job, JobFailure, PilotErrorCode
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.transformation.job import (
    METADATA_LIMIT,
    USER_METADATA,
    PayloadSettings,
    TransformationFailure,
    job_report,
)

log = logging.getLogger(__name__)

#: Characters of `jobMetrics` that a PanDA server keeps.
METRICS = 500

#: Bytes that are read at once; of a file that grows faster only the end is read.
_READ = 4 << 20

#: Number of values that are kept, and that are shown if they fit; see `thinned`.
_KEPT = 200
_SHOWN = 48

_LARGEST_STEP = 2**53


class Progress:
    """Intermediate values that one job has reported so far. Used by one thread at a time.

    The payload appends lines such as ``{"step": 3, "loss": 0.25}`` to progress.jsonl: the step is a whole number from
    0, the figure of merit has its own name or ``value``. NaN and infinity are reported as ``nan``: the training
    diverges. Other lines (incomplete, not a number) are skipped. Of two lines with the same step the first counts.
    """

    def __init__(self, folder: Path, document: PayloadSettings | None = None) -> None:
        """Reads nothing yet.

        Args:
            folder: where the payload runs.
            document: description of the payload: the names of the file and of the figure of merit.
        """
        document = document or PayloadSettings()
        self._path = folder / document.progress
        self._keys = (document.metric, "value")
        self._gpus = document.gpus * document.nodes
        self._values: list[tuple[int, float]] = []
        self._member = ""
        self._offset = 0
        self._seen: tuple[int, int, str] | None = None

    def has_news(self) -> bool:
        """Returns whether the file has changed since it was last read."""
        return self._look() not in (None, self._seen)

    def text(self, room: int = METRICS) -> str:
        """Returns the values as text for a heartbeat, of at most `room` characters; empty: there are none.

        Example: ``nGPU=2 hpoStep=12 hpoValue=0.345 hpoPast=1:0.9,2:0.72``. nGPU is the number of the job's GPUs;
        BigPanDA recognises GPU jobs by it. The value of the last step comes first, then earlier ones with six digits.
        In a job of several points ``hpoMember=t3f0`` names the point of these values.
        """
        self._read()
        gpus = f"nGPU={self._gpus} " if self._gpus else ""
        if not self._values:
            return f"{gpus}{self._member}".rstrip()[:room]
        return progress_text(self._values, room, gpus, self._member)

    def _look(self) -> tuple[int, int, str] | None:
        """Returns size, time and point of the file; None: there is no file now."""
        try:
            linked = self._path.readlink().parts[:1] if self._path.is_symlink() else ()  # a payload may link it to "."
            member = f"hpoMember={linked[0]}" if linked else ""
            if not self._path.is_file():  # reading a pipe could block
                return (0, 0, member) if member else None
            status = self._path.stat()
        except OSError:
            return None  # removed: the next point begins
        return status.st_size, status.st_mtime_ns, member

    def _read(self) -> None:
        """Reads the added lines."""
        now = self._look()
        if now is None or now == self._seen:
            return
        size, _, member = now
        if member != self._member or size < self._offset:  # the next point's file, or a new one
            self._values, self._member, self._offset = [], member, 0
        begin, data = max(self._offset, size - _READ), b""
        try:
            if size:
                with self._path.open("rb") as file:
                    file.seek(begin)
                    data = file.read(_READ)
        except OSError:
            return
        self._seen = now
        lines = data.split(b"\n")
        for line in lines:  # an incomplete first line, after skipped bytes, is ignored
            self._take(line)
        self._offset = begin + len(data) - len(lines[-1])  # the last line may be incomplete

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            step = _number(entry["step"])
            value = _number(next(entry[key] for key in self._keys if key in entry))
        except (ValueError, TypeError, KeyError, RecursionError, StopIteration):
            return  # incomplete, or not a value
        if 0 <= step <= _LARGEST_STEP:
            _insert(self._values, int(step), value if math.isfinite(value) else math.nan)
        if len(self._values) > 2 * _KEPT:
            self._values = thinned(self._values, _KEPT)


def progress_text(values: Sequence[tuple[int, float]], room: int = METRICS, gpus: str = "", member: str = "") -> str:
    """Returns (step, value) pairs, at least one, as the text of `Progress.text`."""
    *past, (step, value) = values
    head = f"{gpus}hpoStep={step} hpoValue={value!r} {member}".rstrip()
    for most in range(_SHOWN, 0, -4):
        shown = ",".join(f"{at}:{earlier:.6g}" for at, earlier in thinned(past, most))
        whole = f"{head} hpoPast={shown}" if shown else head
        if len(whole) <= room:
            return whole
    return head[:room]


def _number(value: object) -> float:
    """Returns the value as a float; infinity if it is too large for one.

    Raises:
        TypeError: it is not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(type(value))
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _insert(values: list[tuple[int, float]], step: int, value: float) -> None:
    """Inserts a value in the order of steps, unless the step has a value."""
    place = bisect_left(values, step, key=itemgetter(0))
    if place == len(values) or values[place][0] != step:
        values.insert(place, (step, value))


def thinned(values: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """Returns at most `most` values: the newest half unchanged, and some older ones at growing distances.

    Args:
        values: (step, value), with increasing steps from 0 or more.
        most: 1 or more.
    """
    if len(values) <= most:
        return list(values)
    newest = (most + 1) // 2
    old, new = values[:-newest], list(values[-newest:])
    room = most - newest
    if not room:
        return new
    first, last = old[0][0] + 1, old[-1][0] + 1
    kept: list[tuple[int, float]] = []
    target = float(first)
    for value in old:
        if value[0] + 1 >= target and len(kept) < room:
            kept.append(value)
            left = room - len(kept)  # spread anew, for steps may have gaps
            target = (value[0] + 1) * (last / (value[0] + 1)) ** (1 / left) if left else math.inf
    return kept + new


class StartingJob:
    """A job before its command runs, for the heartbeats.

    It may wait for nodes, and fetching its inputs may take longer than a server waits for a report.
    """

    phase = "starting"
    report_seconds = 0.0

    def __init__(self, job: Job, folder: Path, draining: threading.Event) -> None:
        """Makes the record of a job that starts; `draining` is set when the pilot is about to end."""
        self.job = job
        self.progress = Progress(folder)
        self.started = time.time()
        self.failure: JobFailure | None = None
        self.draining = draining

    def stop(self, failure: JobFailure) -> None:
        """Notes that the server does not want the job any more."""
        self.failure = failure

    def is_over(self) -> bool:
        """Returns whether its inputs are not needed any more."""
        return self.failure is not None or self.draining.is_set()


def payload_succeeded(folder: Path) -> bool | None:
    """Returns whether every point of a job has a figure of merit, as the runner reports.

    None: there is no report, or the runner is not ours.
    """
    reports = _reports(folder)
    return all(report.status == "ok" for report in reports) if reports else None


def _reports(folder: Path) -> Sequence[RunReport]:
    """Returns the runner's reports; none: there are none, or the runner is not ours."""
    try:
        metadata = json.loads((folder / USER_METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ()
    return parse_reports({"user_job_metadata": metadata})


def failed_folds(folder: Path) -> set[tuple[int, int]]:
    """Returns (trial, fold) of a job's points without a figure of merit."""
    return failed_in(_reports(folder))


def failed_in(reports: Sequence[RunReport]) -> set[tuple[int, int]]:
    """Returns (trial, fold) of reports without a figure of merit."""
    return {(report.trial, report.fold) for report in reports if report.status != "ok"}


def note_metric(folder: Path, name: str, value: float) -> None:
    """Adds a figure that the pilot measured to the verdict in a job's metadata, or to that on the job's first point.

    Args:
        folder: where the job ran; nothing happens if there is no verdict of our runner.
        name: of a line of `hpo_pilot.jobs.results.MEASURES`.
        value: the figure.
    """

    def add(verdicts: list[dict[str, Any]]) -> None:
        verdicts[0]["metrics"] = {**(verdicts[0].get("metrics") or {}), name: round(value, 3)}

    _change_verdicts(folder, add)


def note_remarks(folder: Path, remarks: Mapping[tuple[int, int], str]) -> None:
    """Adds remarks to the messages of a job's verdicts, by (trial, fold)."""

    def add(verdicts: list[dict[str, Any]]) -> None:
        for verdict in verdicts:
            if remark := remarks.get((verdict["trial"], verdict["fold"])):
                verdict["message"] = "; ".join(filter(None, (verdict.get("message"), remark)))

    if remarks:
        _change_verdicts(folder, add)


def _change_verdicts(folder: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Changes the verdicts of our runner in a job's metadata, if there are some and they stay small enough."""
    path = folder / USER_METADATA
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        verdict = said["hpo_pilot"]
        change(verdict.get("members", [verdict]))
        text = json.dumps(said)
        if len(text) < METADATA_LIMIT:
            write_whole(path, text, scratch=True)
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        log.warning("%s has no valid report that could be added to: %r", path, error)


_DIAGNOSIS = 500  # characters that the server keeps


@dataclass(frozen=True)
class Outcome:
    """How a job ended at this pilot.

    Attributes:
        exit_code: exit code of the command; negative: a signal. None: the command never ran.
        last_line: last line of the runner's log.
        failure: why the pilot reports it as failed; None: the exit code decides.
        started: unix time; 0: never.
        cpu_seconds: CPU time of all its processes.
        max_rss_kb: largest memory of one of its processes.
    """

    exit_code: int | None
    last_line: str = ""
    failure: JobFailure | None = None
    started: float = 0.0
    ended: float = field(default_factory=time.time)
    cpu_seconds: float = 0.0
    max_rss_kb: int = 0

    @property
    def finished(self) -> bool:
        """Whether the job is reported as finished."""
        return self.failure is None and self.exit_code == 0


class ReportedJob(Protocol):
    """A job that starts or runs."""

    phase: str
    job: Job
    started: float
    progress: Progress


def heartbeat_report(settings: PilotSettings, reported: ReportedJob) -> dict[str, Any]:
    """Returns the report on a job that starts or runs."""
    report = _report(settings, reported.job.panda_id, reported.job.attempt, reported.phase)
    report["start_time"] = _moment(reported.started)
    if metrics := reported.progress.text():
        report["job_metrics"] = metrics
    return report


def final_report(
    settings: PilotSettings, panda_id: int, attempt: int, outcome: Outcome, folder: Path, stored: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the final report on a job.

    Args:
        settings: settings of this pilot.
        panda_id: PandaID of the job.
        attempt: attempt number.
        outcome: how it ended.
        folder: where it ran.
        stored: output files for `job_output_report`.
    """
    report = _report(settings, panda_id, attempt, "finished" if outcome.finished else "failed")
    report["end_time"] = _moment(outcome.ended)
    report["start_time"] = _moment(outcome.started or outcome.ended)
    report["cpu_consumption_time"] = round(outcome.cpu_seconds)
    report["cpu_consumption_unit"] = "s"
    if outcome.max_rss_kb:
        report["max_rss"] = outcome.max_rss_kb
    if outcome.exit_code is not None:
        report["trans_exit_code"] = outcome.exit_code if outcome.exit_code >= 0 else 128 - outcome.exit_code
    if outcome.failure is not None:
        report["pilot_error_code"] = int(outcome.failure.code)
        report["pilot_error_diag"] = str(outcome.failure)[:_DIAGNOSIS]
    elif not outcome.finished:
        said = outcome.last_line or f"the command ended with status {outcome.exit_code}"
        report["pilot_error_code"] = int(PilotErrorCode.PAYLOAD_EXECUTION_FAILURE)
        report["exe_error_code"] = report["trans_exit_code"]
        report["exe_error_diag"] = report["pilot_error_diag"] = said[:_DIAGNOSIS]
    results = _results(folder) if outcome.finished else ""
    if metrics := f"{results} {_last_metrics(folder, METRICS - len(results) - 1)}".strip():
        report["job_metrics"] = metrics
    if outcome.finished:
        report["meta_data"] = job_report(str(folder))
    if stored:
        report["job_output_report"] = json.dumps(stored)
    return report


#: Characters of `jobMetrics` for the results; the rest is for intermediate values.
_RESULTS = 200


def _results(folder: Path) -> str:
    """Returns the results of a job as text for BigPanDA's page of the job, and for its filter ``jobmetrics``.

    Example: ``hpoResults=t3f0:0.345,t3f1:failed``: trial and fold, with the figures of merit. A job whose training
    failed is finished for PanDA, so without this text BigPanDA would show it as a good one.
    """
    text = ""
    for report in _reports(folder):
        result = "/".join(f"{value:.6g}" for value in report.values) or report.status.replace(" ", "_")
        more = f"{',' if text else 'hpoResults='}t{report.trial}f{report.fold}:{result}"
        if len(text) + len(more) > _RESULTS:
            break
        text += more
    return text


def _last_metrics(folder: Path, room: int) -> str:
    """Returns the intermediate values at the end of the payload."""
    try:
        document = PayloadSettings.read(str(folder))
    except TransformationFailure:
        document = PayloadSettings()  # the error was reported when the job started
    return Progress(folder, document).text(room)


def _report(settings: PilotSettings, panda_id: int, attempt: int, status: str) -> dict[str, Any]:
    return {
        "job_id": panda_id,
        "attempt_nr": attempt,
        "job_status": status,
        "node": settings.node,
        "site_name": settings.queue,
        "pilot_id": f"hpo-pilot|{settings.harvester_id}|{settings.worker_id}",
        "batch_id": str(settings.worker_id),
    }


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


# Metrics for Prometheus. One process is one pilot, so they are module variables.

METRICS_REGISTRY = CollectorRegistry()
ProcessCollector(registry=METRICS_REGISTRY)

_ENDED = Counter(
    "hpo_pilot_pilot_jobs_ended",
    "Jobs that have ended at this pilot; `reason` is the class of the failure, empty for a success.",
    ["outcome", "reason"],
    registry=METRICS_REGISTRY,
)
STAGE_IN = Histogram(
    "hpo_pilot_pilot_stage_in_seconds",
    "Seconds to make a job ready: to unpack its sandbox, fetch its inputs, copy them to its nodes.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
    registry=METRICS_REGISTRY,
)
_CONTACT = Gauge(
    "hpo_pilot_pilot_server_contact_timestamp_seconds",
    "When the PanDA server last answered, in seconds since the epoch; 0: never.",
    registry=METRICS_REGISTRY,
)
_AWAY = Counter(
    "hpo_pilot_pilot_server_errors",
    "Calls to the PanDA server that failed and are repeated.",
    registry=METRICS_REGISTRY,
)


def count_job_end(outcome: Outcome, *, given_back: bool) -> None:
    """Counts a job that has ended."""
    ending, reason = "given_back" if given_back else "finished" if outcome.finished else "failed", ""
    if ending == "failed":  # a fixed set of labels: messages would give an unlimited number of them
        reason = outcome.failure.code.name.lower() if outcome.failure else "payload"
    _ENDED.labels(ending, reason).inc()


def note_answer(*, is_good: bool) -> None:
    """Records whether the PanDA server has answered."""
    if is_good:
        _CONTACT.set_to_current_time()
    else:
        _AWAY.inc()
