"""Calls of a batch system's own commands: words, never a shell's line; each ends in time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from hpo_pilot.errors import InputError, TryAgainError

#: A busy controller may take long; then it is asked again.
_SECONDS = 120.0

#: What makes commands speak plainly, whatever the user's settings are.
_PLAIN = {"LC_ALL": "C.UTF-8", "FLUX_F58_FORCE_ASCII": "1"}

#: What of the user's settings changes the form of what they print, or of what is submitted.
_IN_THE_WAY = ("SQUEUE_", "SACCT_", "SBATCH_", "LSB_BJOBS_FORMAT", "LSB_DISPLAY_", "FLUX_JOBS_FORMAT")


class CommandFailedError(TryAgainError):
    """A command said no.

    Attributes:
        said: what it said, on one line.
    """

    def __init__(self, words: Sequence[str], status: int, said: str) -> None:
        """Makes the message.

        Args:
            words: the command.
            status: what it ended with.
            said: its output, errors included.
        """
        self.said = " ".join(said.split())[:1000] or "(nothing)"
        super().__init__(f"{words[0]} ended with status {status}: {self.said}")


def call_unless_over(words: Sequence[str], phrases: Sequence[str]) -> str:
    """As `call`, for a command that fails where jobs it names are over; of several, the others had their due.

    Args:
        words: program and arguments.
        phrases: one of these is in what it says then.

    Returns:
        What it prints; empty where it failed so.
    """
    try:
        return call(words)
    except CommandFailedError as error:
        if any(phrase in error.said for phrase in phrases):
            return ""
        raise


def call(
    words: Sequence[str], *, text: str | None = None, kept_fd: int | None = None, seconds: float = _SECONDS
) -> str:
    """What a command prints.

    Args:
        words: program and arguments.
        text: its standard input; None: there is none.
        kept_fd: a file descriptor that the command holds too, as long as it runs.
        seconds: that it may take.

    Raises:
        InputError: there is no such program here.
        CommandFailedError: its status is not 0.
        TryAgainError: it does not end.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_IN_THE_WAY)}
    try:
        done = subprocess.run(
            list(words),
            input=text if text is not None else "",
            env={**environment, **_PLAIN},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            pass_fds=() if kept_fd is None else (kept_fd,),
            check=False,
        )
    except FileNotFoundError as error:
        raise InputError(
            f"there is no {words[0]} in PATH here: it is a command of the batch system's, which the site's login nodes "
            "have"
        ) from error
    except OSError as error:
        raise InputError(f"{words[0]} cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise TryAgainError(f"{words[0]} has not answered for {seconds:.0f} s; try again later") from error
    if done.returncode != 0:
        raise CommandFailedError(words, done.returncode, f"{done.stderr} {done.stdout}")
    return done.stdout


def last_word(words: Sequence[str], said: str) -> str:
    """The identifier with which a submitting command ends what it says.

    Raises:
        TryAgainError: it says nothing, so that it is to be looked up whether it submitted anything.
    """
    if not said.split():
        raise TryAgainError(f"{words[0]} does not say which job it submitted")
    return said.rsplit(maxsplit=1)[-1]
