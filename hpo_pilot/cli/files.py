"""Writing the files that commands are asked for."""

from __future__ import annotations

from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Writes a file whole, or not at all.

    Raises:
        InputError: it cannot be written there.
    """
    from hpo_pilot.errors import InputError
    from hpo_pilot.whole_file import write_whole

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
