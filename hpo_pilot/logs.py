"""What a process says of itself: a line an event on stderr, as text or as JSON, and no secret in either.

`LogFile` is where the stderr of a process goes that we start.
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

#: The variable that says how, where no option does; whatever a process starts has it from there.
FORMAT_VARIABLE = "HPO_PILOT_LOG_FORMAT"

FORMATS = ("text", "json")

#: The same in every process.
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

#: How often the size of a log file is looked at.
_LOOK_SECONDS = 60.0

#: Of what may be one line of it, so many bytes are left out at most.
_LONGEST_LINE = 1 << 16

#: What tokens and passwords look like, and what is written in their place. A message that has one is a mistake
#: somewhere else; the log is read by more people than the token's file.
_SECRETS = (
    # RFC 7519 in RFC 7515's compact form: base64url of '{"', which every JWT begins with.
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)*"), "<token>"),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), r"\1 <token>"),
    (re.compile(r"([?&;](?:\w*token|password|secret|code|key)=)[^&;\s\"'\\]+", re.IGNORECASE), r"\1<token>"),
    (re.compile(r"(\b[\w+.-]+://[^\s/:@\"']*:)[^\s/@\"']+@"), r"\1<password>@"),
)


#: What the work that goes on in this thread is about; see `about`.
_about: ContextVar[Mapping[str, object]] = ContextVar("about", default={})  # noqa: B039 - replaced, never changed


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """What is logged in this thread meanwhile is about these: `search`, `trial`, `panda_id` and the like.

    JSON logs have them as fields; other threads, and what is about something else, say so with `extra`.
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
    """`text` with something else in place of all that looks like a token or a password."""
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
        # ISO 8601 in UTC, whatever the machine's zone is.
        timestamp="time",
        static_fields={"program": program},
    )


def configure_logging(
    program: str,
    *,
    form: str | None = None,
    level: int | None = None,
    levels: Mapping[str, int] | None = None,
) -> None:
    """Lets this process log to stderr, and whatever it starts in the same form.

    As JSON every line is an object with `time` (ISO 8601, UTC), `level`, `logger`, `message`, `process` (its number),
    `program`, `exception` where there is one, and what the event is about: `search`, `trial`, `panda_id` and the like.

    Args:
        program: what this process is: service, server, api, pilot, …
        form: text or json; None: as HPO_PILOT_LOG_FORMAT says, else text.
        level: of the root logger; None: as it is.
        levels: of loggers that say more or less than that.

    Raises:
        InputError: there is no such form.
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


class LogFile:
    """A file to which processes append their output: of bounded size, and its owner's alone.

    Above `limit` bytes its end is copied to a file beside it, NAME.1, in place of an older one, and the file is emptied
    where it is, so that whoever has it open for appending writes on at its beginning. What is written in the instant
    between the last byte copied and the emptying is lost, as with logrotate's copytruncate: a few microseconds.
    """

    def __init__(self, path: Path, limit: int = 20_000_000) -> None:
        """Makes nothing yet.

        Args:
            path: the file.
            limit: bytes; with the file beside it there are about twice as many.
        """
        self.path = path
        self._limit = limit
        self._next_look = 0.0

    def opened(self) -> BinaryIO:
        """The file, open for appending; it and its folder are made if need be, for their owner alone.

        Raises:
            OSError: it cannot be written.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._next_look = 0.0
        self.bound()
        return os.fdopen(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")

    def bound(self) -> None:
        """Cuts it if it has become too large; to be called often, looks once a minute.

        Where it cannot be cut that is logged, and all else goes on.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        try:
            if self.path.stat().st_size > self._limit:
                self._cut()
        except FileNotFoundError:
            return  # nothing was written yet, or somebody has cleared up
        except OSError as error:
            logging.getLogger(__name__).warning("the log %s cannot be cut: %s", self.path, error)

    def end(self, size: int) -> bytes:
        """Its last `size` bytes, or all where it has less.

        Raises:
            OSError: it cannot be read.
        """
        with self.path.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
            return stream.read(size)

    def _cut(self) -> None:
        with self.path.open("r+b", buffering=0) as now:
            try:
                # A file may be several processes': of two that cut it at once, one would copy what the other has left.
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
                    now.readline(_LONGEST_LINE)  # the rest of one, unless that is where one ends
                    shutil.copyfileobj(now, old)
                    old.flush()
                    part.replace(self.path.with_name(f"{self.path.name}.1"))
                    while os.fstat(now.fileno()).st_size > now.tell():  # more has come meanwhile
                        shutil.copyfileobj(now, old)
                        old.flush()
                    now.truncate(0)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
