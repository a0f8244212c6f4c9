"""The scheduler of an allocation beside a static split of its nodes."""

from __future__ import annotations

import gc
import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from hpo_pilot.hpc.capacity import Node, NodeShape
from hpo_pilot.hpc.usage import Ending, Share, Start
from hpo_pilot.jobs import JobNeeds
from tests.hpc.checker import Event, check, endings
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
                    server.over(running[slot].job)
                    events.append(Event(now, ended=running.pop(slot).job.key, ending=Ending.LOST))
            continue
        slot = int(what)
        if slot in dead:
            continue
        if isinstance(about, Start):
            server.over(about.job)
            events.append(Event(now, ended=about.job.key, ending=_ending(server, about)))
            del running[slot]
            about = about.shares
        job = server.hand_out_of(search_of[slot])
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


# A simulated Summit: how much of 4,608 nodes with 6 GPUs each is used, and what a decision of the scheduler costs.
#
# In simulated time, through the very scheduler class of the pilot; log-normal run times, 1% of the trials fail, nodes
# are
# lost. A checker that knows nothing of the scheduler looks through every log for anything given twice, and counts what
# was used itself. Time lost with trials that failed, were cut by the end, or lost a node counts as not used.
#
# The peers have the same trials, the same losses and the same nodes in the same run: nodes split between searches
# beforehand (a job array: see `static_split`), and first come, first served without backfill.

NODES = 4608
LOSSES = 24  # in 24 hours
SUMMIT = NodeShape(cores=42, memory_mb=512_000, gpus=6, close=3)
SEED = 20260101

SIX_NODES = [TrialSource("gan", JobNeeds(6, 6, 42, 400_000, 240), median=2400, sigma=0.5)]
#: Six searches: in bulk, a few on half the machine, on 92 nodes, on half nodes, on one GPU, on cores alone.
MIXED = [
    *SIX_NODES,
    TrialSource("large", JobNeeds(2304, 6, 42, 400_000, 240), 3600, 0.3, count=4, arrives=7200, parallel=1),
    TrialSource("resnet", JobNeeds(92, 6, 42, 400_000, 240), median=3600, sigma=0.4, arrives=3600, parallel=6),
    TrialSource("half", JobNeeds(2, 3, 21, 200_000, 120), median=1200, sigma=0.6, count=6000, parallel=200),
    TrialSource("digits", JobNeeds(1, 1, 7, 60_000, 60), median=600, sigma=0.8, parallel=300),
    TrialSource("bdt", JobNeeds(1, 0, 14, 30_000, 60), median=400, sigma=0.7, arrives=10_800, parallel=300),
]
#: (nodes, hours, minutes that a trial may take), of trials of 20 minutes: how much is idle until run times are known?
FEW = [(4, 2.0, 60), (4, 2.0, 110), (1, 2.0, 90), (64, 2.0, 110)]
ONE_GPU = [TrialSource("small", JobNeeds(1, 1, 7, 80_000, 120), median=2400, sigma=0.5)]


def measure(*, quick: bool) -> dict[str, Any]:
    """Three scenarios of a large machine (quick: of 8 hours instead of 24, without the peers), and small ones."""
    hours = 8.0 if quick else 24.0
    figures: dict[str, Any] = {}
    for name, sources, length in (
        ("768 six-node trials at once", SIX_NODES, hours),
        ("six searches, 1 GPU to 2,304 nodes", MIXED, hours),
        ("27,648 one-GPU trials at once", ONE_GPU, 3.0),
    ):
        print(f"{name}, {NODES} nodes for {length:g} h:")
        figures[name] = _scenario(sources, 3600 * length, peers=sources is not ONE_GPU and not quick)
    for count, length, minutes in FEW:
        name = f"{count} nodes for {length:g} h, trials of 20 minutes that may take {minutes}"
        figures[name] = _few(name, count, 3600 * length, minutes)
    return figures


def _few(name: str, count: int, ends: float, minutes: int, seeds: int = 20) -> dict[str, float]:
    """The mean of many allocations, for a small one has few trials."""
    nodes = [Node(f"node{number:04}", SUMMIT) for number in range(count)]
    source = TrialSource("few", JobNeeds(1, 6, 42, 400_000, minutes), median=1200, sigma=0.3)
    used = cut = finished = 0.0
    for seed in range(SEED, SEED + seeds):
        events = _run(Simulation(nodes, TrialServer([source], seed=seed), ends)).events
        checked, counts = check(nodes, events), endings(events)
        used += checked.node_seconds(checked.useful) / (ends * count * seeds)
        cut += counts.get(Ending.CUT, 0)
        finished += counts.get(Ending.FINISHED, 0)
    print(f"{name}: {used:.1%} of node-hours used; {cut / finished:.1%} cut")
    return {"node_hours_used": used, "cut": cut / finished}


def _scenario(sources: list[TrialSource], ends: float, *, peers: bool) -> dict[str, Any]:
    nodes = [Node(f"node{number:04}", SUMMIT) for number in range(NODES)]
    losses = list(nodes_lost([node.name for node in nodes], round(LOSSES * ends / 86400), ends, SEED))
    figures: dict[str, Any] = {}
    ours = _run(Simulation(nodes, TrialServer(sources, seed=SEED), ends, losses))
    figures["hpo-pilot"] = _used("hpo-pilot", nodes, ours.events, ends) | _costs(ours)
    if peers:
        turns = _run(Simulation(nodes, TrialServer(sources, seed=SEED), ends, losses, turns=True))
        figures["first come"] = _used("first come, first served", nodes, turns.events, ends)
        array = split(nodes, sources, TrialServer(sources, seed=SEED), ends, losses)
        figures["static split"] = _used("static split", nodes, array, ends)
    return figures


def _run(simulation: Simulation) -> Outcome:
    # The log of a day is hundreds of thousands of objects that a pilot would not keep: collecting them is not its cost.
    gc.disable()
    try:
        return simulation.run()
    finally:
        gc.enable()


def _used(who: str, nodes: list[Node], events: list[Event], ends: float) -> dict[str, Any]:
    checked = check(nodes, events)
    used = checked.node_seconds(checked.useful) / (ends * len(nodes))
    gpus = checked.gpu_seconds / (ends * len(nodes) * SUMMIT.gpus)
    counts = endings(events)
    finished = counts.get(Ending.FINISHED, 0)
    print(
        f"  {who:25} {used:6.1%} of node-hours and {gpus:6.1%} of GPU-hours used, {finished} trials finished, "
        f"{counts.get(Ending.CUT, 0)} cut, {counts.get(Ending.LOST, 0)} lost; nothing given twice"
    )
    return {"node_hours_used": used, "gpu_hours_used": gpus, **{str(key): count for key, count in counts.items()}}


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
