from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.applications import Starlette

from hpo_pilot.server.descriptions import TRANSFORMATION
from hpo_pilot.server.queues import route
from hpo_pilot.transformation.executable import build


def get(path: str, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=Starlette(routes=[route()]))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


def test_everybody_may_have_it_and_keep_it() -> None:
    answer = get(f"/trf/user/{TRANSFORMATION}")
    assert answer.status_code == 200 and answer.content == build()
    again = get(f"/trf/user/{TRANSFORMATION}", **{"If-None-Match": answer.headers["ETag"]})
    assert again.status_code == 304 and not again.content


@pytest.mark.parametrize("name", ["runGen", "..%2f..%2fpyproject.toml", "executable.py"])
def test_nothing_else_is_there(name: str) -> None:
    assert get(f"/trf/user/{name}").status_code == 404
