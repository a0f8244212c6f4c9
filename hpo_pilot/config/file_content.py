"""The bytes of a search file."""

from __future__ import annotations

from pathlib import Path

from hpo_pilot.config.problem import Problem

#: Bytes; a search file of a thousand start points is a tenth of it.
MAX_BYTES = 1_000_000


def read_content(path: Path, file: str) -> bytes | Problem:
    """What is in the file, or why that cannot be said.

    Args:
        path: the file.
        file: its name in messages.
    """
    try:
        if path.is_dir():
            inside = sorted(path.glob("*.y*ml"))
            hint = f"did you mean {inside[0]}?" if inside else ""
            return Problem(file, None, None, "", "is a folder, not a file", hint)
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        hint = f"there is {', '.join(sorted(beside)[:5])}" if isinstance(error, FileNotFoundError) and beside else ""
        return Problem(file, None, None, "", f"cannot be read: {reason}", hint)
    if len(content) > MAX_BYTES:
        message = f"is larger than {MAX_BYTES // 1_000_000} MB, which no search file is"
        return Problem(file, None, None, "", message, "is it the right file?")
    return content
