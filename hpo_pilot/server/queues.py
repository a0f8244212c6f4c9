"""Queues as the queue file describes them, and data that need no token: queue data, the transformation, public keys."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from hpo_pilot.server.descriptions import TRANSFORMATION
from hpo_pilot.server.job_records import scope
from hpo_pilot.server.replies import refuse
from hpo_pilot.server.tokens import Tokens, WatchedFile
from hpo_pilot.transformation.executable import build

# PanDA queues, as a queue file describes them. The models are the source of `schemas/queues.json`. Users write the
# file in YAML; the service turns it into the JSON that the server reads.

#: The pattern of a queue's name: a copy of `hpo_pilot.search.mistakes.QUEUE_PATTERN`. An import would load the models
#: of searches, which the server does not use; that would take a quarter of its start.
QUEUE_PATTERN = r"^[A-Za-z0-9_.-]+$"

_Text = Annotated[StrictStr, Field(min_length=1)]
_Count = Annotated[StrictInt, Field(ge=1, lt=2**31)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Gpu(_Section):
    """The GPUs of a queue, all of one kind. Jobs that ask for a property without a value here do not fit."""

    vendor: _Text = Field("NVIDIA", description="Vendor, e.g. NVIDIA, AMD.")
    model: _Text | None = Field(None, description="Model, e.g. 'A100 80GB'. Default: not stated.")
    memory_mb: _Count | None = Field(None, description="Memory of one GPU, in MB. Default: not stated.")
    generation: _Text | None = Field(None, description="Microarchitecture, e.g. Ampere. Default: not stated.")
    framework_version: _Text | None = Field(None, description="CUDA or ROCm version, e.g. '12.4'. Default: not stated.")
    driver_version: _Text | None = Field(None, description="Driver version, e.g. '575.57'. Default: not stated.")


class Queue(_Section):
    """One PanDA queue: what one job may have there. A limit without a value is not checked."""

    status: Literal["online", "test", "brokeroff", "offline"] = Field(
        "online",
        description=(
            "online: jobs as they come; test: jobs with label test alone; brokeroff: jobs that name this queue; "
            "offline: none."
        ),
    )
    description: StrictStr = Field("", description="For people.")
    site: _Text | None = Field(None, description="The site that the queue belongs to. Default: the queue's name.")
    cores: _Count | None = Field(None, description="CPU cores that one job may use.")
    memory_mb: _Count | None = Field(None, description="Memory that one job may use, in MB.")
    disk_mb: _Count | None = Field(None, description="Disk that one job may use, in MB.")
    minutes: Annotated[StrictFloat, Field(gt=0, lt=1e6)] | None = Field(
        None, description="The longest walltime of a job, in minutes."
    )
    architecture: _Text | None = Field(
        None, description="CPU: architecture, or architecture-vendor-instructions, e.g. x86_64, x86_64-intel-avx512f."
    )
    platforms: tuple[_Text, ...] = Field(
        (), description="Operating systems that jobs may ask for, e.g. el9. Default: any."
    )
    gpus: Annotated[StrictInt, Field(ge=0, lt=10_000)] = Field(0, description="GPUs that one job may use.")
    gpu: Gpu = Field(default_factory=Gpu, description="The kind of GPU, where there are some.")
    containers: tuple[_Text, ...] | None = Field(
        None, description="Container runtimes of its nodes, e.g. [apptainer]; []: none. Default: any."
    )
    storage: Annotated[StrictStr, Field(pattern="^/")] | None = Field(
        None,
        description=(
            "Folder that the nodes share with the server: a Pilot 3 moves outputs there. "
            "Default: one in the server's files."
        ),
    )
    pilot: dict[str, Any] = Field(
        default_factory=dict,
        description="Fields of the queue's description for Pilot 3 (queuedata), beside or instead of those made here.",
    )


class QueueFile(_Section):
    """A queue file. Pilots and tasks may name these queues and no others."""

    queues: dict[Annotated[StrictStr, Field(pattern=QUEUE_PATTERN)], Queue] = Field(
        min_length=1, description="The queues by their names."
    )


#: A queue that no queue file describes.
UNDESCRIBED = Queue()


class Queues:
    """The queues by their names. Safe to use from any thread."""

    def __init__(self, file: Path | None, storage: Path) -> None:
        """Reads the queue file.

        Args:
            file: JSON, read again when it changes; None: every name is a queue.
            storage: where Pilot 3 of queues without a storage of their own put outputs.

        Raises:
            InputError: the file is missing or not valid.
        """
        self._file = None if file is None else WatchedFile(file, _understand, what="queue file")
        #: The folder of queues that have no storage of their own.
        self.common_storage = storage.absolute()

    @property
    def described(self) -> Mapping[str, Queue]:
        """The queues of the file; empty without a file."""
        return {} if self._file is None else self._file.content

    def find(self, name: str) -> Queue | None:
        """Returns the queue with this name; None: there is no such queue."""
        if self._file is None:
            return UNDESCRIBED
        return self._file.content.get(name)

    def unknown(self, names: tuple[str, ...]) -> str:
        """Returns why a task that names these queues can run nowhere; empty: it can, or names none."""
        known = self.described
        if self._file is None or not names or any(name in known for name in names):
            return ""
        return f"no queue {' or '.join(names)} here: the queue file has {', '.join(sorted(known))}"

    def storages(self) -> list[Path]:
        """Returns the folders to which Pilot 3 moves outputs, each once."""
        named = [Path(queue.storage) for queue in self.described.values() if queue.storage]
        return list(dict.fromkeys([*named, self.common_storage]))


def _understand(document: object) -> Mapping[str, Queue]:
    return QueueFile.model_validate(document).queues  # pydantic's ValidationError is a ValueError


# Queues and storages in the form that Pilot 3 reads, so that it needs no outside service. The formats are those of
# PanDA's schedconfig and of CRIC, as Pilot 3 3.7.0.36 and 3.11.5.1 take them (`pilot/info/extinfo.py`,
# `queuedata.py`, `storagedata.py`). The place of an output under a storage is Rucio's deterministic one
# (`pilot/api/data.py`, `get_path`), so a file's name gives its place.

#: Activities for which Pilot 3 looks up copy tools and storages (`pilot/control/data.py`). Up to 3.9.1 these are pr, pw
#: and pl for inputs, outputs and logs; from 3.9.2 on write_lan for outputs, from 3.10 on read_lan for inputs, each with
#: an ending where a queue is "unified". It tries w next, and pl first for logs. Where it finds no copy tool for any of
#: them it uses rucio (error 1152).
_ACTIVITIES = ("pr", "pw", "pl", "w", "read_lan", "read_lan_analysis", "write_lan", "write_lan_analysis")
#: Activities for which it looks up a storage's protocols (`pilot/api/data.py`).
_PROTOCOL_ACTIVITIES = (*_ACTIVITIES, "r", "read_wan", "write_wan")
_COMMON_STORAGE = "HPO_PILOT_STORAGE"  # of queues that have none of their own
_MORE_JOBS_MINUTES = 60  # how long a Pilot 3 goes on taking jobs; with 0 it would end after its first
_ANY_DISK_MB = 1_000_000  # default for queues without a value: a Pilot 3 reports the lower of this and the free space


def _described(name: str, queue: Queue) -> dict[str, Any]:
    """Returns a queue's description for Pilot 3."""
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
        # Only the copy tool mv moves to the place that the storage names, not to a place beside the work folder.
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
    """Returns the hardware in the form of CRIC."""
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
    """Returns all storages, by the names that queuedata uses."""
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
    """Returns the path, under a storage, of a file that a Pilot 3 stored."""
    owner = scope(name)
    digest = hashlib.md5(f"{owner}:{name}".encode(), usedforsecurity=False).hexdigest()  # Rucio's choice
    return Path(*owner.split("."), digest[0:2], digest[2:4], name)


def find_output(queues: Queues, name: str) -> Path | None:
    """Returns the path of an output or log that a Pilot 3 moved to its queue's storage; None: there is none."""
    place = place_of(name)
    return next((path for path in (folder / place for folder in queues.storages()) if path.is_file()), None)


# Routes of queue and storage data, without a token: none of it is secret. The paths are those of PanDA's and CRIC's
# caches. A Pilot 3 gets them as options: ``--queuedata-url SERVER/cache/schedconfig/QUEUE.all.json
# --storagedata-url SERVER/cache/ddmendpoints.json``.


def queue_routes(queues: Queues) -> list[Route]:
    """Returns the routes; they must come before those of files."""

    async def one_queue(request: Request) -> Response:
        file: str = request.path_params["file"]
        name = file.removesuffix(".all")
        queue = queues.find(name)
        if queue is None:
            return JSONResponse({"error": f"no queue {name} here"}, 404)
        found = _described(name, queue)
        return JSONResponse(found if file.endswith(".all") else {name: found})

    async def every_queue(_: Request) -> Response:
        return JSONResponse({name: _described(name, queue) for name, queue in sorted(queues.described.items())})

    async def every_storage(_: Request) -> Response:
        return JSONResponse(storages(queues))

    return [
        *(
            Route(f"/cache/{name}.json", every_queue, methods=["GET"])
            for name in ("schedconfig/pandaqueues", "pandaqueues", "cric_pandaqueues")
        ),
        *(
            Route(f"/cache/{name}.json", every_storage, methods=["GET"])
            for name in ("ddmendpoints", "cric_ddmendpoints")
        ),
        Route("/cache/schedconfig/{file}.json", one_queue, methods=["GET"]),
    ]


# The transformation, at the URL that tasks have as their transPath. It is code and holds no secrets, so no token is
# needed.


def route() -> Route:
    """Returns the route of the transformation."""
    return Route("/trf/user/{name}", _transformation, methods=["GET"])


async def _transformation(request: Request) -> Response:
    if request.path_params["name"] != TRANSFORMATION:
        return PlainTextResponse(f"this server has no transformation of this name, only {TRANSFORMATION}\n", 404)
    content, tag = _built()
    headers = {"ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/octet-stream", headers=headers)


@cache
def _built() -> tuple[bytes, str]:
    content = build()
    return content, f'"{hashlib.sha256(content).hexdigest()}"'


_CONFIG = re.compile(r"(.+)_auth_config\.json")


def key_routes(tokens: Tokens) -> Sequence[Route]:
    """Returns the routes of public keys and client settings; they need no token."""

    async def public_keys(_: Request) -> Response:
        return JSONResponse(tokens.public_keys)

    async def auth_config(request: Request) -> Response:
        match = _CONFIG.fullmatch(request.path_params["name"])
        vo = match[1] if match else ""
        settings = tokens.others.client_settings(vo) if tokens.others is not None else None
        if settings is None:
            # panda-client shows this to its user.
            message = (
                f"this server has no web page that issues tokens for {vo[:64]!r}: ask the operator for a token "
                "(hpo-pilot token create), and name its file in OIDC_AUTH_TOKEN_FILE"
            )
            return refuse(message, 404)
        return JSONResponse(settings)

    return [
        Route("/.well-known/jwks.json", public_keys, methods=["GET"]),
        Route("/auth/{name}", auth_config, methods=["GET"]),
    ]
