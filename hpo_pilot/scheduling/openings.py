"""What a scheduler could start at once, in a form that can be sent to a server."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.jobs.task import JobNeeds
from hpo_pilot.scheduling.capacity import pattern_rank
from hpo_pilot.scheduling.near import Pattern, pattern_after

#: A text says so many openings of each kind, and the run times of so many searches.
_MOST_OPENINGS = 64
_MOST_SEARCHES = 256

_FAR = 10**9  # seconds: what has no end is told as this
_LARGE = 2**40  # no count, size or time is larger


#: What tells openings apart: (GPUs, cores, MB, seconds).
_Key = tuple[Pattern, int, int, float]


@dataclass(frozen=True)
class Opening:
    """Nodes that have the same free.

    Attributes:
        nodes: how many.
        gpus: free on each, as counts of each group of GPUs that are close to each other, descending.
        cores: free on each.
        memory_mb: free on each, in MB.
        seconds: how long a job there may take at most.
    """

    nodes: int
    gpus: Pattern
    cores: int
    memory_mb: int
    seconds: float

    def fits(self, needs: JobNeeds, seconds: float) -> bool:
        """Whether one node's part of a job could run on any of the nodes."""
        return _fits(_key(self), needs, seconds)

    def without(self, needs: JobNeeds, nodes: int) -> Opening:
        """What is left of so many of the nodes when a job's parts run there."""
        return Opening(nodes, *_without(_key(self), needs))


class Openings:
    """All openings of an allocation; they have no node in common.

    A server that takes from them for each job that it hands out hands out what can start, all of it, at once: the
    scheduler places jobs level by level in the same order.
    """

    def __init__(self, openings: Iterator[Opening] | list[Opening]) -> None:
        self._nodes: dict[_Key, int] = {}
        for opening in openings:
            self._add(_key(opening), opening.nodes)

    def __iter__(self) -> Iterator[Opening]:
        return (
            Opening(nodes, gpus, cores, memory, seconds)
            for (gpus, cores, memory, seconds), nodes in self._nodes.items()
        )

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def copy(self) -> Openings:
        """The same openings, to be taken from apart."""
        other = Openings([])
        other._nodes = dict(self._nodes)
        return other

    def take(self, needs: JobNeeds, seconds: float) -> bool:
        """Makes room for a job that takes so long; False: there is none, and nothing has changed."""
        return self.take_many(needs, seconds, 1) == 1

    def take_many(self, needs: JobNeeds, seconds: float, most: int) -> int:
        """Makes room for such jobs, one after the other.

        Args:
            needs: of each.
            seconds: that each takes.
            most: how many are wanted.

        Returns:
            For how many there was room.
        """
        heap = [_placed(key, needs) for key in self._nodes if _fits(key, needs, seconds)]
        heapq.heapify(heap)
        room, taken = sum(self._nodes[entry[-1]] for entry in heap), 0
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
        if nodes and key[1] and key[2]:
            self._nodes[key] = nodes
        else:
            self._nodes.pop(key, None)


def _key(opening: Opening) -> _Key:
    return opening.gpus, opening.cores, opening.memory_mb, opening.seconds


def _fits(key: _Key, needs: JobNeeds, seconds: float) -> bool:
    gpus, cores, memory, span = key
    return (
        seconds <= span and 0 < needs.cores <= cores and needs.memory_mb <= memory and needs.gpus_per_node <= sum(gpus)
    )


def _without(key: _Key, needs: JobNeeds) -> _Key:
    gpus, cores, memory, span = key
    return pattern_after(gpus, needs.gpus_per_node)[1], cores - needs.cores, memory - needs.memory_mb, span


def _placed(key: _Key, needs: JobNeeds) -> tuple[float, tuple[int, int], _Key]:
    """What orders openings for a job, as the scheduler's levels are."""
    return -key[3], pattern_rank(key[0], needs.gpus_per_node), key


@dataclass(frozen=True)
class Wish:
    """What a scheduler says it could take next.

    A server goes through its jobs in their turn and hands out those for which it can take room from `now`. The first
    for which it cannot, and which one of `later` has room for, is handed out too and ends the answer: room is made for
    it before others take it. Where `later` is empty, a job waits already, and those that have no room are passed over.

    Attributes:
        now: for jobs that can start at once.
        later: for one job that has to wait; each of these alone would have room, by the likely ends of what runs.
        seconds: how long a job of a search takes, where that is measured; else it is the minutes asked for.
    """

    now: Openings
    later: tuple[Opening, ...]
    seconds: Mapping[str, float]

    def to_text(self) -> str:
        """One line of ASCII, for an HTTP header; `from_text` reads it. The smallest of too many openings are left out.

        Times are whole seconds, rounded so that a job is promised no room which it has not.
        """
        document = {
            "now": [_listed(opening) for opening in _largest(self.now)],
            "later": [_listed(opening) for opening in _largest(self.later)],
            "seconds": {
                search: math.ceil(min(seconds, _FAR)) for search, seconds in list(self.seconds.items())[:_MOST_SEARCHES]
            },
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Wish:
        """What `to_text` wrote, which may come from anywhere.

        Raises:
            InputError: it is nothing of the kind.
        """
        try:
            document = json.loads(text)
            now, later, seconds = document.get("now", []), document.get("later", []), document.get("seconds", {})
            if max(len(now), len(later)) > _MOST_OPENINGS or len(seconds) > _MOST_SEARCHES:
                raise ValueError(f"more than {_MOST_OPENINGS} openings, or run times of {_MOST_SEARCHES} searches")
            return cls(
                Openings([_opening(values) for values in now]),
                tuple(_opening(values) for values in later),
                {str(search): float(_count(value)) for search, value in seconds.items()},
            )
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"no openings of an allocation: {error}") from error


def _largest(openings: Openings | tuple[Opening, ...]) -> list[Opening]:
    """The largest of the openings that may be told, in the order in which they are."""
    told = [opening for opening in openings if opening.seconds >= 1]
    size = sorted(range(len(told)), key=lambda n: (-told[n].nodes * sum(told[n].gpus), -told[n].nodes * told[n].cores))
    return [told[n] for n in sorted(size[:_MOST_OPENINGS])]


def _listed(opening: Opening) -> list[Any]:
    seconds = math.floor(min(opening.seconds, _FAR))
    return [opening.nodes, list(opening.gpus), opening.cores, opening.memory_mb, seconds]


def _opening(values: Any) -> Opening:
    nodes, gpus, cores, memory, seconds = values
    if not isinstance(gpus, list) or len(gpus) > _MOST_OPENINGS or sorted(gpus, reverse=True) != gpus:
        raise ValueError(f"{gpus!r} is no pattern of free GPUs")
    pattern = tuple(_count(count) for count in gpus)
    if min((_count(nodes), *pattern)) < 1:
        raise ValueError(f"{values!r} has no nodes, or a group without GPUs")
    return Opening(nodes, pattern, _count(cores), _count(memory), float(_count(seconds)))


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGE:  # True is none
        raise ValueError(f"{value!r} is no whole number that makes sense")
    return value
