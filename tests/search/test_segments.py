"""A search with segments is a family: one search each, with its own inputs and, if need be, its own space."""

from __future__ import annotations

import pytest

from hpo_pilot.errors import SearchFileError
from hpo_pilot.search import Search
from hpo_pilot.steering.search_file import parse_search

TEXT = """\
search: tagger
space: {x: {type: real, low: 0, high: 1}}
known: [{point: {x: 0.5}, value: 0.0}]
payload: {command: run %SEGMENT_NAME, inputs: [all]}
segments: SEGMENTS
"""


def parsed(segments: str) -> Search:
    return parse_search(TEXT.replace("SEGMENTS", segments), "search.yaml")


def test_names_alone() -> None:
    family = parsed("[arm, 'left leg']").by_segment()
    assert [search.name for search in family.values()] == ["tagger-arm", "tagger-left-leg"]
    assert [search.segment for search in family.values()] == ["arm", "left leg"]
    assert all(search.payload.inputs == ("all",) for search in family.values())
    assert all(len(search.known) == 1 for search in family.values())


def test_inputs_and_space_of_their_own() -> None:
    family = parsed("{arm: {inputs: [f1]}, leg: {space: {x: {type: real, low: 0, high: 2}}}, body: {}}").by_segment()
    assert family["arm"].payload.inputs == ("f1",)
    assert family["leg"].payload.inputs == ("all",)
    assert family["leg"].to_dict()["space"]["x"]["high"] == 2
    assert family["body"].to_dict()["space"]["x"]["high"] == 1
    assert Search.model_validate(family["arm"].to_dict()) == family["arm"]
    assert (parsed("null").by_segment(), parsed("null").segment) == ({}, None)


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        ("[]", "segments"),
        ("5", "segments: must be a mapping"),
        ("{arm: {input: [f]}}", "segments.arm.input: is not a key"),
        ("['a b', a-b]", "would have the name of that of 'a b'"),
        (f"[{'a' * 60}]", "longer than 50 characters"),
        ("{arm: {space: {y: {type: real, low: 0, high: 1}}}}", "does not fit known[0].point"),
        ("{arm: {space: {}}}", "is empty"),
    ],
)
def test_what_is_wrong_is_told(segments: str, words: str) -> None:
    with pytest.raises(SearchFileError) as caught:
        parsed(segments)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ("[{point: {x: 2}, value: null}]", "known[0].point.x: must be between 0 and 1"),
        ("[{point: {x: 0.5}, value: good}]", "known[0].value"),
        ("[{point: {x: 0.5}}]", "known[0].value: is missing"),
    ],
)
def test_wrong_known_results_are_told(known: str, words: str) -> None:
    text = TEXT.replace("[{point: {x: 0.5}, value: 0.0}]", known).replace("SEGMENTS", "null")
    with pytest.raises(SearchFileError) as caught:
        parse_search(text, "search.yaml")
    assert words in str(caught.value)
