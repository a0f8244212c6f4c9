"""Answers, packed where the browser takes that."""

from __future__ import annotations

import gzip
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

#: Smaller answers are not worth packing.
_WORTH = 1400


def packed_answer(
    request: Request,
    content: bytes,
    media_type: str,
    headers: Mapping[str, str] | None = None,
    *,
    status: int = 200,
    is_packed: bool = False,
) -> Response:
    """Bytes of a type.

    Args:
        request: the browser's.
        content: the bytes.
        media_type: of them.
        headers: more of them.
        status: of the answer.
        is_packed: whether they are gzipped already.
    """
    more = {"Vary": "Accept-Encoding", **(headers or {})}
    if "gzip" in request.headers.get("accept-encoding", ""):
        if is_packed or len(content) >= _WORTH:
            more["Content-Encoding"] = "gzip"
            content = content if is_packed else gzip.compress(content, 3, mtime=0)
    elif is_packed:
        content = gzip.decompress(content)
    return Response(content, status, more, media_type)


def download(text: str, media_type: str, name: str) -> Response:
    """A text as a file; texts of payloads may hold what is no UTF-8."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.encode("utf-8", "replace"), 200, headers, media_type)
