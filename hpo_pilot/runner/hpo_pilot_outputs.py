"""Packs a payload's declared outputs: loaded by hpo_pilot_runner.py where there are any.

Standard library alone, Python 3.6 syntax.
"""

import os
import tarfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, List, Tuple

ARCHIVE = "outputs.tar.gz"
TIMELINE = "horovod_timeline.json"
TIMELINE_KEPT = 32 * 1024 * 1024  # bytes of the timeline's beginning: it grows by each step of a training


def pack(names: "List[str]", files_in: "Callable[[str, List[str]], Iterator[str]]") -> "Tuple[List[str], str]":
    """Pack what is there of `names`: (what was packed, which were not found). `files_in` is the runner's."""
    missing = [name for name in names if not any(files_in(".", [name]))]
    found = [name for name in names if name not in missing]
    if TIMELINE in found:
        shorten(TIMELINE)
    with tarfile.open(ARCHIVE + ".new", "w:gz", compresslevel=3, dereference=True) as archive:
        for file in sorted(set(files_in(".", found))):
            archive.add(file, recursive=False)
    os.rename(ARCHIVE + ".new", ARCHIVE)
    return found, "declared outputs not found: " + ", ".join(missing) if missing else ""


def shorten(path: str) -> None:
    """Cut a timeline after the last whole event that may be kept: one a line, and viewers need no closing bracket."""
    if os.path.getsize(path) > TIMELINE_KEPT:
        with open(path, "rb+") as file:
            file.truncate(file.read(TIMELINE_KEPT).rfind(b"\n") + 1)
