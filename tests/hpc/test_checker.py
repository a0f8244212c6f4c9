"""The checker of allocation logs finds what is given twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpo_pilot.hpc.capacity import Node, NodeShape
from hpo_pilot.hpc.usage import Ending, Job, Share, Start
from hpo_pilot.jobs import JobNeeds
from tests.hpc.checker import Event, Overlap, check

NODES = [Node("a", NodeShape(4, 1000, 2)), Node("b", NodeShape(4, 1000, 2))]
NEEDS = JobNeeds(nodes=1, gpus_per_node=1, cores=2, memory_mb=500, minutes=10)


def _start(key: str, node: str, gpus: tuple[int, ...], cores: tuple[int, ...], **needs: int) -> Event:
    return Event(5, Start(Job(key, "s", replace(NEEDS, **needs)), (Share(node, gpus, cores),)))


def _end(time: float, key: str) -> Event:
    return Event(time, ended=key, ending=Ending.FINISHED)


FIRST = _start("1", "a", (0,), (0, 1))


def test_a_sound_log_passes() -> None:
    log = [FIRST, _start("2", "a", (1,), (2, 3)), _end(15, "1"), replace(_start("3", "a", (0,), (0, 1)), time=15)]
    checked = check(NODES, [*log, _end(20, "2"), _end(35, "3")])
    assert (checked.node_seconds(checked.any), checked.gpu_seconds) == (30.0, 10.0 + 15.0 + 20.0)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([_start("2", "a", (0,), (2, 3))], "GPU 0 of a given to 2 while 1 has it"),
        ([_start("2", "a", (1,), (1, 2))], "core 1 of a given to 2 while 1 has it"),
        ([_start("2", "a", (1,), (2, 3), memory_mb=501)], "1001 MB of a given"),
        ([_start("2", "b", (2,), (0, 1))], "GPU 2 of b, which has 2"),
        ([_start("2", "b", (0, 1), (0, 1))], "got GPUs"),
        ([_start("2", "b", (0,), (0, 0))], "got cores"),
        ([_start("1", "b", (0,), (0, 1))], "started twice"),
        ([_start("2", "b", (0,), (0, 1), nodes=2)], "got 1 nodes"),
        ([Event(5, lost="b"), _start("2", "b", (0,), (0, 1))], "started on b, which was lost at 5"),
        ([], "1 jobs never ended"),
        ([_end(6, "2")], "2 ended and did not run"),
        ([_end(4, "1")], "back in time"),
    ],
)
def test_what_is_given_twice_or_is_not_there_is_found(events: list[Event], message: str) -> None:
    with pytest.raises(Overlap, match=message):
        check(NODES, [FIRST, *events])
