"""Links into a BigPanDA, the web pages that show the tasks and jobs of a collaboration's PanDA server.

A server does not tell where its pages are. So they are the search file's ``panda.monitor``, else PANDAMON_URL of the
environment (as panda-client has it for its notebooks), else those that are known of the server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import quote, urlsplit

_VARIABLE = "PANDAMON_URL"

#: The pages of PanDA servers, by the servers' hosts: ATLAS's as panda-client 2.2.0 has it, DOMA's as PanDA's own
#: documentation names it.
_KNOWN = {
    "pandaserver.cern.ch": "https://bigpanda.cern.ch",
    "pandaserver-doma.cern.ch": "https://panda-doma.cern.ch",
}


class Linked(StrEnum):
    """What a link leads to."""

    TASK = "task"  #: one task, by its jediTaskID
    JOB = "job"  #: one job, by its PandaID
    TASKS = "tasks"  #: the tasks whose names fit a pattern with ``*``


def is_web_address(text: str) -> bool:
    """Whether a text is the URL of a web page, without a login in it: what may become a link."""
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.username is None
            and (parts.port or 1) > 0
            and text.isprintable()
            and not set(text) & set(" \"'<>\\")
        )
    except ValueError:
        return False


def bigpanda_link(
    server: str | None,
    kind: Linked,
    identity: int | str,
    *,
    monitor: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str | None:
    """The address of a page; None: the server is an embedded one, or nobody knows where its pages are.

    Args:
        server: URL of the PanDA server, as the store has it of a search; None: the search has gone to none.
        kind: what the page shows.
        identity: its id, or the pattern.
        monitor: the search file's ``panda.monitor``.
        environment: where PANDAMON_URL is looked for.
    """
    if server is None or not server.startswith(("http://", "https://")):
        return None
    base = monitor or environment.get(_VARIABLE) or _KNOWN.get(urlsplit(server).hostname or "")
    if not base or not is_web_address(base):
        return None
    base = base.rstrip("/")
    named = quote(str(identity), safe="*")
    return {
        Linked.TASK: f"{base}/task/{named}/",
        Linked.JOB: f"{base}/job?pandaid={named}",
        Linked.TASKS: f"{base}/tasks/?taskname={named}",
    }[kind]


def search_link(
    server: str | None, uid: str, *, monitor: str | None = None, environment: Mapping[str, str] = os.environ
) -> str | None:
    """The address of the page with all tasks of a search, whose names have its `uid`; see `bigpanda_link`."""
    return bigpanda_link(server, Linked.TASKS, f"*.{uid}.g*", monitor=monitor, environment=environment)
