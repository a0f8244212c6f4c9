"""Names of other tools as search files take them."""

from __future__ import annotations

import re

from hpo_pilot.config.foreign.draft import Draft
from hpo_pilot.config.foreign.foreign_file import ForeignFile
from hpo_pilot.search.misfit import Path
from hpo_pilot.search.segment import LONGEST_NAME
from hpo_pilot.search.wording import QUEUE_PATTERN

#: `user.nickname.` and the like, before what a data set is about.
_OWNER = re.compile(r"^(?:user|group)\.[^.]+\.")

#: What a shell is to put into a name.
_SHELL = re.compile(r"`[^`]*`|\$\([^)]*\)|\$\{[^}]*\}|\$\w+|\{\w+\}")


def put_name(draft: Draft, file: ForeignFile, path: Path, text: str, fallback: str) -> None:
    """Sets the search's name to what a search can be called that comes nearest to `text`."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")
    if not name[:1].isalpha():
        name = f"{fallback}-{name}".strip("-")
    name = name[:LONGEST_NAME].rstrip("-_")
    draft.put("search", name)
    if name != text:
        file.warn(path, f"the search is called {name}: its name is made of letters, digits, '_' and '-'")


def subject_of(dataset: str) -> str:
    """What an output data set is called beside its owner and what a shell adds to it."""
    return _OWNER.sub("", _SHELL.sub("", dataset).rstrip("/")).strip(".-_ ")


def rucio_name(dataset: str) -> str:
    """A data set with its scope: the one given, or the one that PanDA's tools see in its name."""
    name = dataset.rstrip("/")
    if ":" in name:
        return name
    parts = name.split(".")
    scope = ".".join(parts[:2]) if parts[0] in ("user", "group") else parts[0]
    return f"{scope}:{name}"


def put_sites(draft: Draft, file: ForeignFile, path: Path, sites: list[str], origin: str) -> None:
    """Sets the queue, where one is named."""
    named = [site for site in sites if site and site.upper() != "ANY"]
    if not named:
        return
    draft.put("site", "profile", "grid")
    if len(named) > 1:
        file.warn(path, f"a search file names one queue; PanDA chooses among all, not only {', '.join(named)}")
    elif re.match(QUEUE_PATTERN, named[0]):
        draft.put("site", "queue", named[0], origin=origin)
    else:
        file.wrong(path, f"{named[0]!r} is not the name of a queue")
