"""Good answers: JSON and texts, packed where the client takes that."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

#: Smaller answers are not worth packing.
_WORTH = 1000


def json_answer(request: Request, document: Any, status: int = 200) -> Response:
    """A document. For handlers that run in threads: packing takes its time."""
    # ASCII: a payload's text may hold what is no UTF-8.
    return answer(request, json.dumps(document, allow_nan=False).encode(), "application/json", status)


def answer(
    request: Request, content: bytes, media_type: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Bytes of a type."""
    more = {**(headers or {}), "Vary": "Accept-Encoding"}
    if len(content) >= _WORTH and "gzip" in request.headers.get("accept-encoding", ""):
        content = gzip.compress(content, compresslevel=5, mtime=0)
        more["Content-Encoding"] = "gzip"
    return Response(content, status, more, media_type)
