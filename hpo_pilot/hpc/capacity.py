"""The nodes of an allocation: free GPUs, cores and memory, the best nodes for a job, and requests for jobs."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, reduce
from operator import or_
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.jobs.resources import MOST_ON_A_GPU, JobNeeds, NodeShape, Room, usable_gpus

# Sets of nodes are integers: bit n is node n.

_FEW = 64  # members up to which single bits are faster than text


def members(nodes: int) -> list[int]:
    """Returns the numbers of the nodes in a set, ascending."""
    if nodes.bit_count() > _FEW:
        return [number for number, bit in enumerate(reversed(bin(nodes))) if bit == "1"]
    found = []
    while nodes:
        lowest_bit = nodes & -nodes
        found.append(lowest_bit.bit_length() - 1)
        nodes ^= lowest_bit
    return found


def node_set(numbers: Iterable[int]) -> int:
    """Returns the set of nodes with these numbers."""
    return union(1 << number for number in numbers)


def union(sets: Iterable[int]) -> int:
    """Returns the nodes of all sets."""
    return reduce(or_, sets, 0)


def lowest(nodes: int, count: int) -> int:
    """Returns the `count` lowest nodes of a set, or all if it has fewer."""
    low, high = 0, nodes.bit_length()
    while low < high:
        middle = (low + high) // 2
        if (nodes & ((1 << middle) - 1)).bit_count() < count:
            low = middle + 1
        else:
            high = middle
    return nodes & ((1 << low) - 1)


def close_together(nodes: int, count: int) -> int:
    """Returns `count` nodes of a set with at least as many, in few runs of neighbours.

    It prefers a run of exactly that length to the first longer one, so that long runs stay whole. If no run is long
    enough, it takes the longest ones together. The cost does not depend on the number of runs.

    With the first run that is long enough, else the lowest nodes, jobs of 128 of 256 nodes are in 18 runs instead of
    10, and jobs of 16 nodes in 4.3 instead of 3.2.
    """
    if nodes.bit_count() == count:
        return nodes
    if count == 1:
        # Prefer a node without free neighbours: larger jobs cannot use it.
        alone = nodes & ~(nodes << 1) & ~(nodes >> 1) or nodes
        return alone & -alone
    starts = _starts(nodes, count)
    if starts:
        exact = starts & ~(nodes << 1) & ~(nodes >> count) or starts
        return _run(exact & -exact, count)
    chosen, length = 0, count
    while count:
        length = _longest(nodes, min(length, count))
        starts = _starts(nodes, length)
        if length < count:
            # These are the longest runs, so they do not overlap.
            wanted = count // length
            starts = starts if starts.bit_count() <= wanted else lowest(starts, wanted)
        else:
            starts &= -starts
        taken = _run(starts, length)
        chosen |= taken
        nodes ^= taken
        count -= taken.bit_count()
    return chosen


def _starts(nodes: int, length: int) -> int:
    """Returns the nodes at which `length` neighbours begin."""
    have = 1
    while have < length and nodes:
        step = min(have, length - have)
        nodes &= nodes >> step
        have += step
    return nodes


def _run(starts: int, length: int) -> int:
    """Returns `length` neighbours from each start."""
    have = 1
    while have < length:
        step = min(have, length - have)
        starts |= starts << step
        have += step
    return starts


def _longest(nodes: int, most: int) -> int:
    """Returns the length of the longest run, at most `most`; the set must not be empty."""
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if _starts(nodes, middle):
            low = middle
        else:
            high = middle - 1
    return low


# The GPUs and cores of one node are masks: bit n is number n. A job gets GPUs that are close to each other, and
# cores close to its GPUs. Nodes with the same pattern of free GPUs are alike to a job.

#: Free GPUs of each group of close GPUs, descending, without groups that have none; then the free parts of shared GPUs.
Pattern = tuple[int | Fraction, ...]


@lru_cache(maxsize=1 << 16)
def pattern_of(shape: NodeShape, gpus: int) -> Pattern:
    """Returns the pattern of a mask of free GPUs."""
    counts = (part.bit_count() for part in _parts(shape, gpus))
    return tuple(sorted(filter(None, counts), reverse=True))


@lru_cache(maxsize=1 << 16)
def choose_gpus(shape: NodeShape, gpus: int, count: int) -> int:
    """Returns `count` of the free GPUs: from few groups, and of these the ones with the least left."""
    parts = _parts(shape, gpus)
    chosen = 0
    for place, taken in _shares(tuple(part.bit_count() for part in parts), count):
        chosen |= lowest(parts[place], int(taken))
    return chosen


@lru_cache(maxsize=1 << 16)
def remaining_pattern(pattern: Pattern, count: int | Fraction) -> tuple[int, Pattern]:
    """Returns the number of groups that `count` GPUs take, and the remaining pattern, as `Capacity.take` chooses.

    A share is put on the fullest shared GPU with room for it, which takes no group; else it begins another GPU.
    """
    left = list(pattern)
    if 0 < count < 1:
        if shared := [part for part in pattern if count <= part < 1]:
            left[left.index(min(shared))] -= count
            return 0, tuple(sorted(filter(None, left), reverse=True))
        left.append(1 - count)
        count = 1
    shares = _shares(pattern, count)
    for place, taken in shares:
        left[place] -= taken
    return len(shares), tuple(sorted(filter(None, left), reverse=True))


@lru_cache(maxsize=1 << 16)
def choose_cores(shape: NodeShape, cores: int, count: int, gpus: int) -> int:
    """Returns `count` free cores: first the cores in the groups of these GPUs, then the lowest ones."""
    chosen = 0
    if gpus:
        beside = 0
        for group, part in enumerate(_parts(shape, gpus)):
            if part:
                first, end = (shape.cores * edge // shape.groups for edge in (group, group + 1))
                beside |= (1 << end) - (1 << first)
        chosen = lowest(cores & beside, count)
    return chosen | lowest(cores & ~chosen, count - chosen.bit_count())


@lru_cache(maxsize=1 << 16)
def numbers(mask: int) -> tuple[int, ...]:
    """Returns the numbers in a mask, ascending."""
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)


def _parts(shape: NodeShape, gpus: int) -> list[int]:
    group = (1 << shape.close) - 1
    return [gpus & group << first for first in range(0, shape.gpus, shape.close)]


def _shares(free: Pattern, count: int | Fraction) -> list[tuple[int, int | Fraction]]:
    """Returns (group, GPUs of it): whole groups, the fullest first, until one group has the rest."""
    shares = []
    places = sorted(range(len(free)), key=lambda place: -free[place])  # stable: of equals the first
    while count:
        if count <= free[places[0]]:
            tightest = min((place for place in places if free[place] >= count), key=lambda place: free[place])
            shares.append((tightest, count))
            break
        place = places.pop(0)
        shares.append((place, free[place]))
        count -= free[place]
    return shares


@dataclass(frozen=True, slots=True)
class Part:
    """The GPUs and cores of a job on one node, as masks."""

    node: int
    gpus: int
    cores: int


#: The free resources of a node: GPUs by group, cores, MB.
Level = tuple[Pattern, int, int]


def has_room(level: Level, needs: JobNeeds) -> bool:
    """Returns True if a node with these free resources can take one part of a job."""
    gpus, cores, memory = level
    return needs.fit(usable_gpus(gpus, needs.gpus_per_node), cores, memory)


def placement_key(level: Level, needs: JobNeeds) -> tuple[int, int | Fraction, Level]:
    """Returns the sort key of levels with room for a job: the GPU groups that it takes, then the rest."""
    return remaining_pattern(level[0], needs.gpus_per_node)[0], sum(level[0]), level


class Capacity:
    """The free GPUs, cores and memory of each node.

    Nodes with the same free resources form a level: they are alike to a job. A job goes to the tightest level, in the
    order of `placement_key`, which `AllocationRoom` uses too. Within a level it gets neighbours. The cost of a call
    grows with the number of levels, which is small because the jobs of a search are alike.
    """

    def __init__(self, shapes: Sequence[NodeShape]) -> None:
        self._shapes = tuple(shapes)
        self._memory_left = [shape.memory_mb for shape in shapes]
        self._gpus_left = [(1 << shape.gpus) - 1 for shape in shapes]
        self._cores_left = [(1 << shape.cores) - 1 for shape in shapes]
        self._shared: list[dict[int, Fraction]] = [{} for _ in shapes]  # free part of each shared GPU, by its mask
        self._levels: dict[Level, int] = {}
        for node in range(len(shapes)):
            level = self._level(node)
            self._levels[level] = self._levels.get(level, 0) | 1 << node
        self.up = (1 << len(shapes)) - 1  #: nodes that may get jobs

    def lose(self, node: int) -> None:
        """Stops jobs for a node for ever; parts of jobs there may still be given back."""
        self.up &= ~(1 << node)

    def free(self, node: int) -> tuple[int, int, int]:
        """Returns the free GPUs, cores and MB of a node."""
        return self._gpus_left[node].bit_count(), self._cores_left[node].bit_count(), self._memory_left[node]

    def fitting(self, needs: JobNeeds, within: int) -> int:
        """Returns the nodes of a set on which one part of such a job could start now."""
        fit = 0
        for level, nodes in self._levels.items():
            if has_room(level, needs):
                fit |= nodes
        return fit & within & self.up

    def choose(self, needs: JobNeeds, tiers: Sequence[int]) -> int:
        """Returns the nodes for a job, from the first tiers as far as they suffice; 0: too few fit.

        Args:
            needs: the needs of the job.
            tiers: disjoint sets of nodes.
        """
        levels = [level for level in self._levels if has_room(level, needs)]
        fit = self.up & union(tiers) & union(self._levels[level] for level in levels)
        missing = needs.nodes
        if fit.bit_count() < missing:
            return 0
        levels.sort(key=lambda level: placement_key(level, needs))
        chosen = 0
        for tier in tiers:
            for level in levels:
                nodes = self._levels[level] & tier & fit
                count = nodes.bit_count()
                if count >= missing:
                    return chosen | close_together(nodes, missing)
                chosen |= nodes
                missing -= count
        return 0

    def levels(self, within: int) -> list[tuple[Level, int]]:
        """Returns each level in a set of nodes with its number of nodes, without full nodes."""
        within &= self.up
        counts = [(level, (nodes & within).bit_count()) for level, nodes in self._levels.items()]
        return [(level, count) for level, count in counts if count and level[1] and level[2]]

    def least(self, nodes: int) -> Level:
        """Returns the free resources of the node of a set with the fewest GPUs, then cores, then memory."""
        return min(self.levels(nodes), key=lambda found: (sum(found[0][0]), *found[0][1:]))[0]

    def take(self, needs: JobNeeds, nodes: int) -> tuple[Part, ...]:
        """Takes a job's resources from each of these nodes.

        Raises:
            ValueError: a node has less.
        """
        parts = []
        for node in members(nodes):
            if not has_room(self._level(node), needs):
                raise ValueError(f"node {node} has less than {needs}")
            shape = self._shapes[node]
            shared = self._shared[node].items() if needs.gpu_share > 1 else ()
            open_gpus = [(left, gpu) for gpu, left in shared if left >= needs.gpus_per_node]
            gpus = min(open_gpus)[1] if open_gpus else choose_gpus(shape, self._gpus_left[node], needs.whole_gpus)
            parts.append(Part(node, gpus, choose_cores(shape, self._cores_left[node], needs.cores, gpus)))
        self._toggle(parts, needs, -1)
        return tuple(parts)

    def give_back(self, needs: JobNeeds, parts: Sequence[Part]) -> None:
        """Gives back some or all parts from `take`.

        Raises:
            ValueError: a part was given back before.
        """
        for part in parts:
            if self._gpus_left[part.node] & part.gpus or self._cores_left[part.node] & part.cores:
                raise ValueError(f"node {part.node}: {part} is given back twice")
        self._toggle(parts, needs, 1)

    def _toggle(self, parts: Sequence[Part], needs: JobNeeds, sign: int) -> None:
        """Takes free resources of each node (`sign` is -1), or gives taken ones back (1)."""
        moved: dict[tuple[Level, Level], int] = {}
        for part in parts:
            node = part.node
            before = self._level(node)
            if needs.gpu_share > 1:
                self._move_share(node, part.gpus, sign * needs.gpus_per_node)
            else:
                self._gpus_left[node] ^= part.gpus
            self._cores_left[node] ^= part.cores
            self._memory_left[node] += sign * needs.memory_mb
            key = before, self._level(node)
            moved[key] = moved.get(key, 0) | 1 << node
        for (old, new), nodes in moved.items():
            if left := self._levels[old] & ~nodes:
                self._levels[old] = left
            else:
                del self._levels[old]
            self._levels[new] = self._levels.get(new, 0) | nodes

    def _move_share(self, node: int, gpu: int, change: int | Fraction) -> None:
        """Changes the free part of a GPU; without jobs it is whole again."""
        left = self._shared[node].pop(gpu, Fraction(1)) + change
        if left < 1:
            self._shared[node][gpu] = left
            self._gpus_left[node] &= ~gpu
        else:
            self._gpus_left[node] |= gpu

    def _level(self, node: int) -> Level:
        pattern = pattern_of(self._shapes[node], self._gpus_left[node])
        if self._shared[node]:
            pattern += tuple(sorted(filter(None, self._shared[node].values()), reverse=True))
        return pattern, self._cores_left[node].bit_count(), self._memory_left[node]


#: Most rooms of each kind, and most searches with run times, in a request's text.
_MOST_ROOMS = 64
_MOST_SEARCHES = 256

_FAR = 10**9  # seconds; this value means no end
_FINEST = math.lcm(*range(2, MOST_ON_A_GPU + 1))  # sums of shares have no larger denominator
_LARGE = 2**40  # largest count, size or time of a valid request


#: The key of free room: its resources, and seconds.
_Key = tuple[Level, float]


class AllocationRoom:
    """All free room of an allocation; no node is in two rooms.

    A server takes room from it for each job that it hands out. So it hands out exactly the jobs that can start at once:
    the scheduler places jobs level by level in the same order.

    Attributes:
        blocks: rooms that are each for one job on exactly that number of nodes.
    """

    def __init__(self, rooms: Iterable[Room], blocks: Iterable[Room] = ()) -> None:
        self.blocks = list(blocks)
        self._nodes: dict[_Key, int] = {}
        for room in rooms:
            self._add(((room.gpus, room.cores, room.memory_mb), room.seconds), room.nodes)

    def __iter__(self) -> Iterator[Room]:
        return (Room(nodes, *level, seconds) for (level, seconds), nodes in self._nodes.items())

    def __bool__(self) -> bool:
        return bool(self._nodes or self.blocks)

    def copy(self) -> AllocationRoom:
        """Returns a copy."""
        other = AllocationRoom([], self.blocks)
        other._nodes = dict(self._nodes)
        return other

    def take(self, needs: JobNeeds, seconds: float) -> bool:
        """Takes room for a job of that run time; False: there is none, and nothing has changed."""
        return self.take_many(needs, seconds, 1) == 1

    def take_many(self, needs: JobNeeds, seconds: float, most: int) -> int:
        """Takes room for jobs with the same needs, one after the other.

        Args:
            needs: the needs of each job.
            seconds: the run time of each job.
            most: the number of jobs wanted.

        Returns:
            The number of jobs with room.
        """
        fit = [block for block in self.blocks if block.nodes == needs.nodes and block.fits(needs, seconds)][:most]
        for block in fit:
            self.blocks.remove(block)
        taken = len(fit)
        heap = [_placed(key, needs) for key in self._nodes if _fits(key, needs, seconds)]
        heapq.heapify(heap)
        room = sum(self._nodes[entry[-1]] for entry in heap)
        while taken < most and room >= needs.nodes:
            missing, remainders = needs.nodes, []
            while missing:
                key = heap[0][-1]
                count = min(missing, self._nodes[key])
                if count == self._nodes[key]:
                    heapq.heappop(heap)
                missing -= count
                room -= count
                self._add(key, -count)
                remainders.append((_without(key, needs), count))
            for key, count in remainders:
                if key not in self._nodes and _fits(key, needs, seconds):
                    heapq.heappush(heap, _placed(key, needs))
                self._add(key, count)
                room += count if _fits(key, needs, seconds) else 0
            taken += 1
        return taken

    def _add(self, key: _Key, count: int) -> None:
        nodes = self._nodes.get(key, 0) + count
        (_, cores, memory), _ = key
        if nodes and cores and memory:
            self._nodes[key] = nodes
        else:
            self._nodes.pop(key, None)


def _fits(key: _Key, needs: JobNeeds, seconds: float) -> bool:
    level, span = key
    return seconds <= span and has_room(level, needs)


def _without(key: _Key, needs: JobNeeds) -> _Key:
    (gpus, cores, memory), span = key
    return (remaining_pattern(gpus, needs.gpus_per_node)[1], cores - needs.cores, memory - needs.memory_mb), span


def _placed(key: _Key, needs: JobNeeds) -> tuple[float, tuple[int, int | Fraction, Level], _Key]:
    """Returns the sort key of free room for a job, in the order of the scheduler's levels."""
    return -key[1], placement_key(key[0], needs), key


@dataclass(frozen=True)
class TimeLeft:
    """The time in which the jobs of an allocation must end, and the rule by which they start within it.

    A job that may take longer than that starts all the same if enough is left for it: an idle node is a certain loss, a
    cut job only a likely one, and none if it goes on from a checkpoint in the next allocation.

    Attributes:
        seconds: the time left.
        share: the share of its run time that must be left for a job.
        checkpointed: the seconds that are enough for a job with declared checkpoints, whatever its run time.
    """

    seconds: float = math.inf
    share: float = 1.0
    checkpointed: float = math.inf

    def needed(self, needs: JobNeeds, measured: float | None) -> float:
        """Returns the seconds for which a job that starts now has its nodes; infinity: too little time is left for it.

        Args:
            needs: the needs of the job.
            measured: the likely run time of jobs of its search; None: not known, so its minutes count.
        """
        likely = needs.seconds if measured is None else min(needs.seconds, measured)
        if likely <= self.seconds:
            return likely
        enough = min(self.share * likely, self.checkpointed if needs.checkpoints else math.inf)
        return self.seconds if enough <= self.seconds else math.inf


@dataclass(frozen=True)
class AllocationRequest:
    """The jobs that a scheduler could take next.

    A server goes through its jobs in order and hands out each job that has room in `now`. The first job without room
    there, but with room `later`, is handed out too and ends the answer: the scheduler reserves room for it before
    others take it. If `later` is empty, a job waits already, and the server skips jobs without room.

    Attributes:
        now: the room for jobs that can start at once.
        later: the room for one job that has to wait; it needs one of these for all its minutes, by the likely ends of
            running jobs.
        seconds: the measured run time of jobs by search, for `now`; for other searches it is the minutes asked for.
        left: the time until the end of the allocation, for `now`.
    """

    now: AllocationRoom
    later: tuple[Room, ...]
    seconds: Mapping[str, float]
    left: TimeLeft = TimeLeft()

    @property
    def free(self) -> list[Room]:
        """All room of `now`, blocks included."""
        return [*self.now, *self.now.blocks]

    @property
    def largest(self) -> Room:
        """All free nodes, and the most that one node has of each resource, now or later."""
        rooms = [Room(0, (), 0, 0, 0.0), *self.free, *self.later]
        return Room(
            sum(room.nodes for room in self.free),
            (max(sum(room.gpus) for room in rooms),),
            max(room.cores for room in rooms),
            max(room.memory_mb for room in rooms),
            max(room.seconds for room in rooms),
        )

    def may_wait(self, needs: JobNeeds, waited: float = 0.0) -> bool:
        """Returns True if a job without room in `now` has room in `later`.

        Args:
            needs: its needs.
            waited: seconds since the request.
        """
        return any(room.nodes >= needs.nodes and room.fits(needs, waited + needs.seconds) for room in self.later)

    def needed(self, search: str, needs: JobNeeds, waited: float = 0.0) -> float:
        """Returns the seconds for which a job needs room in `now`; infinity: it does not start any more.

        Args:
            search: its search.
            needs: its needs.
            waited: seconds since the request.
        """
        left = replace(self.left, seconds=self.left.seconds - waited)
        seconds = left.needed(needs, self.seconds.get(search))
        return seconds if math.isinf(seconds) else min(waited + seconds, self.left.seconds)

    def to_text(self) -> str:
        """Returns one line of ASCII for an HTTP header; `from_text` reads it. It leaves out the smallest rooms.

        Times are whole seconds, rounded such that no room is promised that does not exist.
        """
        document = {
            "now": [_listed(room) for room in _largest(self.now)],
            "blocks": [_listed(room) for room in _largest(self.now.blocks)],
            "later": [_listed(room) for room in _largest(self.later)],
            "seconds": {
                search: math.ceil(min(seconds, _FAR)) for search, seconds in list(self.seconds.items())[:_MOST_SEARCHES]
            },
            "left": [
                math.floor(max(0.0, min(self.left.seconds, _FAR))),
                self.left.share,
                math.ceil(min(self.left.checkpointed, _FAR)),
            ],
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> AllocationRequest:
        """Reads the text of `to_text`, which may come from an untrusted client.

        Raises:
            InputError: the text is invalid.
        """
        try:
            document = json.loads(text)
            now, blocks, later = (document.get(key, []) for key in ("now", "blocks", "later"))
            seconds = document.get("seconds", {})
            left, share, checkpointed = document.get("left", (_FAR, 1, _FAR))
            if not 0 <= float(share) <= 1:
                raise ValueError(f"{share!r} is not a share")
            if max(len(now), len(blocks), len(later)) > _MOST_ROOMS or len(seconds) > _MOST_SEARCHES:
                raise ValueError(f"more than {_MOST_ROOMS} openings, or run times of {_MOST_SEARCHES} searches")
            return cls(
                AllocationRoom([_room(values) for values in now], [_room(values) for values in blocks]),
                tuple(_room(values) for values in later),
                {str(search): float(_count(value)) for search, value in seconds.items()},
                TimeLeft(float(_count(left)), float(share), float(_count(checkpointed))),
            )
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise InputError(f"no openings of an allocation: {error}") from error


def _largest(rooms: Iterable[Room]) -> list[Room]:
    """Returns the largest rooms, as many as a text may have, in their order."""
    told = [room for room in rooms if room.seconds >= 1]
    size = sorted(range(len(told)), key=lambda n: (-told[n].nodes * sum(told[n].gpus), -told[n].nodes * told[n].cores))
    return [told[n] for n in sorted(size[:_MOST_ROOMS])]


def _listed(room: Room) -> list[Any]:
    seconds = math.floor(min(room.seconds, _FAR))
    gpus = [[part.numerator, part.denominator] if part < 1 else int(part) for part in room.gpus]
    return [room.nodes, gpus, room.cores, room.memory_mb, seconds]


def _room(values: Any) -> Room:
    nodes, gpus, cores, memory, seconds = values
    if not isinstance(gpus, list) or len(gpus) > _MOST_ROOMS:
        raise ValueError(f"{gpus!r} is not a pattern of free GPUs")
    pattern = tuple(_gpus(part) for part in gpus)
    if sorted(pattern, reverse=True) != list(pattern):
        raise ValueError(f"{gpus!r} is not a pattern of free GPUs")
    if min((_count(nodes), *pattern)) <= 0:
        raise ValueError(f"{values!r} has no nodes, or a group without GPUs")
    return Room(nodes, pattern, _count(cores), _count(memory), float(_count(seconds)))


def _gpus(value: Any) -> int | Fraction:
    """Reads free GPUs of a group; a list of two numbers is the free part of a shared GPU."""
    if not isinstance(value, list):
        return _count(value)
    part = Fraction(*map(_count, value))
    if not 0 < part < 1 or part.denominator > _FINEST:
        raise ValueError(f"{value!r} is not a part of a GPU")
    return part


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGE:  # True is an int too
        raise ValueError(f"{value!r} is not a whole number in the allowed range")
    return value
