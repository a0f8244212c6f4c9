"""A pilot's report on a job, from the API's arguments to what `updates` records.

Both APIs come through here; the arguments have the names of the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from hpo_pilot.jobs import JobState
from hpo_pilot.server.access.ownership import PilotIdentity
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.taskbuffer.updates import JobReport, update_job

_REPORTABLE = frozenset(
    {
        JobState.RUNNING,
        JobState.FAILED,
        JobState.FINISHED,
        JobState.HOLDING,
        JobState.STARTING,
        JobState.TRANSFERRING,
    }
)
_INTEGER = 2**31 - 1


def _text(limit: int) -> Callable[[Any], str]:
    return lambda value: str(value)[:limit]


def _whole(value: Any) -> int:
    return max(-_INTEGER, min(int(value), _INTEGER))


def _time(value: str) -> float:
    return datetime.strptime(value, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()


def _kilobytes(value: float) -> float:
    return min(10**10 - 1, int(value) / 1024)


#: Arguments that become columns, with how long or large they may be.
_COLUMNS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "node": ("node", _text(128)),
    "trans_exit_code": ("trans_exit_code", _whole),
    "pilot_error_code": ("pilot_error_code", lambda value: abs(_whole(value))),
    "pilot_error_diag": ("pilot_error_diag", _text(500)),
    "exe_error_code": ("exe_error_code", _whole),
    "exe_error_diag": ("exe_error_diag", _text(500)),
    "job_metrics": ("job_metrics", _text(500)),
    "scheduler_id": ("scheduler_id", _text(128)),
    "pilot_id": ("pilot_id", _text(200)),
    "batch_id": ("batch_id", _text(80)),
    "job_sub_status": ("sub_status", _text(80)),
    "start_time": ("started", _time),
    "end_time": ("ended", _time),
}
#: Arguments that become fields of the description alone.
_MEASURES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "cpu_consumption_time": ("cpuConsumptionTime", int),
    "cpu_consumption_unit": ("cpuConsumptionUnit", str),
    "cpu_architecture_level": ("cpu_architecture_level", _text(20)),
    "cpu_conversion_factor": ("cpuConversion", float),
    "pilot_timing": ("pilotTiming", _text(100)),
    "n_events": ("nEvents", int),
    "n_input_files": ("nInputFiles", int),
    "core_count": ("actualCoreCount", int),
    "mean_core_count": ("meanCoreCount", float),
    "grid": ("grid", _text(50)),
    "source_site": ("sourceSite", _text(36)),
    "destination_site": ("destinationSite", _text(36)),
    **{
        f"{how}_{what.lower()}": (f"{how}{what}", int)
        for how in ("max", "avg")
        for what in ("RSS", "VMEM", "SWAP", "PSS")
    },
    **{
        f"{how}_{what.lower()}": (f"{how}{what}", _kilobytes)
        for how in ("tot", "rate")
        for what in ("RCHAR", "WCHAR", "RBYTES", "WBYTES")
    },
}
_DOCUMENTS = {
    "meta_data": "meta_data",
    "job_output_report": "output_report",
    "pilot_log": "pilot_log",
    "stdout": "stdout",
}


def reported_state(text: str) -> JobState | None:
    """The state that a pilot says its job has; None: none that a pilot may say."""
    try:
        status = JobState(text)
    except ValueError:
        return None
    return status if status in _REPORTABLE else None


def record_report(tx: Transaction, status: JobState, arguments: Mapping[str, Any], pilot: PilotIdentity) -> str | None:
    """Records a report.

    Args:
        tx: a writing transaction.
        status: as `reported_state` gave it.
        arguments: as ``pilot/update_job`` declares them; whatever else is in the mapping does not matter.
        pilot: who reports.

    Returns:
        The command to the pilot.

    Raises:
        NotThePilotsJob: another pilot has the job.
    """
    report = JobReport(
        panda_id=arguments["job_id"],
        status=status,
        attempt_nr=arguments.get("attempt_nr"),
        columns=_taken(_COLUMNS, arguments),
        measures=_taken(_MEASURES, arguments),
        documents={column: arguments[name] for name, column in _DOCUMENTS.items() if arguments.get(name)},
        pilot=pilot,
        node=arguments.get("node") or "",
    )
    return update_job(tx, report)


def _taken(table: Mapping[str, tuple[str, Callable[[Any], Any]]], arguments: Mapping[str, Any]) -> dict[str, Any]:
    taken = {}
    for name, (field, convert) in table.items():
        value = arguments.get(name)
        if value is None or value == "":
            continue
        try:
            taken[field] = convert(value)
        except (ValueError, OverflowError):
            continue  # one odd number or time must not cost the job's result; a real server skips it too
    return taken
