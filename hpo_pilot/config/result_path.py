"""Whether a file with the results of an earlier search is there: looked at where the file is."""

from __future__ import annotations

from pathlib import Path

#: Bytes of the largest such file: the export of 10,000 trials of five folds with their logs is about that.
MAX_BYTES = 100_000_000


def result_path(source: str, base: Path) -> Path:
    """The file that a `warm_start` entry names; `base` is the search file's folder."""
    try:
        return base / Path(source).expanduser()
    except RuntimeError:  # no such user's home: there is no such file then
        return base / source


def result_mistake(path: Path) -> tuple[str, str] | None:
    """What is wrong with a result file, and what to do; None where it can be read."""
    try:
        if path.is_dir():
            return f"is a folder, not a file: {path}", ""
        if path.stat().st_size > MAX_BYTES:
            return f"is larger than {MAX_BYTES // 1_000_000} MB", "export it as csv"
        with path.open("rb"):
            return None
    except FileNotFoundError:
        return (
            f"there is no such file: {path}",
            "a relative path starts at this file; a search's name has no '/' or '.'",
        )
    except (OSError, ValueError) as error:  # ValueError: a null character
        return f"cannot be read: {error}", ""
