from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from hpo_pilot.report import formatting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.1235"),
        (0.00001234, "1.234e-5"),
        (1.5e12, "1.5e12"),
        (128, "128"),
        (128.0, "128"),
        (-2.0, "-2"),
        (0, "0"),
        (None, "–"),
        (math.nan, "–"),
        (-math.inf, "–"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("value", "std", "text"),
    [
        (0.0912345, 0.0041234, "0.0912 ± 0.0041"),
        (-12.3456, 1.5, "-12.3 ± 1.5"),
        (0.5, None, "0.5"),
        (0.5, 0.0, "0.5 ± 0"),
        (123456.0, 2345.0, "123500 ± 2300"),
        (1e-12, 1e-13, "1e-12 ± 1e-13"),
        (math.nan, 0.1, "–"),
        (0.5, math.nan, "0.5"),
    ],
)
def test_plus_minus(value: float, std: float | None, text: str) -> None:
    assert formatting.plus_minus(value, std) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (4.23, "4.2 s"),
        (59.6, "1 min"),
        (192, "3 min 12 s"),
        (3900, "1 h 5 min"),
        (86400 * 2 + 3600 * 3, "2 d 3 h"),
        (None, "–"),
        (math.nan, "–"),
        (-1, "–"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert formatting.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (None, "null"), ("adam", "adam"), (1, "1"), (0.001, "0.001"), (1e-5, "1e-5")],
)
def test_scalar(value: Any, text: str) -> None:
    assert formatting.scalar(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [("adam", "adam"), ("1", '"1"'), ("true", '"true"'), (True, "true"), (1e-4, "0.0001"), (1.23456789, "1.23456789")],
)
def test_exact_keeps_kinds_apart(value: Any, text: str) -> None:
    assert formatting.exact(value) == text


def test_moments_are_in_utc() -> None:
    aware = datetime(2026, 3, 1, 13, 0, 0, tzinfo=timezone(timedelta(hours=1)))
    assert formatting.when(aware) == "2026-03-01 12:00:00 UTC"
    naive = datetime(2026, 3, 1, 12, 0, 0)
    assert formatting.when(naive) == formatting.when(aware)
    assert formatting.span(naive, aware.astimezone(UTC) + timedelta(seconds=5)) == 5
    assert formatting.span(None, aware) is None


def test_what_a_terminal_prints_becomes_printable() -> None:
    assert formatting.printable("\x1b[31mred\x1b[0m\r\n\x00\udc80tab\t") == "red\n\ufffd\ufffdtab\t"
