"""Bodies of requests: read with a limit, unpacked, and turned into arguments."""

from __future__ import annotations

import gzip
import zlib
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request

from hpo_pilot.server.json_text import load

BODY_LIMIT = 32 * 1024 * 1024  # bytes of a call's arguments, unpacked
_MOST_PAIRS = 100_000  # a list of job ids has one for each
_MESSAGE_JSON = "failed to load JSON"


class BodyRefused(Exception):
    """The request's body is not taken."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: Request) -> bytes:
    """The body, unpacked.

    Raises:
        BodyRefused: it is too large, or not what its headers say.
    """
    too_large = BodyRefused(f"the request's body is above {BODY_LIMIT} bytes", 413)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_LIMIT:
            raise too_large
    if request.headers.get("content-encoding", "") != "gzip":
        return bytes(body)
    return unpacked(bytes(body))


def unpacked(body: bytes) -> bytes:
    """A gzipped body.

    Raises:
        BodyRefused: it is none, or too large.
    """
    try:
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        content = unpacker.decompress(body, BODY_LIMIT)
    except (zlib.error, gzip.BadGzipFile) as error:
        raise BodyRefused(f"the request's body is no gzip: {error}", 400) from error
    if unpacker.unconsumed_tail:
        raise BodyRefused(f"the request's body is above {BODY_LIMIT} bytes", 413)
    if not unpacker.eof:
        raise BodyRefused("the request's body is no whole gzip: its end is missing", 400)
    return content


def pairs(query: str) -> dict[str, Any]:
    """Arguments of a query or form; a name that comes more than once has a list.

    Raises:
        BodyRefused: they are more than anybody needs.
    """
    try:
        given = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_PAIRS)
    except ValueError as error:
        raise BodyRefused(f"more than {_MOST_PAIRS} arguments", 413) from error
    values: dict[str, list[str]] = {}
    for name, value in given:
        values.setdefault(name, []).append(value)
    return {name: found if len(found) > 1 else found[0] for name, found in values.items()}


def json_object(body: bytes) -> dict[str, Any]:
    """Arguments that come as a JSON object.

    Raises:
        BodyRefused: it is none, or holds what JSON does not have or no database takes.
    """
    try:
        given = load(body or b"{}")
    except ValueError as error:
        raise BodyRefused(f"{_MESSAGE_JSON}: {error}", 400) from error
    if not isinstance(given, dict):
        raise BodyRefused(f"{_MESSAGE_JSON}: an object is expected", 400)
    return given
