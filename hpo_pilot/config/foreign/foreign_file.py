"""A file of another tool while it is imported: its values, what is wrong with it, what cannot be carried over."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path as FilePath
from typing import Any

from hpo_pilot.config.file_content import MAX_BYTES
from hpo_pilot.config.problem import Problem, SearchFileError
from hpo_pilot.config.yaml_document import Document, parse_document, read_document
from hpo_pilot.search.misfit import Path, closest, listing, path_text
from hpo_pilot.search.point import is_number, show

_PAIR = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)


class ForeignFile:
    """One file, read.

    Attributes:
        name: the file, for messages.
        folder: where its relative paths start.
        value: what it holds.
        problems: what is wrong with it; `check` raises them.
        warnings: what it says and the search file will not, each with its reason.
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
        """Reads a YAML or JSON file; what is wrong with it is in its `problems`."""
        text = _json_text(path)
        document = read_document(path) if text is None else parse_document(text, str(path))
        return cls(document, path.parent)

    @classmethod
    def of(cls, value: Any, name: str, folder: FilePath) -> ForeignFile:
        """A file of this value, whose places nobody knows."""
        return cls(Document(name, value), folder)

    def wrong(self, path: Path, message: str, hint: str = "", *, at_key: bool = False) -> None:
        """Notes a mistake."""
        if path not in self._document.faulty:
            self.problems.append(self._problem(path, message, hint, at_key))

    def is_readable(self, path: Path) -> bool:
        """Whether all that stands at `path` could be read; otherwise its mistakes are told already."""
        return not any(faulty[: len(path)] == path for faulty in self._document.faulty)

    def warn(self, path: Path, message: str, hint: str = "") -> None:
        """Notes what cannot be carried over."""
        self.warnings.append(self._problem(path, message, hint, True))

    def join(self, other: ForeignFile) -> None:
        """Takes over what is wrong with a file that this one names."""
        self.problems += other.problems
        self.warnings += other.warnings

    def check(self) -> None:
        """Makes sure that nothing is wrong.

        Raises:
            SearchFileError: something is; it has all mistakes.
        """
        if self.problems:
            raise SearchFileError(self.problems)

    def _problem(self, path: Path, message: str, hint: str, at_key: bool) -> Problem:
        if self._placed:
            return self._document.problem(path, message, hint, at_key=at_key)
        return Problem(self.name, None, None, path_text(path), message, hint)

    # --- values ---

    def mapping(self, path: Path, value: Any, what: str = "must be a mapping") -> dict[str, Any] | None:
        """`value` as a mapping; None where it is none, which is noted."""
        if isinstance(value, dict):
            return value
        self.wrong(path, f"{what}, not {show(value)}")
        return None

    def number(self, path: Path, value: Any) -> float | int | None:
        """`value` as a finite number; None where it is none, which is noted."""
        if is_number(value):
            return value  # type: ignore[no-any-return]  # is_number has just said so
        hint = ""
        if isinstance(value, str):
            try:
                hint = "remove the quotes" if math.isfinite(float(value)) else ""
            except ValueError:
                hint = ""
        self.wrong(path, f"must be a number, not {show(value)}", hint)
        return None

    def count(self, path: Path, value: Any, least: int = 1) -> int | None:
        """`value` as a whole number of at least `least`; None where it is none, which is noted."""
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(path, f"must be a whole number, not {show(value)}")
        elif value < least:
            self.wrong(path, f"must be {least} or more, not {value}")
        else:
            return value
        return None

    def text(self, path: Path, value: Any) -> str | None:
        """`value` as text that is not empty; None where it is none, which is noted."""
        if isinstance(value, str) and value:
            return value
        self.wrong(path, f"must be text, not {show(value)}" if value != "" else "is empty")
        return None

    def one_of(self, path: Path, value: Any, known: list[str]) -> bool:
        """Whether `value` is one of `known`; otherwise it is noted, with what was probably meant."""
        if isinstance(value, str) and value in known:
            return True
        meant = closest(value, known) if isinstance(value, str) else None
        self.wrong(
            path, f"must be {listing(known, 'or')}, not {show(value)}", f"did you mean {meant}?" if meant else ""
        )
        return False


def _json_text(path: FilePath) -> str | None:
    """A JSON file's text as YAML takes it, every character in its place; None where YAML shall read the file itself.

    YAML is a superset of JSON but for tabs as blanks and for characters written as surrogate pairs.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return None  # the reader says why
    if text.lstrip()[:1] not in ("{", "["):
        return None
    text = _PAIR.sub(lambda found: json.loads(f'"{found[0]}"'), text)
    return _CONSTANT.sub(lambda found: found[1] + _YAML[found[2]], text).replace("\t", " ")


_CONSTANT = re.compile(r"([\[{,:]\s*)(-?Infinity|NaN)\b")

#: What Python writes into JSON for numbers that are not finite, as YAML has it: the reader refuses them, with place.
_YAML = {"NaN": ".nan", "Infinity": ".inf", "-Infinity": "-.inf"}
