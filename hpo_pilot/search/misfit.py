"""What is wrong with a value, and where inside the document it stands."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

#: The way from the top of a document to one of its values: keys of mappings, indices of lists.
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Misfit:
    """One mistake.

    Attributes:
        path: where, from the top of the document that was checked; the place itself may be missing.
        message: what is wrong, to be read after the path: "must be above 0, not -3".
        hint: what was probably meant, or what to do; empty where nobody knows.
        at_key: True where the key is what is wrong, not its value.
        missing: True where nothing stands at `path`, and something must.
        unknown_key: True where the last part of `path` is a key that is not known there.
        rename: the key that was meant, if that is sure enough to go on checking as if it were there.
        substitute: the value that was meant, in the same sense, as a tuple of one; empty: nobody knows.
    """

    path: Path
    message: str
    hint: str = ""
    at_key: bool = False
    missing: bool = False
    unknown_key: bool = False
    rename: str | None = None
    substitute: tuple[Any, ...] = ()

    def __str__(self) -> str:
        text = f"{path_text(self.path)}: {self.message}" if self.path else self.message
        return f"{text} — {self.hint}" if self.hint else text

    def under(self, *prefix: str | int) -> Misfit:
        """The same mistake, seen from a document in which the checked one stands at `prefix`."""
        return replace(self, path=prefix + self.path)


class MisfitError(ValueError):
    """Raised where a value is made from parts that do not fit; carries every mistake found."""

    def __init__(self, misfits: Sequence[Misfit]) -> None:
        super().__init__("; ".join(str(misfit) for misfit in misfits))
        self.misfits = tuple(misfits)


def path_text(path: Path) -> str:
    """The path as people write it: `space.learning_rate.choices[2]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def closest(word: str, options: Iterable[str]) -> str | None:
    """The option that is most like `word`; None where none is like it."""
    by_folded = {option.casefold(): option for option in options}
    found = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """The hint for a misspelt word: the option most like it, or all options where none is."""
    listed = list(options)
    found = closest(word, listed)
    if found is not None:
        return f"did you mean {found}?"
    return f"there is {listing(listed)}" if listed else ""


def listing(words: Sequence[str], last: str = "and") -> str:
    """`a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
