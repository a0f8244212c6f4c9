"""Programs of the tests' own, in place of those that a machine may lack."""

from __future__ import annotations

from pathlib import Path


def program(path: Path, script: str = "") -> Path:
    """Writes a shell script that can be started, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
