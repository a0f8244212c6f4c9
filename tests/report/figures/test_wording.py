from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from hpo_pilot.report.formatting import duration, exact, number, plus_minus, printable, scalar, span, when

CASES: list[tuple[Callable[..., str], tuple[Any, ...], str]] = [
    (number, (0.123456,), "0.1235"),
    (number, (0.00001234,), "1.234e-5"),
    (number, (1.5e12,), "1.5e12"),
    (number, (128,), "128"),
    (number, (128.0,), "128"),
    (number, (-2.0,), "-2"),
    (number, (0,), "0"),
    (number, (None,), "–"),
    (number, (math.nan,), "–"),
    (number, (-math.inf,), "–"),
    (plus_minus, (0.0912345, 0.0041234), "0.0912 ± 0.0041"),
    (plus_minus, (-12.3456, 1.5), "-12.3 ± 1.5"),
    (plus_minus, (0.5, None), "0.5"),
    (plus_minus, (0.5, 0.0), "0.5 ± 0"),
    (plus_minus, (123456.0, 2345.0), "123500 ± 2300"),
    (plus_minus, (1e-12, 1e-13), "1e-12 ± 1e-13"),
    (plus_minus, (math.nan, 0.1), "–"),
    (plus_minus, (0.5, math.nan), "0.5"),
    (duration, (0,), "0 s"),
    (duration, (4.23,), "4.2 s"),
    (duration, (59.6,), "1 min"),
    (duration, (192,), "3 min 12 s"),
    (duration, (3900,), "1 h 5 min"),
    (duration, (86400 * 2 + 3600 * 3,), "2 d 3 h"),
    (duration, (None,), "–"),
    (duration, (math.nan,), "–"),
    (duration, (-1,), "–"),
    (scalar, (True,), "true"),
    (scalar, (None,), "null"),
    (scalar, ("adam",), "adam"),
    (scalar, (1,), "1"),
    (scalar, (0.001,), "0.001"),
    (scalar, (1e-5,), "1e-5"),
    # Kinds stay apart.
    (exact, ("adam",), "adam"),
    (exact, ("1",), '"1"'),
    (exact, ("true",), '"true"'),
    (exact, (True,), "true"),
    (exact, (1e-4,), "0.0001"),
    (exact, (1.23456789,), "1.23456789"),
    (printable, ("\x1b[31mred\x1b[0m\r\n\x00\udc80tab\t",), "red\n\ufffd\ufffdtab\t"),
]


@pytest.mark.parametrize(("write", "given", "text"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_figures_in_words(write: Callable[..., str], given: tuple[Any, ...], text: str) -> None:
    assert write(*given) == text


def test_moments_are_in_utc() -> None:
    aware = datetime(2026, 3, 1, 13, 0, 0, tzinfo=timezone(timedelta(hours=1)))
    assert when(aware) == "2026-03-01 12:00:00 UTC"
    naive = datetime(2026, 3, 1, 12, 0, 0)
    assert when(naive) == when(aware)
    assert span(naive, aware.astimezone(UTC) + timedelta(seconds=5)) == 5
    assert span(None, aware) is None
