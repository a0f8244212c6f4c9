"""``statistics/*``: how many jobs are where and in which state.

A real server lets anybody ask; here it takes a token, like everything that tells of users' work. Where there is
nothing to count the answer is an empty success, not a "Database failure" as there.
"""

from __future__ import annotations

from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.taskbuffer.job_statistics import ACTIVE, ACTIVE_AND_OVER, HOURS, counts, nested
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import ANYBODY_KNOWN, Access, endpoint

_MINUTE, _HOUR = 60.0, 3600.0
_MOST_MINUTES = 60 * 24 * 7
_MOST_DAYS = 7
_ANALYSIS = frozenset({"user", "panda"})
_CLOUD = "LOCAL"  # the only one


@endpoint("statistics/job_stats_by_cloud", "GET", ANYBODY_KNOWN, Access.READ)
def job_stats_by_cloud(tx: Transaction, call: Call, *, type: str = "production") -> Envelope:  # PanDA's word
    """Jobs by state, with those over in the last hours; `type` is analysis or production."""
    if type not in ("production", "analysis"):
        return failure('Parameter "type" needs to be either "production" or "analysis" ', {})
    found = [
        count
        for count in counts(tx, since=tx.now - HOURS * _HOUR)
        if (count.label in _ANALYSIS) == (type == "analysis")
    ]
    return success(nested(found, lambda count: (_CLOUD,)))


@endpoint("statistics/production_job_stats_by_cloud_and_processing_type", "GET", ANYBODY_KNOWN, Access.READ)
def production_job_stats_by_cloud_and_processing_type(tx: Transaction, call: Call) -> Envelope:
    """Production jobs by state. Processing types are not counted apart here: each label counts as one."""
    found = [count for count in counts(tx, since=tx.now - HOURS * _HOUR) if count.label not in _ANALYSIS]
    return success(nested(found, lambda count: (_CLOUD, count.label)))


@endpoint("statistics/active_job_stats_by_site", "GET", ANYBODY_KNOWN, Access.READ)
def active_job_stats_by_site(tx: Transaction, call: Call) -> Envelope:
    """Jobs that are not over, by queue and state."""
    return success(nested(counts(tx), lambda count: (count.site,), ACTIVE))


@endpoint("statistics/active_job_detailed_stats_by_site", "GET", ANYBODY_KNOWN, Access.READ)
def active_job_detailed_stats_by_site(tx: Transaction, call: Call) -> Envelope:
    """Jobs that are not over, by queue, resource type, label and state."""
    return success(nested(counts(tx), lambda count: (count.site, count.resource_type, count.label), ACTIVE))


def _window(tx: Transaction, minutes: int | None) -> float | None:
    """Since when jobs that are over count; None: there is no such window."""
    if minutes is None:
        return tx.now - HOURS * _HOUR
    return tx.now - minutes * _MINUTE if 0 <= minutes <= _MOST_MINUTES else None


_MESSAGE_WINDOW = (
    f'Parameter "time_window" needs to be a positive integer smaller than {_MOST_MINUTES} min ({_MOST_DAYS} days)'
)


@endpoint("statistics/job_stats_by_site_and_resource_type", "GET", ANYBODY_KNOWN, Access.READ)
def job_stats_by_site_and_resource_type(tx: Transaction, call: Call, *, time_window: int | None = None) -> Envelope:
    """Jobs by queue, resource type and state; those over count for `time_window` minutes."""
    if (since := _window(tx, time_window)) is None:
        return failure(_MESSAGE_WINDOW, {})
    found = counts(tx, since=since)
    return success(nested(found, lambda count: (count.site, count.resource_type), ACTIVE_AND_OVER))


@endpoint("statistics/job_stats_by_site_share_and_resource_type", "GET", ANYBODY_KNOWN, Access.READ)
def job_stats_by_site_share_and_resource_type(
    tx: Transaction, call: Call, *, time_window: int | None = None
) -> Envelope:
    """Jobs by queue, label, resource type and state; those over count for `time_window` minutes."""
    if (since := _window(tx, time_window)) is None:
        return failure(_MESSAGE_WINDOW, {})
    found = counts(tx, since=since)
    return success(nested(found, lambda count: (count.site, count.label, count.resource_type), ACTIVE_AND_OVER))


def _no_metrics(key: str | None, days: int) -> Envelope:
    if not 0 <= days <= _MOST_DAYS:
        return failure(f'Parameter "days" needs to be a positive integer smaller than {_MOST_DAYS}', {})
    if key not in (None, "jobs", "workers"):
        return failure('Parameter "key" needs to be "jobs", "workers" or left empty for all keys.', {})
    return success({})


@endpoint("statistics/get_wn_metrics_by_site", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_wn_metrics_by_site(
    call: Call, *, site: str, host: str | None = None, key: str | None = None, days: int = 1
) -> Envelope:
    """Daily figures of worker nodes: none are kept here."""
    return _no_metrics(key, days)


@endpoint("statistics/get_wn_metrics_by_queue", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_wn_metrics_by_queue(
    call: Call, *, panda_queue: str, host: str | None = None, key: str | None = None, days: int = 1
) -> Envelope:
    """Daily figures of worker nodes: none are kept here."""
    return _no_metrics(key, days)
