"""A small machine in simulated time: what `make bench` shows of a large one must hold here too."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from hpo_pilot.hpc.scheduler import Policy
from hpo_pilot.hpc.usage import Ending, ScheduledJob, Share, Start
from hpo_pilot.jobs.resources import JobNeeds, Node, NodeShape
from tests.hpc.checker import Event, Overlap, check, endings
from tests.hpc.simulation import Outcome, Simulation
from tests.hpc.trials import TrialServer, TrialSource, nodes_lost

NODES = [Node(f"n{number:02}", NodeShape(42, 512_000, 6, 3)) for number in range(64)]
DAY = 86_400.0
MIXED = [
    TrialSource("four", JobNeeds(4, 6, 42, 400_000, 180), median=1800, sigma=0.5),
    TrialSource("half", JobNeeds(32, 6, 42, 400_000, 120), median=1800, sigma=0.3, count=6, parallel=1, arrives=3600),
    TrialSource("pairs", JobNeeds(2, 3, 21, 200_000, 90), median=900, sigma=0.6, parallel=12),
    TrialSource("one", JobNeeds(1, 1, 7, 60_000, 60), median=600, sigma=0.7, parallel=15),
    TrialSource("cpu", JobNeeds(1, 0, 14, 30_000, 60), median=600, sigma=0.7, parallel=5, arrives=7200),
]


def _run(sources: list[TrialSource], *, policy: Policy | None = None, lost: int = 0) -> Outcome:
    losses = list(nodes_lost([node.name for node in NODES], lost, DAY, 5))
    return Simulation(NODES, TrialServer(sources, seed=5), DAY, losses, policy or Policy()).run()


def test_trials_of_one_shape_use_the_machine_and_few_are_cut_by_its_end() -> None:
    outcome = _run(MIXED[:1])
    checked = check(NODES, outcome.events)
    assert checked.node_seconds(checked.useful) / (64 * DAY) > 0.95
    assert outcome.most_running == 16
    counts = endings(outcome.events)
    assert counts.get(Ending.CUT, 0) < 0.02 * counts[Ending.FINISHED]
    asked = endings(_run(MIXED[:1], policy=Policy(measurements=10**9, at_end=1.0)).events)
    assert Ending.CUT not in asked  # by the minutes asked for, every trial ends in time


def test_trials_of_all_shapes_use_the_machine_and_the_large_ones_get_their_turn() -> None:
    outcome = _run(MIXED, lost=1)
    checked = check(NODES, outcome.events)
    usage = outcome.usage
    assert usage.nodes.idle / usage.nodes.total < 0.07
    finished = Counter(str(e.ended).rsplit("-", 1)[0] for e in outcome.events if e.ending is Ending.FINISHED)
    assert finished["half"] >= 4 and finished.keys() == {source.name for source in MIXED}
    # The scheduler's books and what the checker counted from the log are the same.
    spent = usage.nodes.used + usage.nodes.lost
    assert spent == pytest.approx(checked.node_seconds(checked.any), rel=1e-9)
    assert usage.nodes.total == pytest.approx(64 * DAY, rel=1e-12)
    assert usage.gpus.total == pytest.approx(6 * 64 * DAY, rel=1e-12)
    assert usage.nodes.running == usage.gpus.running == 0
    assert usage.endings == endings(outcome.events)
    assert usage.gpus.used == pytest.approx(checked.gpu_seconds, rel=1e-12)


# --- the checker itself finds what is given twice ---


TWO_NODES = [Node("a", NodeShape(4, 1000, 2)), Node("b", NodeShape(4, 1000, 2))]
NEEDS = JobNeeds(nodes=1, gpus_per_node=1, cores=2, memory_mb=500, minutes=10)


def _start(key: str, node: str, gpus: tuple[int, ...], cores: tuple[int, ...], **needs: int) -> Event:
    return Event(5, Start(ScheduledJob(key, "s", replace(NEEDS, **needs)), (Share(node, gpus, cores),)))


def _end(time: float, key: str) -> Event:
    return Event(time, ended=key, ending=Ending.FINISHED)


FIRST_START = _start("1", "a", (0,), (0, 1))


def test_a_sound_log_passes() -> None:
    log = [FIRST_START, _start("2", "a", (1,), (2, 3)), _end(15, "1"), replace(_start("3", "a", (0,), (0, 1)), time=15)]
    checked = check(TWO_NODES, [*log, _end(20, "2"), _end(35, "3")])
    assert (checked.node_seconds(checked.any), checked.gpu_seconds) == (30.0, 10.0 + 15.0 + 20.0)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([_start("2", "a", (0,), (2, 3))], "GPU 0 of a given to 2 while others have it"),
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
        check(TWO_NODES, [FIRST_START, *events])
