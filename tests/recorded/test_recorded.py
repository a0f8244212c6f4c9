"""Nothing that was recorded has changed: see the package's docstring, and `python -m tests.recorded --help`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.recorded.neutral import differences
from tests.recorded.recording import PARTS, Stage, as_read, read


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


@pytest.mark.parametrize("name", PARTS)
def test_it_is_as_it_was_recorded(name: str, stage: Stage) -> None:
    found = differences(read(name), as_read(PARTS[name](stage)))
    assert not found, f"{len(found)} differences from tests/recorded/data/{name}.json:\n" + "\n".join(found[:40])
