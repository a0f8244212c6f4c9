"""Plain scalars of YAML 1.2, which are not those of PyYAML."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo_pilot.search.yaml_document import FLOAT, INT, STR, parse_document, plain_tag, scalar_value

TEXTS = ("yes", "no", "on", "Off", "y", "1_000", "1:30", "2024-01-01", "=", "e5", ".", "1e-", "0x", "0b1", "nan", "inf")


def read(text: str) -> Any:
    document = parse_document(f"x: {text}", "f")
    assert document.problems == []
    return document.value["x"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *zip(["1e-4", "1E5", "-1e+3", "1.e2", ".5", "5."], [1e-4, 1e5, -1e3, 100.0, 0.5, 5.0], strict=True),
        *zip(["+3", "010", "0o17", "0xfF"], [3, 10, 15, 255], strict=True),
        *zip(["!!float 3", "!!str 3", "!!int 0x10"], [3.0, "3", 16], strict=True),
        *zip(["true", "FALSE", "null", "~"], [True, False, None, None], strict=True),
        *zip(["", "'1e-4'", '"true"'], [None, "1e-4", "true"], strict=True),
        *((text, text) for text in TEXTS),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert repr(read(text)) == repr(value)


@pytest.mark.parametrize("text", [".nan", "-.INF", "1e999", "!!int abc", "!!float abc", "!!bool 1", "!!null 3"])
def test_refused(text: str) -> None:
    document = parse_document(f"x: {text}", "f")
    (problem,) = document.problems
    assert (problem.line, problem.column, problem.path) == (1, 4, "x")
    assert document.faulty == {("x",)}


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**250), 10**250))
def test_every_number_comes_back(value: float) -> None:
    texts = [str(value)] if isinstance(value, int) else [repr(value), f"{value:e}", f"{value:.17G}"]
    for text in texts:
        found = read(text)
        assert found == (int(text) if isinstance(value, int) else float(text))
        assert isinstance(found, int) == bool(re.fullmatch(r"[-+]?\d+", text))


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
