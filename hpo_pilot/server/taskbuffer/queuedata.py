"""Queues and storages in the form that Pilot 3 reads, so that it needs no outside service.

Formats as Pilot 3 3.7.0.36 and 3.11.5.1 take them (`pilot/info/extinfo.py`, `queuedata.py`, `storagedata.py`), which
are those of PanDA's schedconfig and of CRIC. The outputs' place under a storage is Rucio's deterministic one
(`pilot/api/data.py`, `get_path`), so whoever knows a file's name knows its place.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from hpo_pilot.server.taskbuffer.descriptions import scope
from hpo_pilot.server.taskbuffer.queue import Queue
from hpo_pilot.server.taskbuffer.queues import Queues

#: Activities for which Pilot 3 looks up copy tools and storages (`pilot/control/data.py`). Up to 3.9.1 these are pr, pw
#: and pl for inputs, outputs and logs; from 3.9.2 on write_lan for outputs, from 3.10 on read_lan for inputs, each with
#: an ending where a queue is "unified". It tries w next, and pl first for logs. Where it finds no copy tool for any of
#: them it uses rucio (error 1152).
_ACTIVITIES = ("pr", "pw", "pl", "w", "read_lan", "read_lan_analysis", "write_lan", "write_lan_analysis")
#: Activities for which it looks up a storage's protocols (`pilot/api/data.py`).
_PROTOCOL_ACTIVITIES = (*_ACTIVITIES, "r", "read_wan", "write_wan")
_COMMON_STORAGE = "HPO_PILOT_STORAGE"  # of queues that have none of their own
_MORE_JOBS_MINUTES = 60  # how long a Pilot 3 goes on taking jobs; with 0 it would end after its first
_ANY_DISK_MB = 1_000_000  # where a queue does not say: a Pilot 3 reports the lower of this and what is free


def queuedata(queues: Queues, name: str) -> dict[str, Any] | None:
    """What a Pilot 3 must know of its queue; None: there is no such queue."""
    queue = queues.find(name)
    return None if queue is None else _described(name, queue)


def all_queuedata(queues: Queues) -> dict[str, dict[str, Any]]:
    """The same for every queue of the file."""
    return {name: _described(name, queue) for name, queue in sorted(queues.described.items())}


def _described(name: str, queue: Queue) -> dict[str, Any]:
    endpoint = _endpoint(name, queue)
    made = {
        "nickname": name,
        "name": name,
        "siteid": name,
        "panda_resource": name,
        "panda_queue": name,
        "atlas_site": queue.site or name,
        "site": queue.site or name,
        "cloud": "hpo-pilot",
        "state": "ACTIVE",
        "status": queue.status,
        "type": "analysis",
        "resource_type": "gpu" if queue.gpus else "GRID",
        "pilot_manager": "local",
        "pilot_version": "current",
        "cmtconfig": "",
        "corecount": queue.cores or 1,
        "maxrss": queue.memory_mb or 0,
        "maxwdir": queue.disk_mb or _ANY_DISK_MB,
        "maxinputsize": -1,
        "maxtime": int(queue.minutes * 60) if queue.minutes else 0,
        "timefloor": _MORE_JOBS_MINUTES,
        "is_cvmfs": False,
        "direct_access_lan": False,
        "direct_access_wan": False,
        "allow_lan": True,
        "allow_wan": False,
        "container_type": "",
        "container_options": "",
        # The copy tool mv alone moves to where the storage says, not just beside the work folder.
        "catchall": "mv_final_destination",
        "copytools": {"mv": {"setup": ""}},
        "acopytools": {activity: ["mv"] for activity in (*_ACTIVITIES, "default")},
        "acopytools_schemas": {},
        "astorages": {activity: [endpoint] for activity in _ACTIVITIES},
        "aprotocols": {},
        "params": {"internet_protocol_version": "IPv4"},
        "architectures": _architectures(queue),
        "containers": list(queue.containers or ()),
        "environ": "",
        "appdir": "",
    }
    return made | queue.pilot


def _architectures(queue: Queue) -> list[dict[str, Any]]:
    """The hardware as CRIC has it."""
    arch, vendor, instructions = (*(queue.architecture or "").split("-", 2), "", "")[:3]
    found: list[dict[str, Any]] = [
        {"type": "cpu", "arch": [arch or "any"], "vendor": [vendor or "any"], "instr": [instructions or "any"]}
    ]
    if queue.gpus:
        found.append({"type": "gpu", "vendor": [queue.gpu.vendor], "model": [queue.gpu.model or "any"]})
    return found


def _endpoint(name: str, queue: Queue) -> str:
    return f"{name}_STORAGE" if queue.storage else _COMMON_STORAGE


def storages(queues: Queues) -> dict[str, dict[str, Any]]:
    """All storages, by the names that queuedata uses."""
    found = {_COMMON_STORAGE: _storage(1, _COMMON_STORAGE, queues.common_storage)}
    own = [(name, queue) for name, queue in sorted(queues.described.items()) if queue.storage]
    for number, (name, queue) in enumerate(own, start=2):
        endpoint = _endpoint(name, queue)
        found[endpoint] = _storage(number, endpoint, Path(queue.storage or ""))
    return found


def _storage(number: int, name: str, folder: Path) -> dict[str, Any]:
    protocol = {"endpoint": "file://localhost", "path": f"{folder}/", "flavour": "FILE", "id": number}
    return {
        "id": number,
        "name": name,
        "site": name,
        "state": "ACTIVE",
        "type": "DATADISK",
        "token": "",
        "is_deterministic": True,
        "arprotocols": {activity: [protocol] for activity in _PROTOCOL_ACTIVITIES},
        "rprotocols": {str(number): protocol},
        "resource": {},
    }


def place_of(name: str) -> Path:
    """Where, under a storage, a Pilot 3 puts the file of this name."""
    owner = scope(name)
    digest = hashlib.md5(f"{owner}:{name}".encode(), usedforsecurity=False).hexdigest()  # Rucio's choice
    return Path(*owner.split("."), digest[0:2], digest[2:4], name)


def find_output(queues: Queues, name: str) -> Path | None:
    """An output or log that some Pilot 3 has moved to its queue's storage."""
    place = place_of(name)
    return next((path for path in (folder / place for folder in queues.storages()) if path.is_file()), None)
