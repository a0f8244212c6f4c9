"""Texts of messages: without control characters, and with the options that their commands need to work as printed.

A message names a command between backquotes, without the options that say where the searches are (`--workdir` and its
like): it may be stored, or come from a service, and its reader may name that place in another way than its writer.
The code that shows a message adds these options: `Place.completed`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Commands that take only these options, or none. All others work on a store here or on a service.
_TAKES = {
    **dict.fromkeys(("pilot", "sites", "import", "steer", "manual"), ()),
    **dict.fromkeys(("pilots", "token", "plan"), ("workdir",)),
    "serve": ("workdir", "store"),
}

_COMMAND = re.compile(r"`hpo-pilot ([a-z]+)([^`]*)`")
_NAMED = re.compile(r" --(?:workdir|store|service)\b")
_PASSWORD = re.compile(r"(//[^/@:\s]*:)[^@\s]*@")


def printable(text: str) -> str:
    """Returns `text` without control characters: a log of a payload or a server must not control the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def command(*words: str | Path) -> str:
    """Returns a command of `hpo-pilot` quoted for a shell, between backquotes."""
    return f"`hpo-pilot {shlex.join(map(str, words))}`"


@dataclass(frozen=True)
class Place:
    """The options that name the place of searches; None: not given, so commands need no such option.

    Attributes:
        workdir: the work folder.
        store: the store's SQLAlchemy URL; its password is not shown.
        service: the service's URL; the store is then that of the service.
        token_file: the user's token for the service.
        ca: the authority of the service's certificate.
    """

    workdir: str | Path | None = None
    store: str | None = None
    service: str | None = None
    token_file: str | Path | None = None
    ca: str | Path | None = None

    def completed(self, text: str) -> str:
        """Returns `text` with the needed options added to its commands. Commands that name a place stay as they are."""
        return _COMMAND.sub(self._complete, text)

    def command(self, *words: str | Path) -> str:
        """Returns a command with the needed options, quoted for a shell."""
        return self.completed(command(*words)).strip("`")

    def _complete(self, found: re.Match[str]) -> str:
        name, words = found[1], found[2]
        options = self._options(name)
        if not options or _NAMED.search(words):
            return found[0]
        return f"`hpo-pilot {name}{words} {shlex.join(options)}`"

    def _options(self, name: str) -> list[str]:
        given: dict[str, Any] = {"workdir": self.workdir, "store": self.store and _PASSWORD.sub(r"\1***@", self.store)}
        if self.service is not None:  # the other commands run on a machine with the store
            there = {"service": self.service, "token-file": self.token_file, "ca": self.ca, "workdir": self.workdir}
            given = {} if name in _TAKES else there
        named = [(option, given.get(option)) for option in _TAKES.get(name, given)]
        return [word for option, value in named if value is not None for word in (f"--{option}", str(value))]
