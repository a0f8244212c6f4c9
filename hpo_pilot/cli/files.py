"""Writing the files that commands are asked for."""

from __future__ import annotations

from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Writes a file whole, or not at all.

    Raises:
        InputError: it cannot be written there.
    """
    from hpo_pilot.errors import InputError

    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
