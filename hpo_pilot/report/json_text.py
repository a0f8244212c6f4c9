"""The text of long JSON documents, in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring
from math import isfinite
from typing import Any


def json_list(documents: Iterable[Any]) -> Iterator[str]:
    """Yields the text of a JSON list in pieces, as `json.dumps(…, indent=1, ensure_ascii=False)` returns it."""
    return laid_out("[]", (("", document) for document in documents))


def laid_out(brackets: str, members: Iterable[tuple[str, Any]], indent: int = 0) -> Iterator[str]:
    """Yields the text of a JSON list or object in pieces, with the layout of `json.dumps(…, indent=1)`.

    Args:
        brackets: the first and the last character.
        members: pairs of the text before a value (for an object its key and a colon) and the value.
        indent: the depth of the list or object in its document.
    """
    line = "\n" + " " * indent
    lead = brackets[0]
    for before, value in members:
        yield f"{lead}{line} {before}{_text(value, f'{line} ')}"
        lead = ","
    yield f"{line}{brackets[1]}" if lead == "," else brackets


_encoded = json.JSONEncoder(ensure_ascii=False).encode


def _text(value: Any, line: str) -> str:
    """Returns a value with texts as keys; json's own encoder with an indent takes five times as long.

    Args:
        value: the value.
        line: a line end and the indentation of the value.
    """
    kind = type(value)
    if kind is str:
        return encode_basestring(value)
    if value is None:
        return "null"
    if kind is int or (kind is float and isfinite(value)):
        return repr(value)
    within = f"{line} "
    if value and isinstance(value, dict):
        members = [f"{encode_basestring(key)}: {_text(each, within)}" for key, each in value.items()]
        return f"{{{within}{f',{within}'.join(members)}{line}}}"
    if value and isinstance(value, list | tuple):
        return f"[{within}{f',{within}'.join([_text(each, within) for each in value])}{line}]"
    return _encoded(value)


#: Least characters of a part of a text that is sent or written at once.
_PART = 1 << 17


def in_parts(pieces: Iterable[str]) -> Iterator[str]:
    """Joins the pieces of a long text to fewer, larger ones."""
    part: list[str] = []
    size = 0
    for piece in pieces:
        part.append(piece)
        size += len(piece)
        if size >= _PART:
            yield "".join(part)
            part, size = [], 0
    yield "".join(part)
