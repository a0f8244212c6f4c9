"""The end of a log, however long it is."""

from __future__ import annotations

import os
from pathlib import Path


def end_of(path: Path, size: int) -> str:
    """The last `size` bytes of a log, as text.

    Raises:
        OSError: there is none.
    """
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read().decode(errors="replace")


def last_line(path: Path) -> str:
    """The last line of a log that is not blank; empty: it has none.

    Raises:
        OSError: there is no log.
    """
    lines = end_of(path, 2000).strip().splitlines()
    return lines[-1] if lines else ""
