"""Logging to stderr, one line per event, as text or JSON, without secrets; and log files of bounded size.

`LogFile` takes the stderr of processes that we start.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import sys
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, BinaryIO

from hpo_pilot.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: The variable with the format, used without an option; child processes inherit it.
FORMAT_VARIABLE = "HPO_PILOT_LOG_FORMAT"

FORMATS = ("text", "json")

#: The format of text logs.
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

#: Seconds between checks of a log file's size.
_LOOK_SECONDS = 60.0

#: Most bytes to skip at a cut to find the next line.
_LONGEST_LINE = 1 << 16

#: Patterns of tokens and passwords, and their replacements. No message should have them; but more people can read the
#: log than the token's file.
_SECRETS = (
    # RFC 7519 in RFC 7515's compact form: base64url of '{"', which every JWT begins with.
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)*"), "<token>"),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), r"\1 <token>"),
    (re.compile(r"([?&;](?:\w*token|password|secret|code|key)=)[^&;\s\"'\\]+", re.IGNORECASE), r"\1<token>"),
    (re.compile(r"(\b[\w+.-]+://[^\s/:@\"']*:)[^\s/@\"']+@"), r"\1<password>@"),
)


#: The fields of this thread's log lines; see `about`.
_about: ContextVar[Mapping[str, object]] = ContextVar("about", default={})  # noqa: B039 - replaced, never changed


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Adds fields such as `search`, `trial` and `panda_id` to this thread's JSON log lines during a block.

    Other threads, and log calls about another object, pass their fields with `extra`.
    """
    before = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(before)


def _add_fields(record: logging.LogRecord) -> bool:
    for name, value in _about.get().items():
        record.__dict__.setdefault(name, value)
    return True


def without_secrets(text: str) -> str:
    """Returns `text` with everything replaced that looks like a token or a password."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


def _json_formatter(program: str) -> logging.Formatter:
    from pythonjsonlogger.json import JsonFormatter  # noqa: PLC0415 - seldom wanted

    class Formatter(JsonFormatter):
        def format(self, record: logging.LogRecord) -> str:
            return without_secrets(super().format(record))

    names = {"levelname": "level", "name": "logger", "exc_info": "exception"}
    return Formatter(
        "%(levelname)s %(name)s %(message)s %(process)d",
        rename_fields=names,
        rename_fields_keep_missing=False,
        # ISO 8601 in UTC, independent of the machine's time zone.
        timestamp="time",
        static_fields={"program": program},
    )


def configure_logging(
    program: str, *, form: str | None = None, level: int | None = None, levels: Mapping[str, int] | None = None
) -> None:
    """Makes this process, and its child processes, log to stderr in one format.

    In JSON every line is an object with `time` (ISO 8601, UTC), `level`, `logger`, `message`, `process` (its number),
    `program`, `exception` if there is one, and the fields of the event, such as `search`, `trial` and `panda_id`.

    Args:
        program: the kind of this process: service, server, api, pilot, …
        form: text or json; None: the value of HPO_PILOT_LOG_FORMAT, else text.
        level: level of the root logger; None: unchanged.
        levels: levels of single loggers.

    Raises:
        InputError: the format is unknown.
    """
    chosen = form or os.environ.get(FORMAT_VARIABLE) or FORMATS[0]
    if chosen not in FORMATS:
        where = "--log-format" if form else FORMAT_VARIABLE
        raise InputError(f"{where} must be {' or '.join(FORMATS)}, not {chosen!r}")
    if form:
        os.environ[FORMAT_VARIABLE] = form
    root = logging.getLogger()
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_add_fields)
    handler.setFormatter(_json_formatter(program) if chosen == "json" else _TextFormatter(_TEXT))
    for old in [one for one in root.handlers if type(one) is logging.StreamHandler]:
        root.removeHandler(old)
    root.addHandler(handler)
    if level is not None:
        root.setLevel(level)
    for name, its in (levels or {}).items():
        logging.getLogger(name).setLevel(its)


def log_end(path: Path, size: int) -> bytes:
    """Returns the last `size` bytes of a log, or all if it has fewer.

    Raises:
        OSError: the log cannot be read, or is a link: a payload may have made it.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read(size)


def last_line(path: Path) -> str:
    """Returns the last line of a log that is not blank; empty: there is none.

    Raises:
        OSError: the log cannot be read.
    """
    lines = log_end(path, 4096).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


class LogFile:
    """A file of bounded size and mode 0600 to which processes append their output.

    If it has more than `limit` bytes, its end is copied to NAME.1, which replaces an older one, and the file is
    truncated in place, so that processes that have it open go on at its beginning. Output between the last copied byte
    and the truncation, within a few microseconds, is lost, as with logrotate's copytruncate.
    """

    def __init__(self, path: Path, limit: int = 20_000_000) -> None:
        """Makes no file yet.

        Args:
            path: the file.
            limit: most bytes; with NAME.1 there are about twice as many.
        """
        self.path = path
        self._limit = limit
        self._next_look = 0.0

    def opened(self) -> BinaryIO:
        """Opens the file for appending; makes it and its folder for their owner only, if they are missing.

        Raises:
            OSError: it cannot be written.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._next_look = 0.0
        self.bound()
        return os.fdopen(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")

    def bound(self) -> None:
        """Cuts the file if it is too large. Call it often: it checks once a minute.

        It logs a failure and goes on.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        try:
            if self.path.stat().st_size > self._limit:
                self._cut()
        except FileNotFoundError:
            return  # nothing was written yet, or the file was removed
        except OSError as error:
            logging.getLogger(__name__).warning("the log %s cannot be cut: %s", self.path, error)

    def _cut(self) -> None:
        with self.path.open("r+b", buffering=0) as now:
            try:
                # Several processes may share the file: two of them must not cut it at the same time.
                fcntl.flock(now, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            size = os.fstat(now.fileno()).st_size
            if size <= self._limit:
                return
            part = self.path.with_name(f".{self.path.name}.part")
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(part, flags, 0o600), "wb") as old:
                    now.seek(size - self._limit - 1)
                    now.readline(_LONGEST_LINE)  # skip the rest of a line
                    shutil.copyfileobj(now, old)
                    old.flush()
                    part.replace(self.path.with_name(f"{self.path.name}.1"))
                    while os.fstat(now.fileno()).st_size > now.tell():  # more was written meanwhile
                        shutil.copyfileobj(now, old)
                        old.flush()
                    now.truncate(0)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
