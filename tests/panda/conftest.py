from __future__ import annotations

from pathlib import Path

import pytest

from hpo_pilot.jobs import JobNeeds, Member, TaskSpec
from tests.contracts.conftest import kept_server  # noqa: F401  # a fixture


@pytest.fixture
def task(tmp_path) -> TaskSpec:
    return TaskSpec(
        name="user.me.demo.cafecafe.g1/",
        search="demo",
        uid="cafecafe",
        generation=1,
        folds=2,
        points={1: {"x": 0.25}, 2: {"x": 0.5}},
        jobs=((Member(1, 0, 11),), (Member(1, 1, 11),), (Member(2, 0, 22),), (Member(2, 1, 22),)),
        sandbox=Path(tmp_path, "sources.0.tar.gz"),
        needs=JobNeeds(cores=2, memory_mb=3000, minutes=10.0),
        container=None,
        has_outputs=True,
        queue="LOCAL",
    )
