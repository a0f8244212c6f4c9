"""``metaconfig/*``: what the server is set up with."""

from __future__ import annotations

from typing import Any

from hpo_pilot.server.envelope import Envelope, success
from hpo_pilot.server.taskbuffer.queue import Queue
from hpo_pilot.server.taskbuffer.resource_types import RESOURCE_TYPES
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import ANYBODY_KNOWN, Access, endpoint

_TYPE = "analysis"  # of every queue here


@endpoint("metaconfig/get_banned_users", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_banned_users(call: Call) -> Envelope:
    """Nobody is banned: whoever may not call has no token."""
    return success({})


@endpoint("metaconfig/get_resource_types", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_resource_types(call: Call) -> Envelope:
    """The names of jobs by cores and memory, and what they mean."""
    return success(RESOURCE_TYPES)


@endpoint("metaconfig/get_site_specs", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_site_specs(call: Call, *, type: str = _TYPE) -> Envelope:  # PanDA's word
    """The queues of this type (or ``all``) as PanDA's SiteSpec has them, by name; none where no queue file says."""
    if type not in ("all", _TYPE):
        return success({})
    return success({name: _site_spec(name, queue) for name, queue in sorted(call.server.queues.described.items())})


def _site_spec(name: str, queue: Queue) -> dict[str, Any]:
    return {
        "sitename": name,
        "nickname": name,
        "pandasite": queue.site or name,
        "type": _TYPE,
        "status": queue.status,
        "cloud": "hpo-pilot",
        "coreCount": queue.cores or 0,
        "maxrss": queue.memory_mb or 0,
        "maxwdir": queue.disk_mb or 0,
        "maxtime": int(queue.minutes * 60) if queue.minutes else 0,
    }
