"""The `warm_start` section of a search file: earlier searches to learn from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hpo_pilot.search.misfit import Misfit
from hpo_pilot.search.point import StrictStr

#: How many earlier searches one can start from.
MOST_SOURCES = 10

_SEARCH_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_Source = Annotated[StrictStr, Field(min_length=1, max_length=1000)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


#: The names of earlier searches and the paths of result files; one alone may stand without a list.
WarmStart = Annotated[
    tuple[_Source, ...],
    Field(max_length=MOST_SOURCES),
    BeforeValidator(_listed, json_schema_input_type=_Source | Annotated[list[_Source], Field(max_length=MOST_SOURCES)]),
    Field(
        description="Earlier searches to learn from: the name of each, or the path of a file that `hpo-pilot export` "
        "wrote. Their results are copied when this search is registered; what it finds itself outvotes them.",
    ),
]


def is_result_file(source: str) -> bool:
    """Whether a `warm_start` entry is the path of a file; else it is the name of a search."""
    return _SEARCH_NAME.fullmatch(source) is None


def warm_start_misfits(name: str, sources: Sequence[str]) -> list[Misfit]:
    """What is wrong with the earlier searches of the search of that name; paths are those of a search file."""
    misfits = []
    for index, source in enumerate(sources):
        if source == name:
            misfits.append(Misfit(("warm_start", index), "is this search itself", "results of its own are `known`"))
        elif source in sources[:index]:
            misfits.append(Misfit(("warm_start", index), f"names {source!r} a second time", "remove one of the two"))
    return misfits
