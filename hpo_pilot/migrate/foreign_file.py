"""Reads a file of another tool, with the place of each value, and records what is wrong in it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Any

from hpo_pilot.errors import Problem, SearchFileError
from hpo_pilot.files import MAX_SEARCH_FILE_BYTES
from hpo_pilot.search.mistakes import FieldPath, closest, listing, path_text
from hpo_pilot.search.values import is_number, show
from hpo_pilot.search.yaml_document import Document, parse_document, read_document

#: A character written as a surrogate pair, which JSON allows and YAML does not.
_PAIR = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)

#: Python's JSON writer puts these words for numbers that are not finite; the YAML reader refuses them with their place.
_CONSTANT = re.compile(r"([\[{,:]\s*)(-?Infinity|NaN)\b")
_YAML = {"NaN": ".nan", "Infinity": ".inf", "-Infinity": "-.inf"}


class ForeignFile:
    """The value of one file, its problems and its warnings.

    Attributes:
        name: name of the file in messages.
        folder: relative paths in the file start here.
        value: content of the file.
        problems: mistakes in the file; `check` raises them.
        warnings: settings that the search file will not have, each with the reason.
    """

    def __init__(self, document: Document, folder: FilePath) -> None:
        self.name = document.file
        self.folder = folder
        self.value = document.value
        self.problems: list[Problem] = list(document.problems)
        self.warnings: list[Problem] = []
        self._document = document
        self._placed = bool(document.values)

    @classmethod
    def read(cls, path: FilePath) -> ForeignFile:
        """Reads a YAML or JSON file; its mistakes are in `problems`."""
        text = _json_text(path)
        document = read_document(path) if text is None else parse_document(text, str(path))
        return cls(document, path.parent)

    @classmethod
    def of(cls, value: Any, name: str, folder: FilePath) -> ForeignFile:
        """Returns a file with this value; its lines and columns are not known."""
        return cls(Document(name, value), folder)

    def wrong(self, path: FieldPath, message: str, hint: str = "", *, at_key: bool = False) -> None:
        """Records a mistake."""
        if path not in self._document.faulty:
            self.problems.append(self._problem(path, message, hint, at_key))

    def is_readable(self, path: FieldPath) -> bool:
        """Returns whether everything below `path` could be read; if not, its mistakes are recorded already."""
        return not any(faulty[: len(path)] == path for faulty in self._document.faulty)

    def warn(self, path: FieldPath, message: str, hint: str = "") -> None:
        """Records a setting that cannot be carried over."""
        self.warnings.append(self._problem(path, message, hint, True))

    def join(self, other: ForeignFile) -> None:
        """Adds the problems and warnings of a file that this one names."""
        self.problems += other.problems
        self.warnings += other.warnings

    def check(self) -> None:
        """Raises the recorded problems, if there are any.

        Raises:
            SearchFileError: the file has mistakes; the error has all of them.
        """
        if self.problems:
            raise SearchFileError(self.problems)

    def _problem(self, path: FieldPath, message: str, hint: str, at_key: bool) -> Problem:
        if self._placed:
            return self._document.problem(path, message, hint, at_key=at_key)
        return Problem(self.name, None, None, path_text(path), message, hint)

    def mapping(self, path: FieldPath, value: Any, what: str = "must be a mapping") -> dict[str, Any] | None:
        """Returns `value` if it is a mapping; else records a mistake and returns None."""
        if isinstance(value, dict):
            return value
        self.wrong(path, f"{what}, not {show(value)}")
        return None

    def number(self, path: FieldPath, value: Any) -> float | int | None:
        """Returns `value` if it is a finite number; else records a mistake and returns None."""
        if is_number(value):
            return value  # type: ignore[no-any-return]  # is_number has checked it
        hint = ""
        if isinstance(value, str):
            with suppress(ValueError):
                hint = "remove the quotes" if math.isfinite(float(value)) else ""
        self.wrong(path, f"must be a number, not {show(value)}", hint)
        return None

    def count(self, path: FieldPath, value: Any, least: int = 1) -> int | None:
        """Returns `value` if it is a whole number, `least` or more; else records a mistake and returns None."""
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(path, f"must be a whole number, not {show(value)}")
        elif value < least:
            self.wrong(path, f"must be {least} or more, not {value}")
        else:
            return value
        return None

    def text(self, path: FieldPath, value: Any) -> str | None:
        """Returns `value` if it is text and not empty; else records a mistake and returns None."""
        if isinstance(value, str) and value:
            return value
        self.wrong(path, f"must be text, not {show(value)}" if value != "" else "is empty")
        return None

    def one_of(self, path: FieldPath, value: Any, known: list[str]) -> bool:
        """Returns whether `value` is one of `known`; if not, records a mistake with the value most like it."""
        if isinstance(value, str) and value in known:
            return True
        meant = closest(value, known) if isinstance(value, str) else None
        self.wrong(
            path, f"must be {listing(known, 'or')}, not {show(value)}", f"did you mean {meant}?" if meant else ""
        )
        return False

    def unknown_key(self, path: FieldPath, message: str, known: Sequence[str], otherwise: str) -> None:
        """Records an unknown key at the end of `path`, with the known key that is most like it, or `otherwise`."""
        meant = closest(str(path[-1]), known)
        self.wrong(path, message, f"did you mean {meant}?" if meant else otherwise, at_key=True)


def _json_text(path: FilePath) -> str | None:
    """Returns a JSON file's text as valid YAML, with the same lines and columns; None for any other file.

    YAML is a superset of JSON except for tabs used as blanks and characters written as surrogate pairs.
    """
    try:
        if path.stat().st_size > MAX_SEARCH_FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return None  # the YAML reader reports the reason
    if text.lstrip()[:1] not in ("{", "["):
        return None
    text = _PAIR.sub(lambda found: json.loads(f'"{found[0]}"'), text)
    return _CONSTANT.sub(lambda found: found[1] + _YAML[found[2]], text).replace("\t", " ")
