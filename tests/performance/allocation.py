"""The scheduler of an allocation beside simple peers and the theoretical bound."""

from __future__ import annotations

import gc
import heapq
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from hpo_pilot.hpc.scheduler import Policy
from hpo_pilot.hpc.usage import Ending, Share, Start
from hpo_pilot.jobs.resources import JobNeeds, Node, NodeShape
from tests.hpc.checker import Event, check
from tests.hpc.simulation import Outcome, Simulation
from tests.hpc.trials import TrialServer, TrialSource, nodes_lost

# The peer of `allocation`: nodes split between searches beforehand, into slots that run one trial after another.
#
# So a Slurm job array, or a loop around `srun`, uses an allocation: a slot belongs to its search until the end.


def split(
    nodes: Sequence[Node],
    sources: Sequence[TrialSource],
    server: TrialServer,
    ends: float,
    losses: Iterable[tuple[float, str]],
) -> list[Event]:
    """What happens then.

    The split is the best that could be known beforehand: nodes in proportion to what each search will need in all, at
    the true mean of its run times. Slots start trials until the end; those that run then are cut.
    """
    events: list[Event] = []
    agenda: list[tuple[float, int, str, Start | str | Sequence[Share]]] = []
    number = itertools.count()
    for when, node in losses:
        heapq.heappush(agenda, (when, next(number), "lose", node))
    search_of: dict[int, str] = {}
    slots_on: defaultdict[str, list[int]] = defaultdict(list)
    slots = _slots(nodes, sources, ends)
    for slot, (source, shares) in enumerate(slots):
        search_of[slot] = source.name
        for share in shares:
            slots_on[share.node].append(slot)
        heapq.heappush(agenda, (source.arrives, next(number), str(slot), shares))
    dead: set[int] = set()
    running: dict[int, Start] = {}
    lost: set[str] = set()
    while agenda and agenda[0][0] < ends:
        now, _, what, about = heapq.heappop(agenda)
        if what == "lose":
            events.append(Event(now, lost=str(about)))
            lost.add(str(about))
            for slot in slots_on[str(about)]:
                dead.add(slot)
                if slot in running:
                    server.over(running[slot].job, now)
                    events.append(Event(now, ended=running.pop(slot).job.key, ending=Ending.LOST))
            continue
        slot = int(what)
        if slot in dead:
            continue
        if isinstance(about, Start):
            server.over(about.job, now)
            events.append(Event(now, ended=about.job.key, ending=_ending(server, about)))
            del running[slot]
            heapq.heappush(agenda, (now + server.pause, next(number), what, about.shares))
            continue
        job = server.hand_out_of(search_of[slot], now)
        if job is not None and not isinstance(about, str):
            running[slot] = start = Start(job, tuple(about))
            events.append(Event(now, start))
            heapq.heappush(agenda, (now + server.fate(job)[0], next(number), what, start))
    for start in running.values():
        events.append(Event(ends, ended=start.job.key, ending=Ending.CUT))
    return events


def _ending(server: TrialServer, start: Start) -> Ending:
    return Ending.FINISHED if server.fate(start.job)[1] else Ending.FAILED


def _slots(
    nodes: Sequence[Node], sources: Sequence[TrialSource], ends: float
) -> list[tuple[TrialSource, tuple[Share, ...]]]:
    """Every slot with its search; nodes of one shape are taken for granted."""
    shape = nodes[0].shape
    per_node = {source.name: _side_by_side(source, nodes[0]) for source in sources}
    # Node-seconds that each search wants; one without end takes what the others leave.
    want = {source.name: source.count * source.needs.nodes * source.mean / per_node[source.name] for source in sources}
    share = {
        source.name: min(
            want[source.name] / max(1.0, ends - source.arrives),
            source.parallel * source.needs.nodes / per_node[source.name],
            float(len(nodes)),
        )
        for source in sources
    }
    endless = [source for source in sources if share[source.name] == len(nodes)]
    taken = sum(share[source.name] for source in sources if source not in endless)
    for source in endless:
        share[source.name] = max(0.0, len(nodes) - taken) / len(endless)
    slots, place = [], 0
    for source in sorted(sources, key=lambda source: source in endless):
        groups = max(1, round(share[source.name] / source.needs.nodes))
        for _ in range(groups):
            group = nodes[place : place + source.needs.nodes]
            if len(group) < source.needs.nodes:
                break
            place += source.needs.nodes
            needs = source.needs
            for side in range(per_node[source.name]):
                gpus = tuple(range(side * needs.gpus_per_node, (side + 1) * needs.gpus_per_node))
                cores = tuple(range(side * needs.cores, (side + 1) * needs.cores))
                slots.append((source, tuple(Share(node.name, gpus, cores) for node in group)))
    assert all(node.shape == shape for node in nodes)
    return slots


def _side_by_side(source: TrialSource, node: Node) -> int:
    """How many trials fit on a node."""
    needs, shape = source.needs, node.shape
    by_gpus = shape.gpus // needs.gpus_per_node if needs.gpus_per_node else shape.cores
    return min(by_gpus, shape.cores // needs.cores, shape.memory_mb // needs.memory_mb)


# Simulated allocations of Summit's nodes, through the scheduler class of the pilot; run times are log-normal, 1% of
# the trials fail, nodes are lost. A checker that knows nothing of the scheduler looks through every log for anything
# given twice.
#
# Used is a GPU's time with trials that finish. Time of trials that failed, were cut by the end, or lost a node is not
# used; with checkpoints, it is used up to the last one if the trial was cut or lost. Both figures are of the same run,
# in which rules know of checkpoints only where a load declares them. For trials of whole nodes these are node-hours.
#
# The next trial of a search comes PAUSE seconds after one has ended, under every rule.
#
# The peers have the same trials, losses and nodes. Both queues start trials until the end, and place them as ours:
# - first come, first served: the trial in turn waits, and nothing starts before it;
# - EASY backfill (Lifka, JSSPP 1995), by the minutes asked for;
# - static split (`split`): nodes split between searches beforehand (a job array).
# Longest first would need run times that nobody knows before a trial ends.

SUMMIT = NodeShape(cores=42, memory_mb=512_000, gpus=6, close=3)
SEED = 20260101
FAILURES = 0.01
CHECKPOINT = 600.0  # seconds between checkpoints
PAUSE = 3.0  # seconds from the end of a trial to the next one of its search


@dataclass(frozen=True)
class Load:
    """An allocation and what is to run there."""

    name: str
    nodes: int
    hours: float
    sources: Sequence[TrialSource]
    lost: int = 0


def _whole(nodes: int, minutes: float) -> JobNeeds:
    return JobNeeds(nodes, 6, 42, 400_000, minutes)


SIX_NODES = TrialSource("six nodes", _whole(6, 240), median=2400, sigma=0.8)
THREE = [
    TrialSource("12 nodes", _whole(12, 150), median=2700, sigma=0.5, parallel=2),
    TrialSource("2 nodes", _whole(2, 120), median=1800, sigma=0.7, parallel=12),
    TrialSource("1 GPU", JobNeeds(1, 1, 7, 60_000, 75), median=1000, sigma=0.7),
]
FEW_LARGE = [
    TrialSource("32 nodes", _whole(32, 150), median=3000, sigma=0.4, parallel=1),
    TrialSource("1 GPU", JobNeeds(1, 1, 7, 60_000, 60), median=700, sigma=0.8),
]
TWO_NODES = [TrialSource("two", _whole(2, 180), median=3000, sigma=0.6)]
ONE_GPU = [TrialSource("small", JobNeeds(1, 1, 7, 80_000, 120), median=2400, sigma=0.5)]


def _six_searches(nodes: int) -> list[TrialSource]:
    """In bulk, a few on half the machine, on one node in 50, on half nodes, on one GPU, on cores alone."""
    half, parts = nodes // 2, nodes // 23
    return [
        TrialSource("gan", _whole(6, 240), median=2400, sigma=0.5),
        TrialSource("half of all", _whole(half, 240), median=3600, sigma=0.3, count=4, arrives=7200, parallel=1),
        TrialSource("large", _whole(nodes // 50, 240), median=3600, sigma=0.4, arrives=3600, parallel=6),
        TrialSource("half nodes", JobNeeds(2, 3, 21, 200_000, 120), 1200, 0.6, count=30 * parts, parallel=parts),
        TrialSource("1 GPU", JobNeeds(1, 1, 7, 60_000, 60), median=600, sigma=0.8, parallel=3 * parts // 2),
        TrialSource("cores", JobNeeds(1, 0, 14, 30_000, 60), 400, 0.7, arrives=10_800, parallel=3 * parts // 2),
    ]


def _few(nodes: int, minutes: float) -> Load:
    source = TrialSource("few", _whole(1, minutes), median=1200, sigma=0.3)
    return Load(f"trials of 20 minutes that may take {minutes:g}", nodes, 2.0, [source])


def _new(name: str, *sources: TrialSource) -> Load:
    """Searches without measured run times, at 512 nodes for two hours."""
    return Load(f"new: {name}", 512, 2.0, sources)


COMING = [
    TrialSource(f"new {number:02}", _whole(1, 80), 1200, 0.4, count=120, arrives=120.0 * number, parallel=60)
    for number in range(24)
]
KNOWN = TrialSource("known", _whole(1, 60), median=900, sigma=0.5, count=2300)
LATE = TrialSource("late", _whole(1, 75), median=1200, sigma=0.4, arrives=4500.0)
LONGER = TrialSource("longer", replace(_whole(1, 480), checkpoints=True), median=14_400, sigma=0.2)
LONG = TrialSource("long", _whole(1, 130), median=2400, sigma=0.4)


def _random(seed: int) -> Load:
    """Two to four searches of random sizes, times and widths: nobody chose them, so no rule was made for them."""
    dice = random.Random(f"load {seed}")
    nodes, hours = dice.choice([32, 64, 128]), dice.choice([4.0, 8.0, 12.0])
    sources = []
    for number in range(dice.randint(2, 4)):
        median, sigma = math.exp(dice.uniform(math.log(400), math.log(3000))), dice.uniform(0.2, 0.8)
        minutes = min(30.0 * hours, math.ceil(median * math.exp(2.2 * sigma) * dice.uniform(1.0, 2.0) / 60.0))
        gpus, wide = dice.choice([1, 2, 3]), dice.choice([0, 0, 1, 1, 2, 4, 8, nodes // 8, nodes // 4, nodes // 2])
        needs = _whole(wide, minutes) if wide else JobNeeds(1, gpus, 7, 60_000, minutes)
        parallel = dice.choice([1, 2, 4, 8, 1_000_000]) if number else 1_000_000  # the first one would fill all nodes
        sources.append(
            TrialSource(f"{needs.nodes} x {needs.gpus_per_node}, {number}", needs, median, sigma, parallel=parallel)
        )
    return Load(f"random {seed}", nodes, hours, sources, lost=dice.choice([0, 0, nodes // 32]))


LOADS = [
    Load("768 six-node trials at once", 4608, 8.0, [SIX_NODES]),
    Load("three shapes", 64, 8.0, THREE),
    Load("many small trials and few on half the nodes", 64, 8.0, FEW_LARGE),
    Load("six searches, 1 GPU to half the nodes", 576, 8.0, _six_searches(576), lost=6),
    Load("two-node trials, one node in ten lost", 256, 12.0, TWO_NODES, lost=26),
    Load("one-GPU trials, one node in 16 lost", 64, 8.0, ONE_GPU, lost=4),
    *(_few(nodes, minutes) for nodes, minutes in [(1, 90), (4, 60), (4, 110), (64, 110)]),
    *(_random(seed) for seed in range(100, 108)),
    _new("a search every two minutes", *COMING),
    _new("a search late", KNOWN, LATE),
    _new("trials that may take 130 minutes", LONG),
    _new("trials of four hours with checkpoints", LONGER),
]
RULES = ("hpo-pilot", "EASY backfill", "first come", "static split")


def measure(*, quick: bool) -> dict[str, Any]:
    """Every load under every rule, ten seeds (quick: one); 40 if it is short, for it runs few trials."""
    figures: dict[str, Any] = {}
    for load in LOADS:
        seeds = 1 if quick else 40 if load.hours <= 2 else 3 if load.name.startswith("random") else 10
        title = f"{load.name}, {load.nodes} nodes for {load.hours:g} h" + (f", {load.lost} lost" if load.lost else "")
        limit, saving = bound(load), bound(load, CHECKPOINT)
        print(f"{title}: at most {limit:.1%} of GPU-hours can be used, with checkpoints {saving:.1%}", flush=True)
        rules = RULES if len(load.sources) > 1 else ("hpo-pilot", "first come")  # of one search, all peers are the same
        figures[title] = {"bound": limit, "bound_with_checkpoints": saving}
        figures[title] |= {rule: _rule(rule, load, seeds) for rule in rules}
    for load in (
        Load("six searches", 4608, 8.0, _six_searches(4608), lost=8),
        Load("27,648 one-GPU trials at once", 4608, 3.0, ONE_GPU),
    ):
        print(f"CPU of the scheduler: {load.name}, {load.nodes} nodes for {load.hours:g} h")
        figures[f"CPU: {load.name}"] = _costs(_run(_simulation("hpo-pilot", load, SEED)))
    return figures


def bound(load: Load, every: float = math.inf, steps: int = 1920) -> float:
    """The share of GPU-hours that can be used at all, by a rule that does not know a run time before its trial ends.

    A GPU runs one trial at a time and does not interrupt it. Let V(r) be the most seconds that it can use, in
    expectation, when r are left. It idles, or starts a trial of a search s:

        V(r) = max(V(r - dt), max over s of E[u + V(r - T) if T <= r, else c(r)])

    T is the run time, u = T for a trial that finishes and 0 for one that fails, and c(r) the part of r up to the last
    checkpoint; they are `every` seconds apart. All that an allocation adds (trials on several nodes begin together,
    turns between searches, few trials at once, later arrivals) only leaves less choice, so V bounds each GPU's expected
    use, and so their sum. A node that is lost after L seconds has V(L), as though that were known. The loss is at a
    random time: the mean over L is taken.

    For one search without checkpoints it is near (1 - failures) (1 - E[T^2] / (2 E[T] W)) for a long walltime W: the
    run that the end meets is E[T^2] / (2 E[T]) old, in the mean, and long runs are met more often than short ones.
    """
    ends, step = 3600.0 * load.hours, 3600.0 * load.hours / steps
    normal, count = NormalDist(), 4000
    deviates = np.array([normal.inv_cdf((n + 0.5) / count) for n in range(count)])
    early = (np.arange(20) + 0.5) / 20  # a failure is anywhere in the run
    searches = []
    for source in load.sources:
        if not source.needs.gpus_per_node:
            continue
        limit = 60.0 * source.needs.minutes
        runs = source.median * np.exp(source.sigma * deviates)
        failed = np.minimum(np.outer(runs, early).ravel(), limit)
        share = np.zeros(steps + 2)  # probability of each run time, in steps
        good = np.zeros(steps + 2)  # its used seconds
        for times, weight, gain in (
            (np.minimum(runs, limit), (1.0 - FAILURES) / count, np.where(runs <= limit, runs, 0.0)),
            (failed, FAILURES / len(failed), np.zeros(len(failed))),
        ):
            place = np.minimum(np.rint(times / step).astype(int), steps + 1)
            np.add.at(share, place, weight)
            np.add.at(good, place, weight * gain)
        searches.append((share, np.cumsum(good), np.cumsum(share)))
    most = np.zeros(steps + 1)
    for left in range(1, steps + 1):
        most[left] = most[left - 1]
        saved = _saved(left * step, every)
        for share, good, ended in searches:
            later = float(share[1 : left + 1] @ most[left - 1 :: -1][:left])
            value = (good[left] + later + (1.0 - ended[left]) * saved) / (1.0 - share[0])
            most[left] = max(most[left], value)
    lost = load.lost / load.nodes
    return float((1.0 - lost) * most[-1] + lost * most.mean()) / ends


def _saved(seconds: float, every: float) -> float:
    """The part of a run up to its last checkpoint."""
    return 0.0 if math.isinf(every) else every * math.floor(seconds / every)


def _rule(rule: str, load: Load, seeds: int) -> dict[str, Any]:
    """Mean and worst of many allocations under a rule."""
    shares_used: dict[float, list[float]] = {math.inf: [], CHECKPOINT: []}
    finished, cut = Counter[str](), 0
    for seed in range(SEED, SEED + seeds):
        simulation = _simulation(rule, load, seed)
        if rule == "static split":
            events = split(simulation.nodes, load.sources, simulation.server, simulation.ends, simulation.losses)
        else:
            events = _run(simulation).events
        check(simulation.nodes, events)
        for every, shares in shares_used.items():
            shares.append(used(events, every) / (simulation.ends * load.nodes * SUMMIT.gpus))
        ended = {event.ended: event.ending for event in events if event.ending is not None}
        cut += sum(ending is Ending.CUT for ending in ended.values())
        finished.update(str(key).rsplit("-", 1)[0] for key, ending in ended.items() if ending is Ending.FINISHED)
    plain, saving = ({"used": sum(shares) / seeds, "worst": min(shares)} for shares in shares_used.values())
    per = {source.name: round(finished[source.name] / seeds, 1) for source in load.sources}
    cuts = cut / max(1, finished.total())
    print(
        f"  {rule:13} {plain['used']:6.1%}, worst {plain['worst']:6.1%}; with checkpoints {saving['used']:6.1%}, worst "
        f"{saving['worst']:6.1%}; cut {cuts:5.1%} of those finished: "
        + ", ".join(f"{count:g} of {name}" for name, count in per.items()),
        flush=True,
    )
    return plain | {"with_checkpoints": saving, "cut": cuts, "finished": per}


def _simulation(rule: str, load: Load, seed: int) -> Simulation:
    nodes = [Node(f"node{number:04}", SUMMIT) for number in range(load.nodes)]
    ends = 3600.0 * load.hours
    losses = list(nodes_lost([node.name for node in nodes], load.lost, ends, seed))
    server = TrialServer(list(load.sources), seed=seed, failures=FAILURES, pause=PAUSE)
    if rule == "hpo-pilot":
        return Simulation(nodes, server, ends, losses)
    asked = Policy(measurements=10**9, block=0.0)  # no run time is ever known: the minutes asked for decide
    return Simulation(nodes, server, ends, losses, asked, blind=True, turns=rule == "first come")


def _run(simulation: Simulation) -> Outcome:
    # The log of a day is hundreds of thousands of objects that a pilot would not keep: collecting them is not its cost.
    gc.disable()
    try:
        return simulation.run()
    finally:
        gc.enable()


def used(events: Iterable[Event], every: float = math.inf) -> float:
    """GPU-seconds of trials that finished, or up to the last checkpoint of those cut or lost."""
    running: dict[Any, tuple[float, Start]] = {}
    used = 0.0
    for event in events:
        if event.start is not None:
            running[event.start.job.key] = event.time, event.start
        elif event.ending is not None:
            began, start = running.pop(event.ended)
            seconds = event.time - began
            if event.ending in (Ending.CUT, Ending.LOST):
                seconds = _saved(seconds, every)
            elif event.ending is not Ending.FINISHED:
                seconds = 0.0
            used += seconds * sum(len(share.gpus) for share in start.shares)
    return used


def _costs(outcome: Outcome) -> dict[str, float]:
    costs = sorted(outcome.costs)
    everything = sum(costs) + sum(sum(calls) for calls in outcome.others.values())
    figures = {
        "most_at_once": outcome.most_running,
        "decision_mean": sum(costs) / len(costs),
        "decision_p99": costs[int(0.99 * len(costs))],
        "decision_most": costs[-1],
        "all_calls_per_trial": everything / len(costs),
    }
    print(
        f"  {'':25} {outcome.most_running} at once; CPU of a decision: mean {1e6 * figures['decision_mean']:.0f} µs, "
        f"p99 {1e6 * figures['decision_p99']:.0f} µs, most {1e6 * figures['decision_most']:.0f} µs; of all the "
        f"scheduler's calls, per trial: {1e6 * figures['all_calls_per_trial']:.0f} µs"
    )
    for name, calls in sorted(outcome.others.items()):
        figures[f"{name}_most"] = max(calls)
        if max(calls) > 1e-3:
            print(f"  {'':25} dearest call of {name}: {1e3 * max(calls):.1f} ms, of {len(calls)}")
    return figures
