"""Keeps a payload's declared checkpoints; in the sandbox of searches that declare some. hpo_pilot_runner.py loads it.

Standard library only, Python 3.6 syntax.
"""

import json
import os
import shutil
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, List, Tuple

SIZES = ".hpo_pilot_sizes.json"  # in a copy: the size of each file in bytes
SAVE_EVERY = 5.0  # seconds between looks at the checkpoints
QUIET = 0.5  # seconds without a write after which a checkpoint counts as complete


class Checkpoints:
    """Keeps the declared checkpoints of a fold between attempts. A copy is made under another name, then renamed."""

    def __init__(self, folder: str, names: "List[str]", files_in: "Callable[[str, List[str]], Iterator[str]]") -> None:
        """Restore the checkpoints that an earlier attempt kept in `folder`; `files_in` is the runner's function."""
        self.names, self.files_in, self.changed = names, files_in, 0.0
        self.kept, self.old, self.new = (os.path.join(folder, name) for name in (".kept", ".old", ".new"))
        self.next = time.monotonic() + SAVE_EVERY
        for source in filter(self.is_whole, (self.kept, self.old)):
            self.copy(source, ".")
            break
        self.saved, self.trouble = self.look(), ""
        self.marked = None  # type: List[Tuple[str, int, float]] | None

    def copy(self, source: str, target: str) -> "List[str]":
        """Copy the declared checkpoints from one folder to another; returns the files."""
        names = list(self.files_in(source, self.names))
        for name in names:
            os.makedirs(os.path.dirname(os.path.join(target, name)), exist_ok=True)
            shutil.copy2(os.path.join(source, name), os.path.join(target, name))
        return names

    def seal(self, folder: str, names: "List[str]") -> None:
        """Force a copy to the disk, with the sizes of its files: a power cut must not leave a checkpoint in part."""
        with open(os.path.join(folder, SIZES), "w") as file:
            json.dump({name: os.path.getsize(os.path.join(folder, name)) for name in names}, file)
        for name in (SIZES, *names):
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())

    def is_whole(self, folder: str) -> bool:
        """Return whether a copy is there and was not damaged; earlier versions wrote no sizes."""
        try:
            with open(os.path.join(folder, SIZES)) as file:
                return all(
                    os.path.getsize(os.path.join(folder, name)) == size for name, size in json.load(file).items()
                )
        except (OSError, ValueError, AttributeError):
            return os.path.isdir(folder) and not os.path.exists(os.path.join(folder, SIZES))

    def look(self) -> "List[Tuple[str, int, float]]":
        """Return the present checkpoint files: (file, bytes, unix time of its last change)."""
        return sorted((f, os.stat(f).st_size, os.stat(f).st_mtime) for f in self.files_in(".", self.names))

    def mark(self) -> None:
        """Note the present files when the payload is told to end."""
        try:
            self.marked = self.look()
        except OSError:  # a file went away
            self.marked = None

    def has_changed(self) -> bool:
        """Return whether files changed after `mark`: only a process that saves on the signal changes them."""
        try:
            return self.marked is not None and self.look() != self.marked
        except OSError:
            return False

    def save(self, settled: bool = False) -> None:
        """Keep changed checkpoints unless they may be incomplete; `settled`: no process writes any more."""
        began = time.monotonic()
        self.next = began + SAVE_EVERY
        try:
            seen = self.look()
            if not seen or seen == self.saved:
                return
            self.changed, self.next = self.changed or began, began + QUIET / 4
            restless = began - self.changed > SAVE_EVERY  # always being written: a short pause between writes is enough
            if settled or time.time() - max(entry[2] for entry in seen) >= (QUIET / 10 if restless else QUIET):
                shutil.rmtree(self.new, ignore_errors=True)
                if self.is_whole(self.kept):  # else the old copy is the only one
                    shutil.rmtree(self.old, ignore_errors=True)
                self.seal(self.new, self.copy(".", self.new))
                if self.look() == seen:
                    shutil.rmtree(self.old, ignore_errors=True)
                    if os.path.isdir(self.kept):
                        os.rename(self.kept, self.old)
                    os.rename(self.new, self.kept)
                    self.saved, self.changed, self.trouble = seen, 0.0, ""
                    self.next = began + SAVE_EVERY + 20 * (time.monotonic() - began)  # copies take 5% of the time
        except OSError as error:  # a removed file, a full disk: the previous copy is still there
            self.trouble = str(error)
            print("hpo_pilot_runner: checkpoint not kept: %s" % error, file=sys.stderr)
