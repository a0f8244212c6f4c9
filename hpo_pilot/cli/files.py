"""Writing the files that commands are asked for."""

from __future__ import annotations

from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Writes a file whole, or not at all; a link stays one, and so does a pipe or a device, as /dev/null.

    Raises:
        InputError: it cannot be written there.
    """
    from hpo_pilot.errors import InputError
    from hpo_pilot.whole_file import write_whole

    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, text)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
