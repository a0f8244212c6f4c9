"""Answers of the legacy API: flat values, as a form or, for whoever accepts it, as JSON.

Formats and codes are those of panda-server 0.8.1 (`pandaserver/jobdispatcher/Protocol.py` and `ErrorCode.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from urllib.parse import urlencode

JSON, PLAIN = "application/json", "text/plain"


class StatusCode(IntEnum):
    """What became of a call."""

    SUCCESS = 0
    NO_JOBS = 20  #: there is no job for this pilot
    ROLE = 60  #: the caller is no pilot
    PERMISSION = 70  #: the caller may not have this
    PROXY_ERROR = 90  #: there is no such proxy or token


#: What a caller without a pilot's role is told.
MESSAGE_ROLE = "no production/pilot role in VOMS FQANs or non pilot owner"


@dataclass(frozen=True)
class Reply:
    """An answer.

    Attributes:
        text: the body.
        media_type: `JSON` or `PLAIN`.
        status: of HTTP; nearly always 200, whatever became of the call.
    """

    text: str
    media_type: str = PLAIN
    status: int = 200


def values(content: Mapping[str, Any], *, as_json: bool) -> Reply:
    """Named values, as JSON or as a form."""
    return Reply(json.dumps(content), JSON) if as_json else Reply(urlencode(content))


def coded(code: StatusCode, dialog: str | None = None, *, as_json: bool, **more: Any) -> Reply:
    """A status code with whatever belongs to it."""
    said = {} if dialog is None else {"errorDialog": dialog}
    return values({"StatusCode": int(code), **said, **more}, as_json=as_json)


def wrong(message: str, status: int = 400) -> Reply:
    """A call that was not understood, or that this server does not have."""
    return Reply(f"ERROR : {message}", PLAIN, status)
