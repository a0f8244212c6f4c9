"""Where a Pilot 3 fetches what it must know of queues and storages; without a token, for none of it is secret.

The paths are those of PanDA's and CRIC's caches, for their URLs go into a pilot's options:
``--queuedata-url SERVER/cache/schedconfig/QUEUE.all.json`` and ``--storagedata-url SERVER/cache/ddmendpoints.json``.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hpo_pilot.server.taskbuffer.queuedata import all_queuedata, queuedata, storages

if TYPE_CHECKING:
    from hpo_pilot.server.app import Server


def routes(server: Server) -> list[Route]:
    """The routes; they go before those of files."""
    every = partial(_every_queue, server)
    stores = partial(_storages, server)
    return [
        Route("/cache/schedconfig/pandaqueues.json", every, methods=["GET"]),
        Route("/cache/schedconfig/{queue}.all.json", partial(_one_queue, server, True), methods=["GET"]),
        Route("/cache/schedconfig/{queue}.json", partial(_one_queue, server, False), methods=["GET"]),
        Route("/cache/pandaqueues.json", every, methods=["GET"]),
        Route("/cache/cric_pandaqueues.json", every, methods=["GET"]),
        Route("/cache/ddmendpoints.json", stores, methods=["GET"]),
        Route("/cache/cric_ddmendpoints.json", stores, methods=["GET"]),
    ]


async def _one_queue(server: Server, flat: bool, request: Request) -> Response:
    name = request.path_params["queue"]
    found = queuedata(server.queues, name)
    if found is None:
        return _json({"error": f"no queue {name} here"}, 404)
    return _json(found if flat else {name: found})


async def _every_queue(server: Server, request: Request) -> Response:
    return _json(all_queuedata(server.queues))


async def _storages(server: Server, request: Request) -> Response:
    return _json(storages(server.queues))


def _json(content: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(content), status, media_type="application/json")
