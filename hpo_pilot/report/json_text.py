"""The text of long JSON documents, in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
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
        text = json.dumps(value, indent=1, ensure_ascii=False)
        # In JSON, strings contain no line ends.
        yield f"{lead}{line} {before}" + text.replace("\n", f"{line} ")
        lead = ","
    yield f"{line}{brackets[1]}" if lead == "," else brackets


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
