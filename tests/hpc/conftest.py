"""A batch system that is not there, and allocations of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hpo_pilot.hpc.allocations import AllocationFile, AllocationManager
from hpo_pilot.hpc.batch_system import AllocationSpec, BatchJob, BatchState, BatchSystem
from hpo_pilot.hpc.site_profile import SiteProfile


class FakeBatch(BatchSystem):
    """Keeps its jobs in memory; `before` and `after` a submission a test may have something happen."""

    name: ClassVar[str] = "slurm"
    mark: ClassVar[str] = "#FAKE"
    queue_option: ClassVar[str] = "-q"
    account_option: ClassVar[str] = "-A"

    def __init__(self) -> None:
        self.known: dict[str, BatchJob] = {}
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def options(self, spec: AllocationSpec) -> list[str]:
        return [f"nodes={spec.nodes}"]

    def submit(self, spec: AllocationSpec, *, lock: int | None = None) -> str:
        self.before()
        number = str(100 + len(self.submitted))
        self.submitted.append(spec.name)
        self.known[number] = BatchJob(number, spec.name, BatchState.WAITING, (spec.queue_name or "",))
        self.after()
        return number

    def jobs(self) -> dict[str, BatchJob]:
        return dict(self.known)

    def cancel(self, ids: Collection[str]) -> None:
        assert ids, "the real commands refuse to cancel nothing"
        for number in ids:
            self.cancelled.append(number)
            self.turn(number, BatchState.CANCELLED)

    def turn(self, number: str, state: BatchState) -> None:
        self.known[number] = replace(self.known[number], state=state)


@pytest.fixture
def batch() -> FakeBatch:
    return FakeBatch()


@pytest.fixture
def now() -> list[float]:
    """The time, in the one item."""
    return [1000.0]


@pytest.fixture
def manager(tmp_path: Path, batch: FakeBatch, now: list[float]) -> AllocationManager:
    return AllocationManager(AllocationFile(tmp_path / "work"), systems=lambda _: batch, clock=lambda: now[0])


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., AllocationSpec]:
    def make(name: str, nodes: int = 2, minutes: int = 60, **batch: Any) -> AllocationSpec:
        site = SiteProfile.model_validate({"name": "here", "batch": {"system": "slurm", **batch}})
        return AllocationSpec(site, nodes, minutes, name, tmp_path / "shared" / name, ("true",))

    return make
