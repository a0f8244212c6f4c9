"""Plain scalars: YAML 1.2's, not PyYAML's."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo_pilot.search.yaml_document import FLOAT, INT, STR, parse_document, plain_tag, scalar_value


def read(text: str) -> Any:
    document = parse_document(f"x: {text}", "f")
    assert document.problems == []
    return document.value["x"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("-1e+3", -1e3),
        ("1.e2", 100.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("+3", 3),
        ("010", 10),
        ("0o17", 15),
        ("0xfF", 255),
        ("!!float 3", 3.0),
        ("!!str 3", "3"),
        ("!!int 0x10", 16),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("Off", "Off"),
        ("y", "y"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("2024-01-01 10:00:00", "2024-01-01 10:00:00"),
        ("=", "="),
        ("e5", "e5"),
        (".", "."),
        ("1e", "1e"),
        ("1e-", "1e-"),
        ("0x", "0x"),
        ("0b1", "0b1"),
        ("'1e-4'", "1e-4"),
        ('"true"', "true"),
        ("nan", "nan"),
        ("inf", "inf"),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert repr(read(text)) == repr(value)


@pytest.mark.parametrize("text", [".nan", ".inf", "-.INF", "1e999", "!!int abc", "!!float abc", "!!bool 1", "!!null 3"])
def test_refused(text: str) -> None:
    document = parse_document(f"x: {text}", "f")
    (problem,) = document.problems
    assert (problem.line, problem.column, problem.path) == (1, 4, "x")
    assert document.faulty == {("x",)}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_comes_back(value: float) -> None:
    for text in (repr(value), f"{value:e}", f"{value:.17G}"):
        found = read(text)
        assert float(found) == float(text)
        assert isinstance(found, int) == bool(re.fullmatch(r"[-+]?\d+", text))


@given(st.integers(-(10**250), 10**250))
def test_every_integer_comes_back(value: int) -> None:
    assert read(str(value)) == value
    assert type(read(str(value))) is int


@given(st.from_regex(r"[-+]?(\.[0-9]{1,5}|[0-9]{1,5}(\.[0-9]{0,5})?)([eE][-+]?[0-9]{1,2})?", fullmatch=True))
def test_what_yaml_calls_a_number_python_does_too(text: str) -> None:
    tag = plain_tag(text)
    assert tag in (INT, FLOAT)
    assert scalar_value(tag, text) == float(text)


@given(st.text(alphabet="0123456789.eE+-_xoainf:", min_size=1, max_size=8))
def test_numbers_are_numbers_and_all_else_is_text(text: str) -> None:
    tag = plain_tag(text)
    if tag == STR:
        assert scalar_value(tag, text) == text
        # Python reads more as numbers than YAML does: 1_000, nan, inf.
        assert not re.fullmatch(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?", text)
    elif tag in (INT, FLOAT) and not text.lower().lstrip("+-").startswith((".inf", ".nan")):
        assert re.fullmatch(r"[-+]?[\d.]+([eE][-+]?\d+)?|0[xo][\da-fA-F]+", text)


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    document = parse_document(text, "f")
    assert document.problems or document.value is not None or document.values
