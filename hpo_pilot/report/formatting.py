"""Formats numbers, times and values for people."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

NOTHING = "–"

#: Control characters, except tab and line feed, and single surrogates: logs contain them, HTML and UTF-8 must not.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
#: Removes the zeros and the plus sign of an exponent: 1e-05 becomes 1e-5.
_EXPONENT = re.compile(r"e(?:\+0*|(-)0*)")
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def printable(text: str) -> str:
    """Returns `text` without terminal colours, and with unprintable characters replaced."""
    return _UNPRINTABLE.sub("\ufffd", _TERMINAL_CODE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def number(value: float | None, digits: int = 4) -> str:
    """Formats `value` with `digits` significant digits; integers in full; a dash for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e6):
        return str(int(value))
    return _EXPONENT.sub(r"e\1", format(value, f".{digits}g"))


def plus_minus(value: float | None, std: float | None) -> str:
    """Formats a figure of merit and its spread, rounded to two digits of the spread: ``0.0912 ± 0.0041``."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if std is None or not math.isfinite(std):
        return number(value)
    if std <= 0:
        return f"{number(value)} ± 0"
    decimals = 1 - math.floor(math.log10(std))
    if -6 <= decimals <= 8 and abs(value) < 1e9:
        places = max(0, decimals)
        return f"{round(value, decimals):.{places}f} ± {round(std, decimals):.{places}f}"
    return f"{number(value)} ± {number(std, 2)}"


def scalar(value: Any) -> str:
    """Formats a hyper-parameter's value; None, true and false as in JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return number(value)


def exact(value: Any) -> str:
    """Formats a bound or choice as in a search file: with all digits, and quotes around ambiguous strings."""
    if isinstance(value, str):
        return value if re.fullmatch(r"[A-Za-z][\w./+-]*", value) and value not in _WORDS else json.dumps(value)
    if isinstance(value, float):
        return number(value, 12)
    return json.dumps(value)


#: Words that YAML does not read as strings.
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off"})


def duration(seconds: float | None) -> str:
    """Formats a time span in its two largest units: ``4.2 s``, ``3 min 12 s``, ``1 h 5 min``, ``2 d 3 h``."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return NOTHING
    if 0 < seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def span(start: datetime | None, end: datetime | None) -> float | None:
    """Returns the seconds from `start` to `end`; None where one is missing."""
    if start is None or end is None:
        return None
    return (utc(end) - utc(start)).total_seconds()


def when(moment: datetime | None) -> str:
    """Formats a time in UTC, to the second."""
    return NOTHING if moment is None else f"{utc(moment):%Y-%m-%d %H:%M:%S} UTC"


def utc(moment: datetime) -> datetime:
    """Returns the time in UTC, with its time zone."""
    # SQLite returns times without a zone; ours are UTC.
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def count(n: int, noun: str, plural: str | None = None) -> str:
    """Formats a number with its noun: ``1 trial``, ``2 trials``, ``12,345 trials``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def template_environment(loader: jinja2.BaseLoader) -> jinja2.Environment:
    """Returns a Jinja environment with the filters that reports and pages share. Texts become printable and escaped."""
    import jinja2  # noqa: PLC0415 - commands that render nothing load this module
    from markupsafe import Markup  # noqa: PLC0415 - as above

    def finalize(value: Any) -> Any:
        # Markup comes from this package and is kept as it is.
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for write in (count, duration, exact, number, plus_minus, scalar, when):
        environment.filters[write.__name__] = write
    environment.globals["span"] = span
    return environment
