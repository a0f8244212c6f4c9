"""What the runner said of a job's payload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo_pilot.transformation.job_report import USER_METADATA


@dataclass(frozen=True)
class Verdict:
    """On all points of the job together.

    Attributes:
        is_good: whether it brought a figure of merit of each.
        message: why not, of the first that brought none.
    """

    is_good: bool
    message: str = ""


def verdict_in(folder: Path) -> Verdict | None:
    """The verdict in a job's folder; None: it came to none, or its runner is not ours."""
    try:
        said = json.loads((folder / USER_METADATA).read_text(encoding="utf-8"))["hpo_pilot"]
        members: list[Mapping[str, Any]] = said.get("members") or [said]
        bad = [member for member in members if member["status"] != 0]
        return Verdict(not bad, str(bad[0].get("message") or "") if bad else "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
