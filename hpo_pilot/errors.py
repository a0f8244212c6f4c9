"""The errors of the product: one root, subclasses named by the reaction they ask for.

A message says what is wrong, where, and what to do next. Causes are chained with ``raise ... from``.
The command line maps `exit_code` to its own exit status; nothing else may invent one.
"""

from __future__ import annotations


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
