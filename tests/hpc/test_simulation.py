"""A small machine in simulated time: what `make bench` shows of a large one must hold here too."""

from __future__ import annotations

from collections.abc import Hashable
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


def _run(sources: list[TrialSource], *, policy: Policy | None = None, lost: int = 2, ends: float = DAY) -> Outcome:
    losses = list(nodes_lost([node.name for node in NODES], lost, ends, 5))
    return Simulation(NODES, TrialServer(sources, seed=5), ends, losses, policy or Policy()).run()


def test_trials_of_one_shape_use_the_machine_and_few_are_cut_by_its_end() -> None:
    outcome = _run(MIXED[:1], lost=0)
    checked = check(NODES, outcome.events)
    assert checked.node_seconds(checked.useful) / (64 * DAY) > 0.95
    assert outcome.most_running == 16
    counts = endings(outcome.events)
    assert counts.get(Ending.CUT, 0) < 0.02 * counts[Ending.FINISHED]
    asked = endings(_run(MIXED[:1], lost=0, policy=Policy(measurements=10**9, at_end=1.0)).events)
    assert Ending.CUT not in asked  # by the minutes asked for, every trial ends in time


def test_trials_of_all_shapes_use_the_machine_and_the_large_ones_get_their_turn() -> None:
    outcome = _run(MIXED, lost=1)
    checked = check(NODES, outcome.events)
    usage = outcome.usage
    assert usage.nodes.idle / usage.nodes.total < 0.07
    assert usage.searches["half"].endings.get(Ending.FINISHED, 0) >= 4
    assert all(usage.searches[source.name].endings[Ending.FINISHED] for source in MIXED)
    # The scheduler's books and what the checker counted from the log are the same.
    spent = usage.nodes.used + usage.nodes.lost
    assert spent == pytest.approx(checked.node_seconds(checked.any), rel=1e-9)
    assert usage.nodes.total == pytest.approx(64 * DAY, rel=1e-12)
    assert usage.gpus.total == pytest.approx(6 * 64 * DAY, rel=1e-12)
    assert usage.nodes.running == usage.gpus.running == 0
    counted = {ending: sum(one.endings.get(ending, 0) for one in usage.searches.values()) for ending in Ending}
    assert {ending: count for ending, count in counted.items() if count} == endings(outcome.events)
    assert sum(one.nodes.used for one in usage.searches.values()) == pytest.approx(usage.nodes.used)


def test_nodes_with_jobs_can_be_held_after_each_loss() -> None:
    """As under Slurm before 23.02.3: they get no new jobs until they are empty."""
    losses = list(nodes_lost([node.name for node in NODES], 4, DAY / 3, 5))
    outcome = Simulation(NODES, TrialServer(MIXED, seed=5), DAY / 3, losses, keeps_cores=True).run()
    check(NODES, outcome.events)
    running: dict[Hashable, Start] = {}
    held: set[str] = set()
    for event in outcome.events:
        if event.lost is not None:
            held |= {share.node for start in running.values() for share in start.shares}
        if event.start is not None:
            assert not held & {share.node for share in event.start.shares}
            running[event.start.job.key] = event.start
        if event.ending is not None:
            del running[event.ended]
            held &= {share.node for start in running.values() for share in start.shares}
    plain = Simulation(NODES, TrialServer(MIXED, seed=5), DAY / 3, losses).run()
    assert outcome.usage.nodes.idle > 2 * plain.usage.nodes.idle


def test_the_same_input_gives_the_same_decisions_and_gpu_seconds_of_use_are_exact() -> None:
    first, second = (_run(MIXED, lost=0, ends=DAY / 12) for _ in range(2))
    assert first.events == second.events
    assert first.usage.gpus.used == pytest.approx(check(NODES, first.events).gpu_seconds, rel=1e-12)


def test_backfill_starts_more_than_first_come_first_served() -> None:
    """Three times a trial waits for the whole machine, and what is short runs meanwhile."""
    sources = [
        TrialSource("long", JobNeeds(2, 6, 42, 400_000, 240), median=5400, sigma=0.5),
        TrialSource("whole", JobNeeds(64, 6, 42, 400_000, 60), median=1800, sigma=0.2, count=3, parallel=1, arrives=60),
        TrialSource("short", JobNeeds(1, 6, 42, 400_000, 40), median=900, sigma=0.3),
    ]
    ours = _run(sources, lost=0)
    plain = Simulation(NODES, TrialServer(sources, seed=5), DAY, turns=True).run()
    check(NODES, plain.events)
    assert ours.usage.nodes.idle < 0.75 * plain.usage.nodes.idle
    for usage in (ours.usage, plain.usage):
        assert usage.searches["whole"].endings == {Ending.FINISHED: 3}


def test_a_search_of_large_trials_keeps_its_nodes_from_one_trial_to_the_next() -> None:
    """Its next trial comes seconds after the last one; small trials wait for every GPU that is free."""
    sources = [
        TrialSource("half", JobNeeds(32, 6, 42, 400_000, 90), median=1800, sigma=0.3, parallel=1),
        TrialSource("one", JobNeeds(1, 1, 7, 60_000, 60), median=600, sigma=0.7),
    ]

    def finished(policy: Policy) -> int:
        server = TrialServer(sources, seed=5, pause=3.0)
        usage = Simulation(NODES, server, DAY / 6, policy=policy).run().usage
        return usage.searches["half"].endings[Ending.FINISHED]

    assert finished(Policy()) > 1.5 * finished(Policy(block=0.0))


def test_a_plain_queue_starts_trials_until_the_end() -> None:
    """A peer of the benchmark `allocation` that leaves nodes idle would be no peer."""
    source = TrialSource("four", JobNeeds(4, 6, 42, 400_000, 240), median=2400, sigma=0.8)
    plain = Simulation(NODES, TrialServer([source], seed=5), DAY / 3, turns=True).run()
    checked = check(NODES, plain.events)
    assert plain.usage.nodes.idle < 1.0
    assert checked.node_seconds(checked.useful) / (64 * DAY / 3) > 0.75


@pytest.mark.parametrize("minutes", [60, 90, 110])
def test_a_few_nodes_are_used_before_many_run_times_are_known(minutes: int) -> None:
    """Four nodes for two hours, trials of 20 minutes: whatever they are allowed to take, most of the time is used."""
    whole = JobNeeds(1, 6, 42, 400_000, minutes)
    source = TrialSource("s", whole, median=1200, sigma=0.3)
    shares, cut, finished = [], 0, 0
    for seed in range(6):
        outcome = Simulation(NODES[:4], TrialServer([source], seed=seed), 7200.0).run()
        shares.append(1.0 - outcome.usage.nodes.idle / outcome.usage.nodes.total)
        counts = endings(outcome.events)
        cut, finished = cut + counts.get(Ending.CUT, 0), finished + counts[Ending.FINISHED]
    assert sum(shares) / len(shares) > 0.9  # the last of them do not fit into what is left
    assert cut < 0.1 * finished


@pytest.mark.parametrize(("minutes", "arrives"), [(60, 4500.0), (130, 0.0)])
def test_searches_without_measurements_use_the_nodes_as_a_plain_queue_does(minutes: int, arrives: float) -> None:
    """A search that comes late, or whose trials may take longer than the allocation."""
    known = TrialSource("known", JobNeeds(1, 6, 42, 400_000, 60), 900, sigma=0.5, count=int(64 * arrives / 1000))
    new = TrialSource("new", JobNeeds(1, 6, 42, 400_000, minutes), median=1200, sigma=0.4, arrives=arrives)
    used = []
    for turns in (False, True):
        outcome = Simulation(NODES, TrialServer([known, new], seed=5), 7200.0, turns=turns).run()
        checked = check(NODES, outcome.events)
        used.append(checked.node_seconds(checked.useful))
    assert used[0] > 0.98 * used[1] > 0.8 * 64 * 7200.0


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
