"""Files that are whole, whatever happens while they are written."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, text: str | bytes, mode: int = 0o666) -> None:
    """Writes a file: it is the new one or still the old one, whoever else writes it and whatever happens.

    Args:
        path: the file; its folder is there.
        text: goes into it as UTF-8; bytes as they are.
        mode: its permissions, before the process's umask.

    Raises:
        OSError: it cannot be written, and is as it was.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            stream.write(text.encode() if isinstance(text, str) else text)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
