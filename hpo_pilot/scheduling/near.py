"""Which GPUs and cores of one node a job gets: those that are close to each other.

GPUs and cores are masks: bit n stands for number n. What is free of each group of close GPUs, the fullest group first,
is the node's pattern: nodes of one pattern are alike to a job.
"""

from __future__ import annotations

from functools import lru_cache

from hpo_pilot.scheduling.node import NodeShape

#: Free GPUs of each group, descending; groups with none are left out.
Pattern = tuple[int, ...]


@lru_cache(maxsize=1 << 16)
def pattern_of(shape: NodeShape, gpus: int) -> Pattern:
    """The pattern of free GPUs."""
    counts = (part.bit_count() for part in _parts(shape, gpus))
    return tuple(sorted(filter(None, counts), reverse=True))


@lru_cache(maxsize=1 << 16)
def choose_gpus(shape: NodeShape, gpus: int, count: int) -> int:
    """`count` of the free GPUs: of as few groups as possible, and of those the ones with the least left."""
    parts = _parts(shape, gpus)
    chosen = 0
    for place, taken in _shares(tuple(part.bit_count() for part in parts), count):
        chosen |= _lowest_bits(parts[place], taken)
    return chosen


@lru_cache(maxsize=1 << 16)
def pattern_after(pattern: Pattern, count: int) -> tuple[int, Pattern]:
    """(groups that `count` GPUs are spread over, the pattern that remains); `choose_gpus` does the same."""
    left = list(pattern)
    shares = _shares(pattern, count)
    for place, taken in shares:
        left[place] -= taken
    return len(shares), tuple(sorted(filter(None, left), reverse=True))


@lru_cache(maxsize=1 << 16)
def choose_cores(shape: NodeShape, cores: int, count: int, gpus: int) -> int:
    """`count` of the free cores: those of the groups of these GPUs first, then from the lowest on."""
    chosen = 0
    if gpus:
        beside = 0
        for group, part in enumerate(_parts(shape, gpus)):
            if part:
                first, end = (shape.cores * edge // shape.groups for edge in (group, group + 1))
                beside |= (1 << end) - (1 << first)
        chosen = _lowest_bits(cores & beside, count)
    return chosen | _lowest_bits(cores & ~chosen, count - chosen.bit_count())


@lru_cache(maxsize=1 << 16)
def numbers(mask: int) -> tuple[int, ...]:
    """The numbers in a mask, ascending."""
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)


def _parts(shape: NodeShape, gpus: int) -> list[int]:
    group = (1 << shape.close) - 1
    return [gpus & group << first for first in range(0, shape.gpus, shape.close)]


def _shares(free: tuple[int, ...], count: int) -> list[tuple[int, int]]:
    """(group, how many of it): whole groups, the fullest first, until one group has the rest."""
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


def _lowest_bits(mask: int, count: int) -> int:
    chosen = 0
    while count > 0 and mask:
        bit = mask & -mask
        chosen |= bit
        mask ^= bit
        count -= 1
    return chosen
