"""The parts of the recording, and the files that they are kept in."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.recorded import conversations, points, reading, reports, rows  # noqa: F401  # they declare their parts
from tests.recorded.scenario import Story
from tests.recorded.stage import DATA, PARTS, Stage, keep

__all__ = ["PARTS", "Stage", "make_work", "read", "write"]


def write(name: str, document: dict[str, Any]) -> None:
    """One line for each key, so that a change shows as lines."""
    lines = [f"{json.dumps(key)}: {json.dumps(document[key], ensure_ascii=False)}" for key in sorted(document)]
    (DATA / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


def as_read(document: dict[str, Any]) -> Any:
    """A document as it comes back from its file."""
    return json.loads(json.dumps(document))


def make_work() -> None:
    """Tells the story and keeps its work folder as data."""
    with tempfile.TemporaryDirectory(prefix="recorded-") as folder:
        with Story(Path(folder) / "story") as story:
            story.tell()
        keep(story)
