"""Arguments of the legacy API: texts under old names, turned into those of the new API."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hpo_pilot.server.taskbuffer.dispatch import JobRequest

_INTEGER = 2**63 - 1  # what a database column holds


class LegacyArgumentError(Exception):
    """An argument is missing or makes no sense; the message says which."""


def text(given: Mapping[str, Any], name: str) -> str:
    """An argument that must be there.

    Raises:
        LegacyArgumentError: it is not.
    """
    if name not in given:
        raise LegacyArgumentError(f"missing a required argument: '{name}'")
    return str(given[name])


def whole(given: Mapping[str, Any], name: str) -> int:
    """A whole number that must be there.

    Raises:
        LegacyArgumentError: it is not, or no such number.
    """
    number = _whole(text(given, name))
    if number is None:
        raise LegacyArgumentError(f"{name} must be a whole number, not {given[name]!r}")
    return number


def _whole(value: Any) -> int | None:
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if abs(number) <= _INTEGER else None


def _number(value: Any) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _amount(given: Mapping[str, Any], name: str) -> int:
    """A size or time; 0 where it is missing, odd or below."""
    number = _number(given.get(name))
    return int(number) if number is not None and 0 < number < 2**31 else 0


def _optional(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    return "" if value in (None, "NULL", "None") else str(value)


#: A released Pilot 3 reports every half hour unless its site says otherwise: four reports may be missed.
_PATIENCE = 2 * 3600.0


def job_request(given: Mapping[str, Any], cores: int) -> JobRequest:
    """What a pilot asks for with ``getJob``.

    Args:
        given: the arguments as they came.
        cores: that the pilot has; 0: not said. The old ``cpu`` is a clock rate.

    Raises:
        LegacyArgumentError: it does not say for which queue.
    """
    scheduler = _optional(given, "schedulerID")
    return JobRequest(
        site=text(given, "siteName"),
        label=_optional(given, "prodSourceLabel"),
        memory=_amount(given, "mem"),
        cores=cores,
        disk_mb=_amount(given, "diskSpace"),
        remaining_time=_amount(given, "remaining_time"),
        resource_type=_optional(given, "resourceType"),
        task_id=max(0, _whole(given.get("taskID")) or 0),
        user_name=_optional(given, "prodUserID"),
        node=_optional(given, "node"),
        computing_element=_optional(given, "computingElement"),
        harvester_id=(_optional(given, "harvester_id") or scheduler)[:128],
        worker_id=_optional(given, "worker_id")[:128],
        scheduler_id=scheduler,
        patience=_PATIENCE,
        only_node=True,
    )


#: Arguments of ``updateJob``: their name in the new API, and what they are.
_REPORT: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "node": ("node", str),
    "transExitCode": ("trans_exit_code", _whole),
    "pilotErrorCode": ("pilot_error_code", _whole),
    "pilotErrorDiag": ("pilot_error_diag", str),
    "exeErrorCode": ("exe_error_code", _whole),
    "exeErrorDiag": ("exe_error_diag", str),
    "cpuConsumptionTime": ("cpu_consumption_time", _number),
    "cpuConsumptionUnit": ("cpu_consumption_unit", str),
    "cpuConversionFactor": ("cpu_conversion_factor", _number),
    "cpu_architecture_level": ("cpu_architecture_level", str),
    "schedulerID": ("scheduler_id", str),
    "pilotID": ("pilot_id", str),
    "batchID": ("batch_id", str),
    "attemptNr": ("attempt_nr", _whole),
    "startTime": ("start_time", str),
    "endTime": ("end_time", str),
    "jobMetrics": ("job_metrics", str),
    "jobSubStatus": ("job_sub_status", str),
    "pilotTiming": ("pilot_timing", str),
    "coreCount": ("core_count", _whole),
    "meanCoreCount": ("mean_core_count", _number),
    "nEvents": ("n_events", _whole),
    "nInputFiles": ("n_input_files", _whole),
    "grid": ("grid", str),
    "source_site": ("source_site", str),
    "destination_site": ("destination_site", str),
    "metaData": ("meta_data", str),
    "xml": ("job_output_report", str),
    "pilotLog": ("pilot_log", str),
    "stdout": ("stdout", str),
    **{
        f"{how}{what}": (f"{how}_{what.lower()}", _number)
        for how in ("max", "avg")
        for what in ("RSS", "VMEM", "SWAP", "PSS")
    },
    **{
        f"{how}{what}": (f"{how}_{what.lower()}", _number)
        for how in ("tot", "rate")
        for what in ("RCHAR", "WCHAR", "RBYTES", "WBYTES")
    },
}


def job_report(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``updateJob`` as those of ``pilot/update_job``.

    What this server does not know is left out, for pilots say more with every release; so is a number that is none.

    Raises:
        LegacyArgumentError: it does not say of which job, or in which state it is.
    """
    report: dict[str, Any] = {"job_id": whole(given, "jobId"), "job_status": text(given, "state")}
    for name, (new_name, convert) in _REPORT.items():
        value = given.get(name)
        if value is not None and value not in ("NULL", "None") and (converted := convert(value)) is not None:
            report[new_name] = converted
    if isinstance(given.get("metaData"), dict | list):
        report["meta_data"] = json.dumps(given["metaData"])
    return report
