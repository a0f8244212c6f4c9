"""The manual's console listings do what they show, in the order of each page."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.manual.pages import MANUAL, listings, sessions

#: Pages that go on where another ends: that one is gone through first.
AFTER = {"monitor": "quick-start"}

PAGES = [
    page
    for page in sorted(MANUAL.glob("*.md"))
    if any(one.language == "console" for one in listings(page)) and page.stem not in AFTER.values()
]


def shown(printed: str, wanted: list[str]) -> bool:
    """Whether lines were printed as a listing has them; \u2026 stands for anything, also for any number of lines."""
    pattern = "\n".join(wanted).replace("[", "[[]")
    return fnmatch.fnmatchcase(
        printed.rstrip("\n"), pattern.replace("*", "[*]").replace("?", "[?]").replace("\u2026", "*")
    )


def test_there_are_pages_with_listings():
    assert len(PAGES) >= 4
    assert {"monitor", "tutorial", "moving"} <= {page.stem for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_shows(page: Path, tmp_path: Path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HPO_PILOT_", "PANDA"))}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment["NO_COLOR"] = "1"
    shell = shutil.which("bash")
    assert shell is not None
    before = listings(MANUAL / f"{AFTER[page.stem]}.md") if page.stem in AFTER else []
    for listing in [*before, *listings(page)]:
        if listing.file is not None:
            target = tmp_path / listing.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(listing.text)
        if listing.language != "console":
            continue
        for command, wanted in sessions(listing):
            result = subprocess.run(
                [shell, "-e", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )
            printed = result.stdout + result.stderr
            assert result.returncode == 0, (command, printed)
            if wanted:
                assert shown(printed, wanted) or shown(result.stdout, wanted), (command, printed)
            assert not re.search(r"Traceback", printed), (command, printed)
