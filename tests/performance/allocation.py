"""A simulated Summit: how much of 4,608 nodes with 6 GPUs each is used, and what a decision of the scheduler costs.

In simulated time, through the very scheduler class of the pilot; log-normal run times, 1% of the trials fail, nodes are
lost. A checker that knows nothing of the scheduler looks through every log for anything given twice, and counts what
was used itself. Time lost with trials that failed, were cut by the end, or lost a node counts as not used.

The peers have the same trials, the same losses and the same nodes in the same run: nodes split between searches
beforehand (a job array: see `static_split`), and first come, first served without backfill.
"""

from __future__ import annotations

import gc
from typing import Any

from hpo_pilot.hpc.capacity import Node, NodeShape
from hpo_pilot.hpc.usage import Ending
from hpo_pilot.jobs import JobNeeds
from tests.hpc.checker import Event, check, endings
from tests.hpc.simulation import Outcome, Simulation
from tests.hpc.trials import TrialServer, TrialSource, nodes_lost
from tests.performance.static_split import split

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
