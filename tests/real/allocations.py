"""Allocations of a real batch system: submitted and followed by the manager. `here`: a fixture of the test's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.hpc.allocations import AllocationFile, AllocationManager
from hpo_pilot.hpc.batch_system import Allocation, AllocationSpec, BatchState, BatchSystem
from tests.real.processes import until


@pytest.fixture
def manager(tmp_path: Path, here: Any) -> AllocationManager:
    return AllocationManager(AllocationFile(tmp_path / "work"))


def submit(manager: AllocationManager, asked: AllocationSpec) -> Allocation:
    return manager.submit(asked, server="https://here", panda_queue="Q")


def wait(manager: AllocationManager, name: str, *states: BatchState) -> Allocation:
    found: list[Allocation] = []

    def has_come() -> bool:
        found[:] = [one for one in manager.refresh() if one.name == name]
        return found[0].state in states

    until(has_come, lambda: str(found))
    return found[0]


def seen(asked: AllocationSpec, line: str) -> list[str]:
    """Returns what the allocation has said, as soon as `line` is among it."""
    path = asked.folder / "seen"
    until(lambda: path.exists() and line in path.read_text().splitlines(), asked.output)
    return path.read_text().splitlines()


def submit_and_crash(asked: AllocationSpec, system: BatchSystem, monkeypatch: pytest.MonkeyPatch, work: Path) -> None:
    """The batch system has the job, and its number was not written down."""

    class Killed(BaseException):
        pass

    submitted = system.submit

    def dying(spec: AllocationSpec, *, lock: int | None = None) -> str:
        submitted(spec, lock=lock)
        raise Killed

    monkeypatch.setattr(system, "submit", dying)
    with pytest.raises(Killed):
        submit(AllocationManager(AllocationFile(work), systems=lambda _: system), asked)
