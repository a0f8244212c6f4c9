from __future__ import annotations

from dataclasses import replace

import pytest

from hpo_pilot.hpc.capacity import Node, NodeShape
from hpo_pilot.hpc.usage import Ending, Job, Share, Start
from hpo_pilot.jobs import JobNeeds
from tests.hpc.checker import Event, Overlap, check
from tests.hpc.simulation import Simulation
from tests.hpc.trials import TrialServer, TrialSource

NODES = [Node("a", NodeShape(4, 1000, 2)), Node("b", NodeShape(4, 1000, 2))]
NEEDS = JobNeeds(nodes=1, gpus_per_node=1, cores=2, memory_mb=500, minutes=10)


def _start(key: str, node: str, gpus: tuple[int, ...], cores: tuple[int, ...], needs: JobNeeds = NEEDS) -> Start:
    return Start(Job(key, "s", needs), (Share(node, gpus, cores),))


def _end(time: float, key: str) -> Event:
    return Event(time, ended=key, ending=Ending.FINISHED)


def test_what_is_right_passes() -> None:
    first, second = _start("1", "a", (0,), (0, 1)), _start("2", "a", (1,), (2, 3))
    third = _start("3", "a", (0,), (0, 1))
    checked = check(
        NODES,
        [Event(0, first), Event(0, second), _end(10, "1"), Event(10, third), _end(15, "2"), _end(30, "3")],
    )
    assert checked.node_seconds(checked.any) == 30.0
    assert checked.gpu_seconds == 10.0 + 15.0 + 20.0


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (_start("2", "a", (0,), (2, 3)), "GPU 0 of a given to 2 while 1 has it"),
        (_start("2", "a", (1,), (1, 2)), "core 1 of a given to 2 while 1 has it"),
        (_start("2", "a", (1,), (2, 3), replace(NEEDS, memory_mb=501)), "1001 MB of a given"),
        (_start("2", "b", (2,), (0, 1)), "GPU 2 of b, which has 2"),
        (_start("2", "b", (0, 1), (0, 1)), "got GPUs"),
        (_start("2", "b", (0,), (0, 0)), "got cores"),
        (_start("1", "b", (0,), (0, 1)), "started twice"),
        (_start("2", "b", (0,), (0, 1), replace(NEEDS, nodes=2)), "got 1 nodes"),
    ],
)
def test_what_is_given_twice_or_is_not_there_is_found(second: Start, message: str) -> None:
    with pytest.raises(Overlap, match=message):
        check(NODES, [Event(0, _start("1", "a", (0,), (0, 1))), Event(5, second), _end(9, "1"), _end(9, "2")])


def test_a_lost_node_a_job_without_end_and_time_that_goes_back_are_found() -> None:
    start = _start("1", "a", (0,), (0, 1))
    with pytest.raises(Overlap, match="started on a, which was lost at 1"):
        check(NODES, [Event(1, lost="a"), Event(2, start)])
    with pytest.raises(Overlap, match="1 jobs never ended"):
        check(NODES, [Event(1, start)])
    with pytest.raises(Overlap, match="2 ended and did not run"):
        check(NODES, [Event(1, start), _end(2, "2")])
    with pytest.raises(Overlap, match="back in time"):
        check(NODES, [Event(1, start), _end(0, "1")])


def test_an_overlap_planted_in_a_real_log_is_found() -> None:
    """One job of a simulated day is moved to the node of another that runs: the log must not pass any more."""
    nodes = [Node(f"n{number}", NodeShape(42, 512_000, 6, 3)) for number in range(8)]
    source = TrialSource("s", JobNeeds(1, 6, 42, 400_000, 60), median=600, sigma=0.5)
    events = Simulation(nodes, TrialServer([source], seed=1), 7200).run().events
    check(nodes, events)
    place, moved = [(place, event.start) for place, event in enumerate(events) if event.start][40]
    begun = {event.start.job.key: event.start for event in events[:place] if event.start}
    other = next(start for key, start in begun.items() if all(event.ended != key for event in events[:place]))
    events[place] = replace(events[place], start=replace(moved, shares=other.shares))
    with pytest.raises(Overlap, match=f"given to {moved.job.key} while {other.job.key} has it"):
        check(nodes, events)
