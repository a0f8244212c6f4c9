"""What a call asks for: BigPanDA's parameters, as its pages take them.

Several values of one parameter stand with ``|`` or ``,`` between them, ``*`` is a wildcard, ``!`` in front means: not.
Parameters that are not known are passed over, as there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, and_, or_

#: A column, or an expression on some.
Expression: TypeAlias = ColumnElement[Any]

_DAY, _HOUR = 86_400.0, 3600.0
_LONGEST = 100_000.0  # days
_MOST_VALUES = 1000
_LARGEST = 2**63 - 1


class QuestionError(Exception):
    """A parameter makes no sense; the message says which."""


@dataclass(frozen=True)
class Question:
    """The parameters of a call, the last value of each."""

    given: Mapping[str, str]

    def text(self, *names: str) -> str:
        """The first of these parameters that is given; empty: none is."""
        return next((value for name in names if (value := self.given.get(name, "").strip())), "")

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number between `least` and `most`; beyond them it is the one that is nearer."""
        text = self.text(name)
        if not text:
            return default
        if not text.lstrip("-").isdecimal() or len(text) > 18:
            raise QuestionError(f"{name} must be a whole number, not {text[:50]!r}")
        return max(least, min(int(text), most))

    def numbers(self, *names: str) -> list[int]:
        """Ids; empty: none are given."""
        found = []
        for value in _values(self.text(*names)):
            if not value.isdecimal() or len(value) > 19 or int(value) > _LARGEST:
                raise QuestionError(f"{names[0]} must be whole numbers, not {value[:50]!r}")
            found.append(int(value))
        return found

    def words(self, name: str) -> frozenset[str]:
        """What a parameter such as ``extra`` or ``fields`` lists."""
        return frozenset(_values(self.text(name)))

    def times(self, now: float) -> tuple[float | None, float | None]:
        """Between which times, in seconds since the epoch, changes are asked for; None: no bound."""
        if days := self.text("days"):
            return now - self._length("days", days) * _DAY, None
        if hours := self.text("hours"):
            return now - self._length("hours", hours) * _HOUR, None
        return self._date("date_from", 0.0), self._date("date_to", _DAY)

    @staticmethod
    def _length(name: str, text: str) -> float:
        try:
            length = float(text)
        except ValueError:
            length = -1.0
        if not 0 <= length <= _LONGEST:
            raise QuestionError(f"{name} must be a number from 0 to {_LONGEST:g}, not {text[:50]!r}")
        return length

    def _date(self, name: str, of_day: float) -> float | None:
        """A date, or a date and time, in UTC; `of_day` is what a date without a time means of its day."""
        text = self.text(name)
        if not text:
            return None
        try:
            moment = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        except (ValueError, OverflowError) as error:
            raise QuestionError(f"{name} must be a date such as 2026-01-31, not {text[:50]!r}") from error
        return moment + (of_day if len(text) <= 10 else 0.0)

    def matches(self, expression: Expression, *names: str) -> list[ColumnElement[bool]]:
        """The condition that one of these parameters puts on a text; none where none is given."""
        text = self.text(*names)
        return [condition(expression, _values(text))] if text else []

    def wanted(self, value: object, *names: str) -> bool:
        """Whether a text that stands in no column is what one of these parameters asks for."""
        text = self.text(*names)
        return not text or _fits(str(value or ""), _values(text))


def _values(text: str) -> list[str]:
    found = [value.strip() for value in text.replace("|", ",").split(",") if value.strip()]
    if len(found) > _MOST_VALUES:
        raise QuestionError(f"at most {_MOST_VALUES} values in one parameter")
    return found


def condition(expression: Expression, values: Sequence[str]) -> ColumnElement[bool]:
    """That a text is one of `values`, and none of those with a ``!`` in front."""
    not_these = [value[1:] for value in values if value.startswith("!")]
    these = [value for value in values if not value.startswith("!")]
    found = [~_is(expression, value) for value in not_these]
    if these:
        found.append(or_(*(_is(expression, value) for value in these)))
    return and_(*found)


def _is(expression: Expression, value: str) -> ColumnElement[bool]:
    if "*" not in value:
        return expression == value
    pattern = value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
    return expression.like(pattern, escape="\\")


def _fits(text: str, values: Sequence[str]) -> bool:
    """The same of a text at hand."""
    these = [value for value in values if not value.startswith("!")]
    barred = any(_is_like(text, value[1:]) for value in values if value.startswith("!"))
    return not barred and (not these or any(_is_like(text, value) for value in these))


def _is_like(text: str, value: str) -> bool:
    """Whether a text is `value`, in which ``*`` stands for anything; in time that grows with their product at most."""
    first, *rest = value.split("*")
    if not rest:
        return text == value
    *between, last = rest
    if not text.startswith(first) or len(text) < len(first) + len(last) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in between:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
