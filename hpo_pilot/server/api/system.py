"""``system/*`` and ``metaconfig/*``: whether the server answers, who the caller is, which queues there are."""

from __future__ import annotations

from typing import Any

from hpo_pilot.server.envelope import Envelope, success
from hpo_pilot.server.taskbuffer.queue import Queue
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import ANYBODY_KNOWN, EVERYBODY, PILOTS, Access, endpoint

_TYPE = "analysis"  # of every queue here


@endpoint("system/is_alive", "GET", EVERYBODY, Access.NOTHING)
def is_alive(call: Call) -> Envelope:
    """Answers."""
    return success()


@endpoint("system/get_user_attributes", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_user_attributes(call: Call) -> Envelope:
    """The caller, as the server sees them."""
    name, production = call.caller.name, call.caller.role in PILOTS
    text = (
        f"User DN (raw): {name}\nUser DN (bare): {name}\nUser DN (clean): {name}\nEmail address: None\n"
        f"FQANs: []\nProduction user: {production}\n"
        "Production working groups: []\nPrimary production working group: None\n"
    )
    attributes = {
        "user_dn_raw": name,
        "user_dn_clean": name,
        "fqans": [],
        "is_production_user": production,
        "production_working_groups": [],
        "primary_working_group": None,
    }
    return success(attributes, text)


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
