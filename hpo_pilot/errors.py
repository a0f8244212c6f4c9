"""The errors of the product, named by the reaction they ask for, and mistakes in files with line and column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# The errors of the product: one root, subclasses named by the reaction they ask for.
#
# A message says what is wrong, where, and what to do next. Causes are chained with ``raise ... from``.
# The command line maps `exit_code` to its own exit status; nothing else may invent one.


class HpoPilotError(Exception):
    """Root of every error that this product raises on purpose.

    Attributes:
        transient: True where the same call may succeed later, unchanged.
        exit_code: what a command ends with when nobody handles the error.
    """

    transient = False
    exit_code = 1


class InputError(HpoPilotError):
    """The user's input is wrong: fix the file, option or point that the message names."""

    exit_code = 2


class TryAgainError(HpoPilotError):
    """A server, network, lock or disk said no for now: the same call may succeed later."""

    transient = True
    exit_code = 3


class GiveUpError(HpoPilotError):
    """The work cannot go on and repeating it will not help: the message says what ended it."""


class ExhaustedError(HpoPilotError):
    """An optimizer has no point left to propose: every point of the space is told or pending."""


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
