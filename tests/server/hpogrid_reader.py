"""hpogrid 1.3.3 reads a BigPanDA: a program of its own, because importing its panda-client fixes addresses for good.

    python hpogrid_reader.py <base URL> <certificates> <project> <task names>

Changed of it are the base URL and where its certificates are. As published, what reads a BigPanDA cannot be imported:
the file of `hpogrid report_grid` uses names and a module that are nowhere. It gets them, and runs as it is. It prints
what was found, as JSON.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def main(url: str, certificates: str, project: str, task_names: str) -> dict[str, Any]:
    """What hpogrid makes of the monitor's answers."""
    validation = importlib.import_module("hpogrid.components.validation")
    vars(builtins).update(
        kDefaultExtraColumns=[],
        kSupportedExtraColumns=["site", "taskid"],
        validate_job_metadata=validation.validate_job_metadata,
        sys=sys,
    )
    manager = importlib.import_module("hpogrid.interface.panda.panda_task_manager")
    manager.kPanDA_TaskURL = f"{url}/tasks/"
    manager.kPanDAVerifyPath = {"cafile": certificates}
    asked = {"username": os.environ.get("READER_USER", "me"), "taskname": task_names, "days": 30, "limit": 1000}
    return {"report": _report(manager, asked), "grid": _grid_report(manager, project, asked)}


def _report(manager: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Its reader of tasks and its report, over all jobs."""
    report_class = importlib.import_module("hpogrid.components.hpo_report").HPOReport
    reader = manager.PandaTaskManager(skip_pbook=True)
    found = reader.query_tasks(metadata=True, **asked)
    report, jobs = report_class(), {}
    for task_id, task in reader.extract_metadata(found).items():
        jobs[task["taskname"]] = list(task["jobs_metadata"])
        report.append(list(task["jobs_metadata"].values()), {"taskid": task_id})
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        report.show()
        reader.show(metadata=True, **asked)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report")
        report.to_json(str(file))
        as_json = json.loads(file.read_text())
        report.to_csv(str(file))
        header = file.read_text().splitlines()[0]
    return {
        "jobs": jobs,
        "attributes": report.attrib,
        "rows": report.merge_data(),
        "json": as_json,
        "csv": header,
        "columns": reader.filter_datasets(found, ["jeditaskid", "status", "site"]),
        "shown": shown.getvalue(),
    }


def _grid_report(manager: Any, project: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """`hpogrid report_grid`; of each task it reads the first job."""
    sys.modules["hpogrid.components.panda_task_manager"] = manager
    manager.PandaTaskManager.init_pbook = lambda self: None  # nobody's grid proxy
    report = importlib.import_module("hpogrid.interface.panda").PandaTaskReport()
    report.display(project, extra_columns=["taskid", "site"], **asked)
    rows: list[dict[str, Any]] = report.merge_data(["site", "taskid"])
    return rows


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main(*sys.argv[1:])
    json.dump(result, sys.stdout)
