"""A job's log as text: from the archive that its pilot stored, else from what its pilot or payload said.

Archives come from pilots, hence from payloads: only so much of one is unpacked, and only its ends are kept.
"""

from __future__ import annotations

import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import job_documents, jobs
from hpo_pilot.server.taskbuffer.job_pages import FindFile, log_file
from hpo_pilot.server.taskbuffer.verdicts import members_of

#: The most of a log that is given, in bytes.
LOG_LIMIT = 8 * 1024 * 1024

_UNPACKED = 256 << 20  # bytes of an archive that are looked through
_MEMBERS = 200
_BLOCK = 1 << 20
#: What reads as text: the names that our own pilot and Pilot 3 give to logs.
_TEXTS = re.compile(r"(^|/)[^/]*(\.(log|txt|out|err)|stdout|stderr)$")
#: Characters that move a cursor or ring a bell, in a terminal that shows a downloaded log.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class LogSources:
    """Where a job's log is: a stored archive, or texts by their names."""

    archive: Path | None
    texts: tuple[tuple[str, str], ...] = ()


def log_sources(tx: Transaction, panda_id: int, find: FindFile) -> LogSources | None:
    """Where the log of a job is; None: there is no such job."""
    columns = (jobs.c.task_id, jobs.c.number, jobs.c.attempt_nr, jobs.c.status, jobs.c.created, jobs.c.state_changed)
    job = tx.connection.execute(select(*columns).where(jobs.c.panda_id == panda_id)).one_or_none()
    if job is None:
        return None
    archive = log_file(tx, job, find)
    row = tx.connection.execute(
        select(job_documents.c.pilot_log, job_documents.c.stdout, job_documents.c.meta_data).where(
            job_documents.c.panda_id == panda_id
        )
    ).one_or_none()
    if row is None:
        return LogSources(archive)
    texts = [("payload's output", row.stdout), ("pilot's log", row.pilot_log), *_said(row.meta_data)]
    return LogSources(archive, tuple((title, text) for title, text in texts if text))


def _said(metadata: str | None) -> list[tuple[str, str]]:
    """The last words of each point's payload, which the runner's verdict has where there is no figure of merit."""
    if metadata is None or '"log_tail"' not in metadata:
        return []
    return [
        (f"payload.log of trial {one.get('trial')}, fold {one.get('fold')}", str(one["log_tail"]))
        for one in members_of(metadata)
        if one.get("log_tail")
    ]


def log_text(sources: LogSources, size: int) -> tuple[str, bool]:
    """The end of a log; for a thread that may wait for the disk.

    Args:
        sources: where it is.
        size: characters at most.

    Returns:
        The text, and whether it is all there is. Control characters are replaced.
    """
    parts, whole = (list(sources.texts), True) if sources.archive is None else _unpacked(sources.archive, size)
    if not parts and sources.texts:
        parts = list(sources.texts)
    text = "\n".join(f"==> {title} <==\n{content.rstrip()}\n" for title, content in parts)
    text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n").replace("\r", "\n"))
    return text[-size:], whole and len(text) <= size


def _unpacked(path: Path, size: int) -> tuple[list[tuple[str, str]], bool]:
    """The ends of the texts in an archive, by their names; and whether nothing was left out."""
    found: list[tuple[str, str]] = []
    whole, left = True, _UNPACKED
    try:
        with tarfile.open(path) as archive:
            for count, member in enumerate(archive):
                left -= member.size
                if count >= _MEMBERS or left < 0:
                    return found, False
                if not member.isreg() or not _TEXTS.search(member.name):
                    continue
                content = archive.extractfile(member)
                if content is None:
                    continue
                tail = b""
                while block := content.read(_BLOCK):
                    tail = (tail + block)[-size:]
                whole = whole and len(tail) == member.size
                found.append((member.name, tail.decode(errors="replace")))
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        found.append((path.name, f"the archive cannot be read: {error}"))
    return found, whole
