from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from hpo_pilot.report.formatting import (
    best_text,
    cost_text,
    count,
    duration,
    energy_text,
    estimate_basis,
    exact,
    figures,
    front_text,
    gain_text,
    machine_hours,
    number,
    plus_minus,
    point_text,
    printable,
    ranked_text,
    result_text,
    scalar,
    shortened,
    span,
    stop_text,
    time_left,
    used_of,
    when,
)
from hpo_pilot.search.estimate import Estimate

MEASURED = {"gpu_hours": 0.0, "core_hours": 12.3456, "energy_kwh": 1.25, "energy_source": "mixed", "co2_kg": 0.25}
UNKNOWN = {"gpu_hours": 2.5, "core_hours": 10.0, "energy_kwh": None, "energy_source": None, "co2_kg": None}
CONFIRMED = {"value": 0.25, "std": None, "confirmed": {"value": 0.75, "runs": 2}}
GAIN = {"first": 0.5, "best": 0.25, "gain": 0.25, "per_gpu_hour": None, "per_core_hour": 0.125}
VOLUME = {"first": None, "best": None, "gain": 0.25, "per_gpu_hour": 0.5, "per_core_hour": 0.125}
NEWS: Any = {"metric": "loss", "trials": {"failed": 1}, "best": {"number": 3, "value": 0.5, "std": None}}

CASES: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
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
    (figures, ((0.5, 0.25), (0.1, 0.01), 2), "['0.50 ± 0.10', '0.250 ± 0.010']"),
    (figures, (None, None, 2), "['–', '–']"),
    (figures, (0.123456, None, 1, 6), "['0.123456']"),
    (best_text, ({"value": 0.5, "std": 0.1},), "0.50 ± 0.10"),
    (best_text, (CONFIRMED,), "0.25; 0.75 on average over 2 confirmation runs"),
    (ranked_text, (CONFIRMED,), "0.75"),
    (front_text, (1, None), "1 trial on the front"),
    (result_text, (NEWS,), "1 failed, best loss 0.5 (trial 3)"),
    (
        result_text,
        ({**NEWS, "confirmed": {"number": 2, "value": 0.25, "runs": 1}, "trials": {}},),
        "best loss 0.25, the mean of 1 confirmation run (trial 2)",
    ),
    (
        result_text,
        ({**NEWS, "best": None, "front": {"size": 2, "hypervolume": 0.5}},),
        "1 failed, 2 trials on the front, hypervolume 0.5",
    ),
    (result_text, ({**NEWS, "best": None, "trials": {}},), "no result yet"),
    (stop_text, (3, 0.5), "stopped at step 3 with 0.5"),
    (stop_text, (3, None), "stopped at step 3 with no number"),
    (point_text, ({"rate": 0.001, "kind": "a", "bias": True},), "rate=0.001, kind=a, bias=true"),
    (shortened, ("abcdef", 4), "abc…"),
    (count, (12345, "search", "searches"), "12,345 searches"),
    (machine_hours, (0.0, 12.3456), "('12.35', 'core-hours')"),
    (machine_hours, (2.0, 16.0), "('2', 'GPU-hours')"),
    (energy_text, (1.25, "estimated", None), "1.25 kWh (estimated)"),
    (energy_text, (1.25, "measured", 0.3), "1.25 kWh (measured), 0.3 kg CO₂e"),
    (energy_text, (None, None, None), ""),
    (used_of, (25.0, 100, "GPU-hours"), "25 of 100 GPU-hours (25%)"),
    (cost_text, (MEASURED,), "12.35 core-hours, 1.25 kWh (measured in part), 0.25 kg CO₂e"),
    (
        cost_text,
        (UNKNOWN, {"gpu_hours": 5, "hours": 8}, 2.0),
        "2.5 of 5 GPU-hours (50%), 10 core-hours, 2 of 8 hours (25%)",
    ),
    (gain_text, (GAIN, "loss"), "loss from 0.5 (the first result) to 0.25: 0.25; 0.125 per core-hour"),
    (gain_text, ({**GAIN, "gain": 0.0}, "loss"), "none: no result is better than the first one, loss 0.5"),
    (gain_text, (VOLUME, "loss"), "hypervolume 0.25; 0.5 per GPU-hour"),
    (time_left, (0.2, 0.1, 3.0), "about a moment"),
    (time_left, (125.3, 121.0, 130.0), "about 2 min 5 s"),
    (time_left, (125.3, 60.0, 180.0), "about 2 min 5 s, 1 min to 3 min"),
    (estimate_basis, (Estimate(9.0, 9.0, 9.0, "trials", 9, 60.0, 8, 0, None),), "trials take 1 min, 8 at once"),
    (
        estimate_basis,
        (Estimate(9.0, 9.0, 9.0, "gpu_hours", 10, 60.0, 8, 16, None),),
        "its GPU-hours last for about 10 more trials, at the pace of the last 16 results",
    ),
    (
        estimate_basis,
        (Estimate(9.0, 9.0, 9.0, "hours", 10, 60.0, 8, 16, 1.5),),
        "its 1.5 hours are over then, and running trials end",
    ),
    (printable, ("\x1b[31mred\x1b[0m\r\n\x00\udc80tab\t",), "red\n\ufffd\ufffdtab\t"),
]


@pytest.mark.parametrize(("write", "given", "text"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_figures_in_words(write: Callable[..., Any], given: tuple[Any, ...], text: str) -> None:
    assert str(write(*given)) == text


def test_moments_are_in_utc() -> None:
    aware = datetime(2026, 3, 1, 13, 0, 0, tzinfo=timezone(timedelta(hours=1)))
    assert when(aware) == "2026-03-01 12:00:00 UTC"
    naive = datetime(2026, 3, 1, 12, 0, 0)
    assert when(naive) == when(aware)
    assert span(naive, aware.astimezone(UTC) + timedelta(seconds=5)) == 5
    assert span(None, aware) is None
