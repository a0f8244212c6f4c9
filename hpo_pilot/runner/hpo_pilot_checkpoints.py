"""Keeps a payload's declared checkpoints: packed beside hpo_pilot_runner.py where any are declared, and loaded by it.

Standard library alone, Python 3.6 syntax.
"""

import os
import shutil
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, List, Tuple

SAVE_EVERY = 5.0  # seconds between looks at the checkpoints
QUIET = 0.5  # seconds without a write after which a checkpoint counts as complete


class Checkpoints:
    """The declared checkpoints of a trial's fold, kept between attempts; copied, then renamed: whole, or not there."""

    def __init__(self, folder: str, names: "List[str]", files_in: "Callable[[str, List[str]], Iterator[str]]") -> None:
        """Put what the attempt before kept in `folder` into the current one; `files_in` is the runner's."""
        self.names, self.files_in, self.changed = names, files_in, 0.0
        self.kept, self.old, self.new = (os.path.join(folder, name) for name in (".kept", ".old", ".new"))
        self.next = time.monotonic() + SAVE_EVERY
        self.copy(self.kept if os.path.isdir(self.kept) else self.old, ".")
        self.saved = self.look()
        self.marked = None  # type: List[Tuple[str, int, float]] | None

    def copy(self, source: str, target: str) -> None:
        """Copy what is declared from one folder to another."""
        for name in self.files_in(source, self.names):
            os.makedirs(os.path.dirname(os.path.join(target, name)), exist_ok=True)
            shutil.copy2(os.path.join(source, name), os.path.join(target, name))

    def look(self) -> "List[Tuple[str, int, float]]":
        """What is there: (file, bytes, unix time of its last change)."""
        return sorted((f, os.stat(f).st_size, os.stat(f).st_mtime) for f in self.files_in(".", self.names))

    def mark(self) -> None:
        """Note what is there when the payload has been told to end."""
        try:
            self.marked = self.look()
        except OSError:  # a file went away
            self.marked = None

    def has_changed(self) -> bool:
        """Whether anything was written after `mark`, which only a process does that takes the signal to save."""
        try:
            return self.marked is not None and self.look() != self.marked
        except OSError:
            return False

    def save(self, settled: bool = False) -> None:
        """Keep what changed, unless it may be half-written; `settled`: no writer is left."""
        began = time.monotonic()
        self.next = began + SAVE_EVERY
        try:
            seen = self.look()
            if not seen or seen == self.saved:
                return
            self.changed, self.next = self.changed or began, began + QUIET / 4
            restless = began - self.changed > SAVE_EVERY  # then a pause between two writes must do
            if settled or time.time() - max(entry[2] for entry in seen) >= (QUIET / 10 if restless else QUIET):
                for old in (self.new, self.old):
                    shutil.rmtree(old, ignore_errors=True)
                self.copy(".", self.new)
                if self.look() == seen:
                    if os.path.isdir(self.kept):
                        os.rename(self.kept, self.old)
                    os.rename(self.new, self.kept)
                    self.saved, self.changed = seen, 0.0
                    self.next = began + SAVE_EVERY + 20 * (time.monotonic() - began)  # copies take 5% of the time
        except OSError as error:  # a file that went away, a full disk: the copy before is still there
            print("hpo_pilot_runner: checkpoint not kept: %s" % error, file=sys.stderr)
