"""The scheduler of an allocation: decides which job runs on which nodes, and when.

It has no clock: callers pass the time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.capacity import (
    AllocationRequest,
    AllocationRoom,
    Capacity,
    Part,
    TimeLeft,
    close_together,
    members,
    node_set,
    numbers,
    pattern_of,
    union,
)
from hpo_pilot.hpc.usage import Account, Ending, NodeUse, ScheduledJob, Share, Start, Usage
from hpo_pilot.jobs.resources import JobNeeds, Node, Room


@dataclass(frozen=True)
class Policy:
    """The settings of a scheduler.

    Attributes:
        quantile: the run time of a job is assumed to be this quantile of its search's run times.
        at_end: a job that may not end before the allocation starts if at least this share of its run time is left; see
            `TimeLeft`.
        checkpointed: a job with declared checkpoints starts if that many seconds are left: two checkpoint intervals.
        measurements: with fewer measured run times of a search, its jobs are assumed to take the minutes asked for, and
            also while nearly all of them still run.
        block: share of the run time of a job on several nodes, for which these nodes are kept for another job on as
            many nodes after its end; see `Block`.
        margin: seconds before the end of the allocation at which every job should have ended.
        depth: most kinds of waiting jobs (search and needs) in one decision, the oldest first.
    """

    quantile: float = 0.75
    at_end: float = 0.25
    checkpointed: float = 600.0
    block: float = 0.02
    measurements: int = 1
    margin: float = 120.0
    depth: int = 64


_RATIO = 1.05  # from bin to bin of run times: a quantile is too long by at most 5%
_MOST = 0.75 + 1e-9  # share of jobs that may be longer than all measured ones; with more, there is no estimate
_BEYOND = 2.0  # a quantile beyond the longest measured time is longer by this factor times the share beyond it
_GROWTH = 1.05  # growth of the number of measurements until the quantile is computed again


class RunTimes:
    """The run times of one search in one allocation.

    Short jobs end first, so a quantile of finished jobs alone would be far too low. The quantile is that of the
    Kaplan-Meier estimator (J. Am. Stat. Assoc. 53 (1958) 457): a job that still runs, failed or was cut would have run
    longer.

    It is the quantile for the next job: one additional job counts as longer than all others, because the next run time
    exceeds the longest of three in a quarter of all cases, and the only one in half of them. If the quantile lies
    beyond all measured times, it is estimated from the longest one, provided that at least a quarter of the jobs are
    not longer: an idle node is a certain loss. For one, two or three log-normal run times with a spread of a factor of
    1.6, such an estimate of the 75% quantile holds for 73 to 75% of the next run times.

    A plain quantile of the finished jobs promises nodes too early, and they wait empty: with three trials of a whole
    machine of 64 nodes among small ones, for a day, 16% of the node-hours were idle instead of 3%.
    """

    def __init__(self, quantile: float, least: int = 1) -> None:
        """Sets the quantile, which is known after `least` finished jobs at the earliest."""
        self._beyond = 1.0 - quantile + 1e-9
        self._finished: Counter[int] = Counter()
        self._broken_off: Counter[int] = Counter()
        self._measured = 0
        self._next = float(least)
        self._known: float | None = None
        self._starts: list[float] = []  # start times of running jobs, ascending

    def started(self, now: float) -> None:
        """Notes that a job starts."""
        insort(self._starts, now)

    def ended(self, start: float, now: float, *, finished: bool, staging: float = 0.0) -> None:
        """Notes the end of a job that started at `start`; only finished jobs count, without their staging."""
        del self._starts[bisect_right(self._starts, start) - 1]
        place = math.ceil(math.log(max(1.0, now - start - staging), _RATIO))
        if finished:
            self._finished[place] += 1
            self._measured += 1
        else:
            self._broken_off[place] += 1

    def quantile(self, now: float) -> float | None:
        """Returns the quantile of the run times in seconds; None: not known yet."""
        if self._measured >= self._next:
            self._next = max(self._measured + 1.0, _GROWTH * self._measured)
            self._known = self._computed(now)
        return self._known

    def _computed(self, now: float) -> float | None:
        left = self._measured + self._broken_off.total()
        surviving, longest = 1.0, 0.0
        for place in sorted(self._finished.keys() | self._broken_off.keys()):
            seconds = _RATIO**place
            finished = self._finished[place]
            still_running = bisect_right(self._starts, now - seconds / _RATIO)  # of this bin, or beyond
            surviving *= 1.0 - finished / (left + still_running + 1) if finished else 1.0
            if surviving <= self._beyond:
                return seconds
            longest = seconds if finished else longest
            left -= finished + self._broken_off[place]
        return longest * (1.0 + _BEYOND * (surviving - self._beyond)) if surviving <= _MOST else None


@dataclass(frozen=True)
class Reservation:
    """Nodes and a start time that are promised to a job.

    Attributes:
        job: the job.
        nodes: the reserved nodes, chosen anew at each decision; other jobs start there only if they are likely to end
            before `start`. The job itself starts as soon as any nodes suffice.
        start: the promised start, which may only become earlier, unless a node is lost.
    """

    job: ScheduledJob
    nodes: int
    start: float


_BLOCK_SECONDS = 60.0  # longest time for which a block is kept


@dataclass(frozen=True)
class Block:
    """The nodes that a job on several nodes has left, kept for another job on as many nodes.

    The next trial of a search comes seconds after the end of the last one. Small jobs would have taken a part of the
    nodes by then, and the next trial would wait until as many nodes are free together once more. Of 64 nodes for 8
    hours with trials on 32 nodes, one at a time, among trials on one GPU, 91% of the GPU-hours are used with blocks and
    64% without them, and 8 large trials finish, not 2.

    Attributes:
        nodes: the nodes; jobs on fewer nodes do not start there.
        until: the time until which they are kept.
    """

    nodes: int
    until: float

    @property
    def count(self) -> int:
        """The number of nodes."""
        return self.nodes.bit_count()


class JobGroup:
    """Waiting jobs of one search with the same needs: if the first cannot start, none can."""

    def __init__(self, search: str, needs: JobNeeds) -> None:
        self.search, self.needs = search, needs
        self.jobs: deque[tuple[int, ScheduledJob]] = deque()

    @property
    def first(self) -> ScheduledJob:
        """The oldest job."""
        return self.jobs[0][1]

    def __lt__(self, other: JobGroup) -> bool:
        return self.jobs[0][0] < other.jobs[0][0]


class JobQueue:
    """The groups of waiting jobs, the group with the oldest job first."""

    def __init__(self) -> None:
        self._by_kind: dict[tuple[str, JobNeeds], JobGroup] = {}
        self._order: list[JobGroup] = []
        self._keys: set[Hashable] = set()
        self._came = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[ScheduledJob]:
        return (job for group in self._order for _, job in group.jobs)

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self._order)

    def group(self, place: int) -> JobGroup:
        """Returns the group at a place, from 0, in the order of the oldest jobs."""
        return self._order[place]

    def add(self, job: ScheduledJob) -> None:
        """Adds a job."""
        self._came += 1
        self._keys.add(job.key)
        group = self._by_kind.get((job.search, job.needs))
        if group is not None:
            group.jobs.append((self._came, job))
            return
        group = self._by_kind[job.search, job.needs] = JobGroup(job.search, job.needs)
        group.jobs.append((self._came, job))
        self._order.append(group)

    def pop(self, place: int) -> ScheduledJob:
        """Removes and returns the oldest job of the group at a place; the group moves to the place of its next job."""
        group = self._order.pop(place)
        _, job = group.jobs.popleft()
        self._keys.discard(job.key)
        if group.jobs:
            insort(self._order, group, lo=place)
        else:
            del self._by_kind[group.search, group.needs]
        return job

    def remove(self, place: int) -> list[ScheduledJob]:
        """Removes and returns all jobs of the group at a place."""
        group = self._order.pop(place)
        del self._by_kind[group.search, group.needs]
        found = [job for _, job in group.jobs]
        self._keys.difference_update(job.key for job in found)
        return found


_GRACE = 60.0  # seconds that a job past its limit may take to end


@dataclass(slots=True, eq=False)
class PlacedJob:
    """A running job; the loss of a node removes its part there.

    Attributes:
        job: the job.
        number: its number in the order of starts.
        start: its start time.
        end: its likely end.
        parts: its GPUs and cores on each node.
        node_uses: its times on each node.
        nodes: the set of its nodes.
    """

    job: ScheduledJob
    number: int
    start: float
    end: float
    parts: Sequence[Part]
    node_uses: Sequence[NodeUse]
    nodes: int

    def covers(self, needs: JobNeeds) -> bool:
        """Returns True if each of its nodes has room for a part of such a job after its end."""
        own = self.job.needs
        return needs.fit(own.gpus_per_node, own.cores, own.memory_mb)


class ExpectedEnds:
    """The running jobs by their likely ends."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int, PlacedJob]] = []

    def __iter__(self) -> Iterator[PlacedJob]:
        return (running for _, _, running in self._ends)

    def add(self, running: PlacedJob) -> None:
        """Adds a job that starts."""
        insort(self._ends, (running.end, running.number, running))

    def remove(self, running: PlacedJob) -> None:
        """Removes a job that has ended."""
        del self._ends[bisect_left(self._ends, (running.end, running.number))]

    def reserve(self, job: ScheduledJob, capacity: Capacity, closed: int, now: float) -> Reservation | None:
        """Returns nodes and start time for a job that cannot start now; None: never, too many nodes are lost or closed.

        Args:
            job: the job.
            capacity: the free resources of the nodes.
            closed: nodes on which it cannot start, except in room that a running job leaves.
            now: the time.
        """
        self._put_off(now)
        needs = job.needs
        ready = capacity.fitting(needs, capacity.up & ~closed)
        left: dict[int, tuple[int | Fraction, int, int]] = {}
        for end, _, running in self._ends:
            if running.covers(needs):  # the usual case, at a cost independent of the number of nodes
                ready |= running.nodes
            else:
                ready |= node_set(
                    part.node
                    for part in running.parts
                    if not ready >> part.node & 1 and _has_room(needs, running, part.node, capacity, left)
                )
            if (ready & capacity.up).bit_count() >= needs.nodes:
                nodes = close_together(ready & capacity.up, needs.nodes)
                return Reservation(job, nodes, end)
        return None

    def clear_times(self, now: float) -> dict[int, float]:
        """Returns the likely time at which each node with jobs becomes empty."""
        self._put_off(now)
        return {part.node: end for end, _, running in self._ends for part in running.parts}

    def _put_off(self, now: float) -> None:
        """Extends the likely end of overdue jobs by half of their time so far, up to their limit."""
        overdue = bisect_left(self._ends, (now, math.inf))
        for _, number, running in self._ends[:overdue]:
            limit = running.start + running.job.needs.seconds
            longer = min(limit, running.start + 1.5 * (now - running.start))
            running.end = longer if longer > now else now + _GRACE
            self._ends.append((running.end, number, running))
        if overdue:
            del self._ends[:overdue]
            self._ends.sort()


def _has_room(
    needs: JobNeeds, running: PlacedJob, node: int, capacity: Capacity, left: dict[int, tuple[int | Fraction, int, int]]
) -> bool:
    """Returns True if a node has room for a part of a job after the end of one more job; updates `left`."""
    gpus, cores, memory = left.get(node) or capacity.free(node)
    own = running.job.needs
    left[node] = gpus + own.gpus_per_node, cores + own.cores, memory + own.memory_mb
    return needs.fit(*left[node])


_STEP_LATER = 1.25  # from one room of `AllocationRequest.later` to the next smaller one of the same shape, in nodes
_OUTLOOK = 0.01  # share of the remaining time for which `later` is not computed again


class Scheduler:
    """Assigns the nodes of an allocation to jobs.

    The oldest waiting job goes first. If it has no room, nodes are reserved for it from the time when they are likely
    to be free. Younger jobs start only if they do not delay it: on other nodes, or if they are likely to end before
    that time (EASY backfill: Lifka, JSSPP 1995). After that time no other job starts on those nodes. So the oldest job
    waits at most until then plus the longest time limit of the jobs that run there, even if the estimates are wrong.

    Nodes that a job on several nodes leaves are kept together for a short time (`Block`).

    Each call passes the time, in seconds of a clock that does not go back. The same calls give the same answers. The
    scheduler does no I/O and has no lock: a caller with several threads must use its own lock.
    """

    def __init__(
        self, nodes: Sequence[Node], *, begins: float = 0.0, ends: float = math.inf, policy: Policy | None = None
    ) -> None:
        """Starts with an empty allocation.

        Args:
            nodes: the nodes in the batch system's order, in which neighbours are close.
            begins: the start of the allocation.
            ends: the end of the allocation; jobs end `Policy.margin` earlier.
            policy: the settings; None: the defaults.

        Raises:
            InputError: there is no node, or two have the same name.
        """
        if not nodes:
            raise InputError("an allocation needs one node at least")
        self._names = [node.name for node in nodes]
        self._places = {name: place for place, name in enumerate(self._names)}
        if len(self._places) < len(nodes):
            raise InputError(f"{len(nodes)} nodes have {len(self._places)} names only: each needs its own")
        self._shapes = [node.shape for node in nodes]
        self._by_shape = {
            shape: node_set(place for place, other in enumerate(self._shapes) if other == shape)
            for shape in dict.fromkeys(self._shapes)
        }
        self._policy = policy or Policy()
        self._ends = ends
        self._capacity = Capacity(self._shapes)
        self._account = Account(self._shapes, begins)
        self._expected_ends = ExpectedEnds()
        self._running: dict[Hashable, PlacedJob] = {}
        self._on_node: list[set[int]] = [set() for _ in nodes]
        self._by_number: dict[int, PlacedJob] = {}
        self._waiting = JobQueue()
        self._run_times: dict[str, RunTimes] = {}
        self._reservation: Reservation | None = None
        self._blocks: list[Block] = []
        self._late: set[Hashable] = set()
        self._started = 0
        self._draining = False
        self._changed = False
        self._outlook: tuple[float, tuple[Room, ...]] = (-math.inf, ())

    # --- questions ---

    @property
    def running(self) -> int:
        """The number of running jobs."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """The number of waiting jobs."""
        return len(self._waiting)

    @property
    def reserved(self) -> tuple[ScheduledJob, float] | None:
        """The job with reserved nodes, and its promised start."""
        return (self._reservation.job, self._reservation.start) if self._reservation else None

    def request_jobs(self, now: float) -> AllocationRequest:
        """Returns the request for further jobs, which is empty while the allocation drains. Call it after `starts`.

        Add the jobs that the server hands out for it in the server's order.
        """
        left, remaining = self._left(now), self._last_end - now
        seconds = {search: known for search in self._run_times if (known := self._measured(search, now)) is not None}
        if self._draining or remaining <= 0:
            return AllocationRequest(AllocationRoom([]), (), seconds, left)
        self._forget_blocks(now)
        kept, until = self._kept
        blocked = union(block.nodes for block in self._blocks)
        tiers = [(self._capacity.up & ~kept & ~blocked, remaining), (kept, min(until - now, remaining))]
        room = AllocationRoom(
            (
                Room(nodes, *level, span)
                for within, span in tiers
                if within and span > 0
                for level, nodes in self._capacity.levels(within)
            ),
            [Room(block.count, *self._capacity.least(block.nodes), remaining) for block in self._blocks],
        )
        return AllocationRequest(room, () if self._waiting else self._later(now), seconds, left)

    def usage(self, now: float) -> Usage:
        """Returns the usage of the allocation so far."""
        return self._account.usage((use for running in self._expected_ends for use in running.node_uses), now)

    # --- events ---

    def add(self, job: ScheduledJob) -> None:
        """Adds a waiting job.

        Raises:
            InputError: another job has its key, or it could not start even in an empty allocation.
        """
        if job.key in self._running or job.key in self._waiting:
            raise InputError(f"job {job.key!r} waits or runs already")
        needs = job.needs
        least = min(needs.nodes, needs.cores, needs.memory_mb, needs.gpus_per_node + 1)
        if least < 1 or not 0 <= needs.minutes < math.inf:
            raise InputError(f"job {job.key!r}: {needs}: nodes, cores, memory and minutes must be positive numbers")
        able = self._able(needs)
        if able < needs.nodes:
            raise InputError(
                f"job {job.key!r} needs {needs.nodes} nodes with {needs.gpus_per_node} GPUs, {needs.cores} cores and "
                f"{needs.memory_mb} MB each; {able} of the allocation's {len(self._names)} nodes have this: "
                "ask for less, or for a larger allocation"
            )
        self._waiting.add(job)
        self._changed = True

    def starts(self, now: float) -> list[Start]:
        """Returns the jobs to start now; they have their shares from now until the call of `ended`."""
        self._forget_blocks(now)
        if self._draining or not self._changed:
            return []
        self._changed = False
        found: list[Start] = []
        blocked: set[tuple[int, int | Fraction, int, int, bool]] = set()
        oldest: ScheduledJob | None = None
        place = 0
        while place < min(self._waiting.groups, self._policy.depth):
            group = self._waiting.group(place)
            if self._is_late(group, now):
                place += 1
                continue
            needs, seconds = group.needs, self._needed(group, now)
            kept, until = self._kept if oldest else (0, 0.0)
            tiers = [self._capacity.up & ~kept & ~self._closed(needs)]
            if kept and seconds <= until - now:
                tiers.append(kept)
            shape = (needs.nodes, needs.gpus_per_node, needs.cores, needs.memory_mb, len(tiers) > 1)
            if shape not in blocked and (nodes := self._capacity.choose(needs, tiers)):
                found.append(self._start(self._waiting.pop(place), nodes, now, now + seconds))
                continue
            place += 1
            if oldest is not None:
                blocked.add(shape)
            elif self._reserve(group.first, now):
                oldest = group.first
        if oldest is None:
            self._reservation = None
        return found

    def ended(self, key: Hashable, ending: Ending, now: float, *, staging: float = 0.0) -> None:
        """Notes that a job has ended on all of its nodes; its shares are free at once.

        Args:
            key: key of the job.
            ending: how it ended.
            now: the time.
            staging: seconds of its run for copies that later jobs reuse, which do not count for their run times.

        Raises:
            InputError: no such job runs.
        """
        running = self._running.pop(key, None)
        if running is None:
            raise InputError(f"job {key!r} does not run")
        job = running.job
        self._expected_ends.remove(running)
        self._capacity.give_back(job.needs, running.parts)
        if 1 < job.needs.nodes == len(running.parts):
            self._keep_block(running, now)
        self._account.end(running.node_uses, now, useful=ending.is_useful)
        self._account.count(ending)
        self._run_times[job.search].ended(running.start, now, finished=ending is Ending.FINISHED, staging=staging)
        for part in running.parts:
            self._on_node[part.node].discard(running.number)
        del self._by_number[running.number]
        self._changed = True

    def lose_node(self, name: str, now: float) -> tuple[ScheduledJob, ...]:
        """Leaves out a node that does not answer or is broken.

        Returns:
            The jobs that ran there. End them on their other nodes, which they keep until then, and call `ended` for
            each.
        """
        node = self._places[name]
        if not self._capacity.up >> node & 1:
            return ()
        victims = [self._by_number[number] for number in sorted(self._on_node[node])]
        for running in victims:
            self._capacity.give_back(running.job.needs, [part for part in running.parts if part.node == node])
            node_uses = [use for use in running.node_uses if use.node == node]
            self._account.end(node_uses, now, useful=False)
            running.parts = [part for part in running.parts if part.node != node]
            running.node_uses = [use for use in running.node_uses if use.node != node]
            running.nodes &= ~(1 << node)
        self._on_node[node].clear()
        self._capacity.lose(node)
        self._break_blocks(1 << node)
        self._account.lose(node, now)
        if self._reservation and self._reservation.nodes >> node & 1:
            self._reservation = None
        self._changed = True
        return tuple(running.job for running in victims)

    def drain(self) -> None:
        """Stops all starts; `hand_back` then returns all waiting jobs."""
        self._draining = True

    def hand_back(self, now: float) -> tuple[ScheduledJob, ...]:
        """Removes and returns the waiting jobs that cannot start any more, for another allocation.

        These are jobs that would not end before the allocation, jobs that do not fit after the loss of nodes, and all
        jobs once the allocation drains.
        """
        found: list[ScheduledJob] = []
        for place in range(self._waiting.groups - 1, -1, -1):
            group = self._waiting.group(place)
            if self._draining or self._is_late(group, now) or self._able(group.needs) < group.needs.nodes:
                found += self._waiting.remove(place)
        self._late.clear()
        if found:
            self._changed = True
            self._outlook = -math.inf, ()  # it may offer later room that these jobs had taken
        if self._reservation and self._reservation.job.key not in self._waiting:
            self._reservation = None
        return tuple(found)

    # --- decisions ---

    @property
    def _last_end(self) -> float:
        return self._ends - self._policy.margin

    @property
    def _kept(self) -> tuple[int, float]:
        """The reserved nodes, and the time until which other jobs may run there."""
        return (self._reservation.nodes, self._reservation.start) if self._reservation else (0, 0.0)

    def _is_late(self, group: JobGroup, now: float) -> bool:
        return math.isinf(self._needed(group, now)) or group.first.key in self._late

    def _left(self, now: float) -> TimeLeft:
        return TimeLeft(self._last_end - now, self._policy.at_end, self._policy.checkpointed)

    def _measured(self, search: str, now: float) -> float | None:
        """Returns the seconds that jobs of a search are likely to run; None: nothing is known yet."""
        times = self._run_times.get(search)
        return times.quantile(now) if times else None

    def _needed(self, group: JobGroup, now: float) -> float:
        """Returns the seconds for which jobs that start now have their nodes; infinity: they do not start any more."""
        return self._left(now).needed(group.needs, self._measured(group.search, now))

    def _closed(self, needs: JobNeeds) -> int:
        """Returns the nodes that are kept for jobs on more nodes."""
        return union(block.nodes for block in self._blocks if block.count > needs.nodes)

    def _keep_block(self, running: PlacedJob, now: float) -> None:
        """Keeps the nodes that a job has left together.

        It keeps none if they are reserved for a job that is not smaller.
        """
        held = self._reservation
        if held is not None and held.nodes & running.nodes:
            if held.job.needs.nodes >= running.job.needs.nodes:
                return
            self._reservation = None
        until = now + min(_BLOCK_SECONDS, self._policy.block * (now - running.start))
        self._blocks.append(Block(running.nodes, until))

    def _break_blocks(self, nodes: int) -> None:
        """Keeps no block any more that has one of these nodes."""
        self._blocks = [block for block in self._blocks if not block.nodes & nodes]

    def _forget_blocks(self, now: float) -> None:
        """Keeps no block any more whose time is over."""
        if any(block.until <= now for block in self._blocks):
            self._blocks = [block for block in self._blocks if block.until > now]
            self._changed = True

    def _able(self, needs: JobNeeds) -> int:
        """Returns the number of nodes that could take a part of such a job if they were empty."""
        return sum(
            (nodes & self._capacity.up).bit_count()
            for shape, nodes in self._by_shape.items()
            if needs.fit(shape.gpus, shape.cores, shape.memory_mb)
        )

    def _start(self, job: ScheduledJob, nodes: int, now: float, end: float) -> Start:
        self._started += 1
        self._break_blocks(nodes)
        parts = self._capacity.take(job.needs, nodes)
        node_uses = self._account.begin(job.needs, [part.node for part in parts], now)
        running = PlacedJob(job, self._started, now, end, parts, node_uses, nodes)
        self._running[job.key] = self._by_number[running.number] = running
        for part in parts:
            self._on_node[part.node].add(running.number)
        self._expected_ends.add(running)
        times = self._run_times.setdefault(job.search, RunTimes(self._policy.quantile, self._policy.measurements))
        times.started(now)
        return Start(job, tuple(self._share(part) for part in parts))

    def _share(self, part: Part) -> Share:
        return Share(self._names[part.node], numbers(part.gpus), numbers(part.cores))

    def _reserve(self, job: ScheduledJob, now: float) -> bool:
        """Reserves nodes for the oldest job; returns False if it cannot have all its minutes there.

        Nodes that are kept free are a certain loss, so the job must be certain to end in time.
        """
        closed, held = self._closed(job.needs), self._reservation
        found = self._expected_ends.reserve(job, self._capacity, closed, now)
        if found is None and closed:
            return False  # closed nodes may suffice later
        if found is not None and held is not None and held.job is job:
            found = replace(found, start=min(found.start, held.start))
        elif found is None or found.start + job.needs.seconds > self._last_end:
            self._late.add(job.key)
            self._reservation = None
            return False
        self._reservation = found
        self._break_blocks(found.nodes)
        return True

    def _later(self, now: float) -> tuple[Room, ...]:
        """Returns the room for one job later, by node shape: with more nodes, less time is left."""
        if now - self._outlook[0] >= _OUTLOOK * max(0.0, min(self._last_end - now, 1e5)):
            clear = self._expected_ends.clear_times(now)
            found = []
            for shape, nodes in self._by_shape.items():
                times = sorted(clear.get(node, now) for node in members(nodes & self._capacity.up))
                counts, count = set(), float(len(times))
                while count >= 1.0:
                    counts.add(int(count))
                    count /= _STEP_LATER
                gpus = pattern_of(shape, (1 << shape.gpus) - 1)
                found += [
                    Room(number, gpus, shape.cores, shape.memory_mb, self._last_end - times[number - 1])
                    for number in sorted(counts)
                    if times[number - 1] < self._last_end
                ]
            self._outlook = now, tuple(found)
        return self._outlook[1]
