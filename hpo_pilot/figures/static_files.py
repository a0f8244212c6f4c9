"""The script that draws figures and the style sheet of pages, as they are shipped."""

from __future__ import annotations

from pathlib import Path

#: Where they lie; whoever serves files may serve all of this folder.
STATIC = Path(__file__).parent / "static"


def static_text(name: str) -> str:
    """The text of a file of `STATIC`."""
    return (STATIC / name).read_text(encoding="utf-8")
