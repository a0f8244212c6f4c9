"""Jobs' metadata: BigPanDA's `metastruct` and `jobs_metadata`.

hpogrid's report (hpogrid 1.3.3, `components/validation.py`) takes a job's `user_job_metadata` only where it has no key
but its own. So what the runner says to hpo-pilot's service stands beside it here, not in it, wherever the rest is
hpogrid's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from hpo_pilot.jobs import JobState
from hpo_pilot.server.data.database import Transaction, in_slices
from hpo_pilot.server.data.tables import job_documents, jobs

#: `kHPOGridMetadataFormat` of `hpogrid/core/defaults.py`.
HPOGRID_KEYS = frozenset(
    {
        *("task_time_s", "start_timestamp", "project_name", "result", "hyperparameters", "metric"),
        *("start_datetime", "best_config", "best_metric_score", "end_datetime", "mode"),
    }
)
_USER, _OURS = "user_job_metadata", "hpo_pilot"


def understood(text: str) -> Any:
    """A job report as scripts get it; None: it is no JSON, and PanDA leaves it out as well."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        return None
    merged = report.get(_USER) if isinstance(report, dict) else None
    if isinstance(merged, dict) and _OURS in merged and merged.keys() - {_OURS} <= HPOGRID_KEYS:
        rest = {key: value for key, value in merged.items() if key != _OURS}
        report = {**report, _USER: rest, _OURS: merged[_OURS]}
        if not rest:
            del report[_USER]
    return report


def of_jobs(tx: Transaction, panda_ids: Sequence[int]) -> dict[int, Any]:
    """The metadata of those of the jobs that have some."""
    found = {}
    for some in in_slices(panda_ids):
        query = select(job_documents.c.panda_id, job_documents.c.meta_data).where(
            job_documents.c.panda_id.in_(some), job_documents.c.meta_data.is_not(None)
        )
        for row in tx.connection.execute(query):
            if (report := understood(row.meta_data)) is not None:
                found[row.panda_id] = report
    return found


def of_tasks(tx: Transaction, task_ids: Sequence[int]) -> dict[int, dict[int, Any]]:
    """The metadata of the tasks' finished jobs, by task and PandaID."""
    found: dict[int, dict[int, Any]] = {task_id: {} for task_id in task_ids}
    for some in in_slices(task_ids):
        query = (
            select(jobs.c.task_id, jobs.c.panda_id, job_documents.c.meta_data)
            .join(job_documents, job_documents.c.panda_id == jobs.c.panda_id)
            .where(
                jobs.c.task_id.in_(some),
                jobs.c.status == JobState.FINISHED.value,
                job_documents.c.meta_data.is_not(None),
            )
            .order_by(jobs.c.panda_id)
        )
        for row in tx.connection.execute(query):
            if (report := understood(row.meta_data)) is not None:
                found[row.task_id][row.panda_id] = report
    return found
