"""A search in allocations, in simulated time, through the scheduler that a pilot uses."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass
from typing import cast

from hpo_pilot.errors import InputError
from hpo_pilot.planning.workload import Workload
from hpo_pilot.scheduling import Ending, Job, Node, NodeShape, Policy, Scheduler

#: More allocations than anybody submits: the plan is wrong then.
_MOST = 100_000

_SEARCH = "plan"

#: A job: its group, and its place in it.
_Key = tuple[int, int]


@dataclass(frozen=True)
class Run:
    """One allocation.

    Attributes:
        seconds: until its last job has ended, and its pilot with it.
        jobs: that ended in it.
        at_once: most jobs side by side.
        busy: node-seconds that jobs had; of nodes that they share, their parts.
    """

    seconds: float
    jobs: int
    at_once: int
    busy: float


def simulate(work: Workload, shape: NodeShape, nodes: int, seconds: float, *, steps: int | None = None) -> list[Run]:
    """The allocations that a search takes, one after another.

    Args:
        work: the jobs; each is taken to run equally long.
        shape: of a node.
        nodes: of each allocation.
        seconds: walltime of each.
        steps: job steps that run side by side; None: any number.

    Raises:
        InputError: no job comes to its end in an allocation.
    """
    waiting = deque((group, fold) for group in range(work.groups) for fold in range(work.folds))
    open_folds: Counter[int] = Counter()
    runs: list[Run] = []
    while waiting:
        run = _allocation(work, shape, nodes, seconds, steps, waiting, open_folds)
        if not run.jobs or len(runs) >= _MOST:
            raise InputError(
                f"no job of {work.seconds / 60:g} minutes comes to its end within a walltime of {seconds / 60:g}: ask "
                "for fewer resources.minutes, or a longer walltime"
            )
        runs.append(run)
    return runs


def _allocation(
    work: Workload,
    shape: NodeShape,
    nodes: int,
    seconds: float,
    steps: int | None,
    waiting: deque[_Key],
    open_folds: Counter[int],
) -> Run:
    scheduler = Scheduler([Node(f"n{i}", shape) for i in range(nodes)], ends=seconds, policy=Policy())
    ends: list[tuple[float, _Key]] = []
    now, done, most = 0.0, 0, 0
    while True:
        _feed(work, scheduler, now, steps, waiting, open_folds)
        for start in scheduler.starts(now):
            heapq.heappush(ends, (now + work.seconds, cast(_Key, start.job.key)))
        most = max(most, scheduler.running)
        waiting.extendleft(cast(_Key, job.key) for job in reversed(scheduler.hand_back(now)))
        if not ends:
            return Run(now, done, most, scheduler.usage(now).nodes.used)
        now = ends[0][0]
        while ends and ends[0][0] <= now:
            _, key = heapq.heappop(ends)
            scheduler.ended(key, Ending.FINISHED, now)
            done += 1
            open_folds[key[0]] -= 1
            if not open_folds[key[0]]:
                del open_folds[key[0]]


def _feed(
    work: Workload, scheduler: Scheduler, now: float, steps: int | None, waiting: deque[_Key], open_folds: Counter[int]
) -> None:
    """Hands out the jobs that the scheduler has room for, of as many groups as may be out at once."""
    wish = scheduler.wish(now)
    seconds = wish.seconds.get(_SEARCH, 60.0 * work.needs.minutes)
    while waiting and (steps is None or scheduler.running + scheduler.waiting < steps):
        group, _ = waiting[0]
        if group not in open_folds and len(open_folds) >= work.parallel:
            return
        if not wish.now.take(work.needs, seconds):
            return
        if group not in open_folds:
            open_folds[group] = work.folds
        scheduler.add(Job(waiting.popleft(), _SEARCH, work.needs))
