"""Schemas kept as files: written from what they describe, and compared with it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SchemaFiles:
    """The schemas of one folder.

    Attributes:
        names: of the files.
        schema_of: makes the schema that belongs into a file.
        source: what they are made of, in a word for messages.
    """

    names: Collection[str]
    schema_of: Callable[[str], dict[str, Any]]
    source: str

    def write(self, folder: Path) -> None:
        """Writes every schema into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.names:
            (folder / name).write_text(self._text(name), encoding="utf-8")

    def stale(self, folder: Path) -> list[Path]:
        """The files in `folder` that are missing, not what their source says, or of no source."""
        paths = [folder / name for name in self.names]
        stale = [p for p in paths if not p.is_file() or p.read_text(encoding="utf-8") != self._text(p.name)]
        return stale + sorted(set(folder.glob("*.json")) - set(paths))

    def main(self, module: str, description: str, arguments: Sequence[str] | None) -> int:
        """The command ``python -m module [--check] folder``; returns its exit status."""
        parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
        parser.add_argument("folder", type=Path, help="where the schemas are")
        parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a schema is stale")
        options = parser.parse_args(arguments)
        if not options.check:
            self.write(options.folder)
            return 0
        stale = self.stale(options.folder)
        for path in stale:
            sys.stderr.write(f"{path} is not what the {self.source} say: run `make schemas`\n")
        return 1 if stale else 0

    def _text(self, name: str) -> str:
        return json.dumps(self.schema_of(name), indent=2, ensure_ascii=False) + "\n"
