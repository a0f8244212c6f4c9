from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hpo_pilot.hpc.site_profile import Batch, SiteProfile

#: As on a machine where larger jobs may run longer, with a queue for small ones that run long.
BATCH = Batch.model_validate(
    {
        "system": "slurm",
        "queue": "batch",
        "queues": {
            "batch": {
                "walltime": [{"nodes": 91, "hours": 2}, {"nodes": 183, "hours": 6}, {"nodes": 9472, "hours": 12}]
            },
            "extended": {"walltime": [{"nodes": 64, "hours": 24}]},
        },
    }
)


def test_walltimes() -> None:
    batch = BATCH.queues["batch"]
    assert [batch.hours(nodes) for nodes in (1, 91, 92, 183, 184, 9472, 9473)] == [2, 2, 6, 6, 12, 12, None]
    assert BATCH.largest() == 9472
    assert [BATCH.longest(nodes) for nodes in (64, 65, 9472, 9473)] == [24, 12, 12, None]


@pytest.mark.parametrize(
    ("nodes", "hours", "size"),
    [(1, 2, 1), (1, 24, 1), (64, 24, 64), (65, 2, 65), (65, 3, 92), (65, 6.5, 184), (200, 12, 200), (65, 13, None)],
)
def test_the_smallest_allocation_that_holds_a_job(nodes: int, hours: float, size: int | None) -> None:
    assert BATCH.smallest(nodes, hours) == size


def test_what_is_not_said_is_not_limited() -> None:
    batch = Batch()
    assert (batch.largest(), batch.longest(10**6), batch.smallest(10**6, 1000)) == (None, None, 10**6)
    half = Batch.model_validate({"queues": {"small": {"walltime": [{"nodes": 4, "hours": 1}]}, "any": {}}})
    assert (half.largest(), half.longest(5), half.smallest(5, 100)) == (None, None, 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queues": {"a": {"walltime": [{"nodes": 4, "hours": 1}, {"nodes": 4, "hours": 2}]}}}, "must grow"),
        ({"queue": "b", "queues": {"a": {}}}, "'b' is not among the queues: a"),
        ({"warning": {"signal": "SIG usr"}}, "pattern"),
        ({"options": ["--a\n#SBATCH --b"]}, "pattern"),
        ({"system": "condor"}, "slurm"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Batch.model_validate(given)


def test_power_and_shape() -> None:
    profile = SiteProfile.model_validate(
        {
            "name": "x",
            "node": {
                "gpus": {"count": 4, "kind": "amd"},
                "power": {"idle": 100, "per_core": 2, "per_gpu": 250.5, "source": "a meter"},
            },
        }
    )
    assert (profile.node.gpu_count, profile.node.gpu_kind) == (4, "amd")
    assert profile.node.power is not None
    assert profile.node.power.watts(cores=10, gpus=2) == 621
    bare = SiteProfile(name="y").node
    assert (bare.gpu_count, bare.gpu_kind) == (0, "none")
