"""Adds hpogrid's keys to a job's metadata, for scripts that read them from BigPanDA.

Keys and values are those of hpogrid 1.3.3 (`create_metadata` of `hpogrid/components/hpo_task.py`), for the one or
several points of the job. Standard library only, Python 3.6 syntax.
"""

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

KEYS = ["project_name", "start_datetime", "end_datetime", "start_timestamp", "task_time_s", "hyperparameters", "metric"]
KEYS += ["mode", "best_config", "best_metric_score", "result"]
REPORT_KEPT = 64 * 1024  # characters of all keys together; the other metadata counts too for PanDA's limit of 1 MB


def reported(known: "Dict[str, Any]", payload: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return the metadata with hpogrid's keys, unless the payload wrote one itself. `payload` includes the point."""
    verdict = known["hpo_pilot"]
    if any(key in known for key in KEYS):
        return known
    report = report_of(verdict, payload)
    if len(ascii(report)) > REPORT_KEPT:
        return known
    verdict["hpogrid"] = 1  # marks the keys as ours, not the payload's
    return dict(known, **report)


def report_of(verdict: "Dict[str, Any]", payload: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return the report of one point; without a figure of merit it has no row in `result`."""
    tried, names, metric = payload["point"], payload["hyperparameters"], payload["metric"]
    point = {name: tried.get(name) for name in names} if isinstance(tried, dict) else {}
    row = dict(point)
    if verdict["value"] is not None:
        row.update(zip(payload.get("objectives") or [metric], verdict["values"]))  # noqa: B905
        row.update({metric: verdict["value"], "time_s": verdict["seconds"], "timestamp": int(verdict["ended"])})
    return {
        "project_name": verdict["search"],
        "start_datetime": moment(verdict["started"]),
        "end_datetime": moment(verdict["ended"]),
        "start_timestamp": verdict["started"],
        "task_time_s": verdict["ended"] - verdict["started"],
        "hyperparameters": names,
        "metric": metric,
        "mode": payload["mode"],
        "best_config": None if verdict["value"] is None else point,
        "best_metric_score": verdict["value"],
        "result": {} if verdict["value"] is None else {"0": row},
    }


def moment(seconds: float) -> str:
    """Format a time as hpogrid does, in UTC."""
    return time.strftime("%m/%d/%Y, %H:%M:%S", time.gmtime(seconds))


def taken_out(metadata: "Dict[str, Any]") -> "Optional[Dict[str, Any]]":
    """Remove a point's report from its metadata and return it; None if there is none of ours."""
    if not metadata["hpo_pilot"].pop("hpogrid", 0):
        return None
    return {key: metadata.pop(key) for key in KEYS}


def joined(reports: "List[Dict[str, Any]]") -> "Dict[str, Any]":
    """Return the report of a job with several points; empty if there is none or it would be too large."""
    if not reports:
        return {}
    rows = [row for report in reports for row in report["result"].values()]
    scores = [(report["best_metric_score"], report) for report in reports if report["best_metric_score"] is not None]
    choose = min if reports[0]["mode"] == "min" else max
    best = choose(scores, key=lambda pair: pair[0])[1] if scores else reports[0]
    first = min(reports, key=lambda report: report["start_timestamp"])
    ended = max(report["start_timestamp"] + report["task_time_s"] for report in reports)
    whole = dict(
        best,
        start_datetime=first["start_datetime"],
        start_timestamp=first["start_timestamp"],
        end_datetime=moment(ended),
        task_time_s=ended - first["start_timestamp"],
        result={str(index): row for index, row in enumerate(rows)},
    )
    return whole if len(ascii(whole)) <= REPORT_KEPT else {}
