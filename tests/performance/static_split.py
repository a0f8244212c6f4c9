"""The peer of `allocation`: nodes split between searches beforehand, into slots that run one trial after another.

So a Slurm job array, or a loop around `srun`, uses an allocation: a slot belongs to its search until the end.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

from hpo_pilot.hpc.capacity import Node
from hpo_pilot.hpc.usage import Ending, Share, Start
from tests.hpc.checker import Event
from tests.hpc.trials import TrialServer, TrialSource


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
