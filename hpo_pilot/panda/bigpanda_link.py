"""Links to BigPanDA, the web pages with the tasks and jobs of a collaboration's PanDA server.

A server does not tell the address of its pages. It is the search file's ``panda.monitor``, else PANDAMON_URL of the
environment (as in panda-client's notebooks), else the known address for that server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import quote, urlsplit

_VARIABLE = "PANDAMON_URL"

#: Pages of PanDA servers by the servers' hosts: ATLAS's from panda-client 2.2.0, DOMA's from PanDA's documentation.
_KNOWN = {
    "pandaserver.cern.ch": "https://bigpanda.cern.ch",
    "pandaserver-doma.cern.ch": "https://panda-doma.cern.ch",
}


class Linked(StrEnum):
    """The target of a link."""

    TASK = "task"  #: one task, by its jediTaskID
    JOB = "job"  #: one job, by its PandaID
    TASKS = "tasks"  #: the tasks with names that match a pattern with ``*``


def is_web_address(text: str) -> bool:
    """Returns True if a text is the URL of a web page without a login in it, which may become a link."""
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
    """Returns the address of a page; None: the server is an embedded one, or its pages are not known.

    Args:
        server: URL of the PanDA server of a search, from the store; None: the search has no server yet.
        kind: the kind of page.
        identity: the id of the task or job, or the pattern.
        monitor: the search file's ``panda.monitor``.
        environment: variables, for PANDAMON_URL.
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
    """Returns the address of the page with all tasks of a search, found by its `uid`; see `bigpanda_link`."""
    return bigpanda_link(server, Linked.TASKS, f"*.{uid}.g*", monitor=monitor, environment=environment)
