"""The auto-tuning payload through the real command, with another machine's results."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Scan
from tests.payloads.conftest import PAYLOADS
from tests.real.processes import missing, write_search

PAYLOAD = PAYLOADS / "autotune"


@pytest.fixture
def scan(tmp_path: Path) -> Scan:
    """With a server and pilots of its own."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        missing("a C compiler")
    return Scan(tmp_path)


def write(scan: Scan, name: str, **changes: Any) -> None:
    """A search file of the payload, smaller."""

    def edit(document: Any) -> None:
        document["payload"] = {"files": str(PAYLOAD), "command": f"{sys.executable} -S train.py"}

    write_search(scan, PAYLOAD / name, edit, confirm=None, **changes)


def test_a_warm_search_starts_where_the_first_machine_was_fast(scan: Scan) -> None:
    write(
        scan,
        "search-warm.yaml",
        warm_start=[str(PAYLOAD / "first-machine.json")],
        budget={"trials": 4, "parallel": 1},
        optimizer={"name": "bayesian", "start_points": 1},
    )
    result = scan("run", str(scan.file))
    assert "first-machine.json" in result.stdout
    trials = scan.trials()
    assert [trial["state"] for trial in trials] == ["finished"] * 4
    assert all(trial["value"] == trial["folds"][0]["metrics"]["seconds"] > 0 for trial in trials)
    by_hand, *others = [trial["value"] for trial in trials]
    # What is written by hand takes thirty times as long there as the fastest. No processor is so different, and it is
    # hardly busy with something else in each of three runs.
    assert min(others) < by_hand
