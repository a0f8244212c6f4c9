"""Segments: one model each, searched side by side as a family of searches."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from hpo_pilot.search import limits
from hpo_pilot.search.dimension import Dimension
from hpo_pilot.search.point import StrictStr
from hpo_pilot.search.section import Section

#: The longest name of a search; a segment's search is called after the file's search and the segment.
LONGEST_NAME = 50


class Segment(Section):
    """What is different for one segment."""

    inputs: tuple[Annotated[StrictStr, Field(min_length=1)], ...] | None = Field(
        None,
        max_length=limits.MOST_INPUTS,
        description="This segment's inputs, in place of payload.inputs. Default: those.",
    )
    space: dict[str, Dimension] | None = Field(
        None,
        min_length=1,
        max_length=limits.MOST_PARAMETERS,
        description="This segment's parameters, in place of the common space. Default: that.",
    )


def _by_name(value: Any) -> Any:
    """A list of names is short for segments that differ in nothing but their names."""
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        return {name: {} for name in value}
    return value


_Name = Annotated[StrictStr, Field(min_length=1)]
_BY_NAME = {
    "type": "array",
    "items": {"type": "string", "minLength": 1},
    "minItems": 1,
    "maxItems": limits.MOST_SEGMENTS,
    "uniqueItems": True,
}
_FULL = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": limits.MOST_SEGMENTS,
    "additionalProperties": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "inputs": {
                "type": ["array", "null"],
                "items": {"type": "string", "minLength": 1},
                "maxItems": limits.MOST_INPUTS,
                "description": "This segment's inputs, in place of payload.inputs.",
            },
            "space": {
                "type": ["object", "null"],
                "minProperties": 1,
                "maxProperties": limits.MOST_PARAMETERS,
                "description": "This segment's parameters, in place of the common space.",
            },
        },
    },
}

#: Segments by name, in the order of the file.
Segments = Annotated[
    dict[_Name, Segment],
    Field(min_length=1, max_length=limits.MOST_SEGMENTS),
    BeforeValidator(_by_name),
    WithJsonSchema({"anyOf": [_BY_NAME, _FULL]}),
]


def segment_search_name(search: str, segment: str) -> str:
    """The name of the search of one segment: the file's search and the segment, as far as names allow it."""
    return f"{search}-{re.sub(r'[^A-Za-z0-9_-]', '-', segment)}"
