"""What a process says of itself: a line an event on stderr, as text or as JSON, and no secret in either."""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from hpo_pilot.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The variable that says how, where no option does; whatever a process starts has it from there.
FORMAT_VARIABLE = "HPO_PILOT_LOG_FORMAT"

FORMATS = ("text", "json")

#: The same in every process.
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

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
