"""What is wrong with a file, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpo_pilot.errors import InputError


@dataclass(frozen=True)
class Problem:
    """One mistake in a file.

    Attributes:
        file: the file's name as the user gave it.
        line: counted from 1; None where the file as a whole is meant.
        column: counted from 1, in characters; None where `line` is.
        path: where in the document, as `space.learning_rate.low`; empty for the document as a whole.
        message: what is wrong.
        suggestion: what was probably meant, or what to do; may be empty.
    """

    file: str
    line: int | None
    column: int | None
    path: str
    message: str
    suggestion: str = ""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
        text = ": ".join(part for part in (place, self.path, self.message) if part)
        line = " ".join((f"{text} — {self.suggestion}" if self.suggestion else text).split())
        # One line each, and nothing that a terminal obeys, whatever the file's own text has in it.
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class SearchFileError(InputError):
    """A search file is wrong; says everything that is, one problem per line, in the order of the file.

    Attributes:
        problems: all of them.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
        super().__init__("\n".join(str(problem) for problem in self.problems))
