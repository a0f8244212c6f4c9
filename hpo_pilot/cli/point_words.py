"""A point as words of a command line, `name=value`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def point_of(words: Iterable[str]) -> dict[str, Any]:
    """The point of `words`; values are what they would be in a search file: `1e-3` a number, `true` a boolean.

    Whether it is in the space is for the search to say.

    Raises:
        InputError: a word is no name=value, a name is there twice, or a value is no single one.
    """
    from hpo_pilot.config.yaml_document import parse_document
    from hpo_pilot.errors import InputError
    from hpo_pilot.search.point import show

    point: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip()
        if not (name and equals and text.strip()):
            raise InputError(f"{word!r}: expected name=value, as in learning_rate=1e-3")
        if name in point:
            raise InputError(f"{name} is given twice")
        document = parse_document(text, word)
        if document.problems:
            raise InputError(f"{word!r}: {document.problems[0].message}")
        if isinstance(document.value, dict | list):
            raise InputError(f"{word!r}: a parameter has one value, not {show(document.value)}")
        point[name] = document.value
    return point
