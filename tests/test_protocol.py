"""Programs of two versions: at most one protocol apart, and which side to upgrade."""

from __future__ import annotations

import pytest

from hpo_pilot.protocol import PROTOCOL, disagreement


@pytest.mark.parametrize("stated", ["", str(PROTOCOL - 1), str(PROTOCOL), str(PROTOCOL + 1)])
def test_one_apart_is_near_enough_and_other_programs_state_none(stated):
    assert disagreement(stated, "the pilot", "the server") == ""


@pytest.mark.parametrize(
    ("stated", "older"),
    [(str(PROTOCOL + 2), "the server"), ("999999999", "the server"), ("-1", "the pilot"), ("one", "the pilot")],
)
def test_further_apart_names_the_older_side(stated, older):
    assert disagreement(stated, "the pilot", "the server").endswith(f"upgrade hpo-pilot of {older}")
