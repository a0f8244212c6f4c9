"""The errors of the product, named by the reaction they ask for, and mistakes in files with line and column.

A message says what is wrong, where, and what to do next. Causes are chained with ``raise ... from``. The exit status of
a command is `exit_code` of its error, and no other module defines exit codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class HpoPilotError(Exception):
    """Root of every error that this product raises on purpose.

    Attributes:
        exit_code: the exit status of a command that ends with this error.
    """

    exit_code = 1


class InputError(HpoPilotError):
    """The user's input is wrong: fix the file, option or point that the message names."""

    exit_code = 2


class TryAgainError(HpoPilotError):
    """A server, network, lock or disk failed for now: the same call may succeed later."""

    exit_code = 3


class EndedError(HpoPilotError):
    """The search has ended, or the trial is to end: the loop of a client that asks for trials has nothing to do."""

    exit_code = 4


class GiveUpError(HpoPilotError):
    """The work cannot go on, and a repetition will not help: the message has the reason."""


class ExhaustedError(HpoPilotError):
    """An optimizer has no point left to propose: every point of the space is told or pending."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a file.

    Attributes:
        file: the file's name as the user gave it.
        line: counted from 1; None: the whole file.
        column: counted from 1, in characters; None if `line` is None.
        path: place in the document, as `space.learning_rate.low`; empty: the whole document.
        message: the mistake.
        suggestion: the probable meaning, or the remedy; may be empty.
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
        # One line each, without control characters from the file's text.
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class SearchFileError(InputError):
    """A search file has mistakes; the message lists all of them, one per line, in the order of the file.

    Attributes:
        problems: all mistakes.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
        super().__init__("\n".join(str(problem) for problem in self.problems))
