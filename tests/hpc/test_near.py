from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_pilot.hpc.capacity import NodeShape, choose_cores, choose_gpus, numbers, pattern_after, pattern_of

FRONTIER = NodeShape(cores=56, memory_mb=512_000, gpus=8, close=2)
SUMMIT = NodeShape(cores=42, memory_mb=512_000, gpus=6, close=3)


def _groups(shape: NodeShape, gpus: int) -> int:
    return len({number // shape.close for number in numbers(gpus)})


def test_pairs_stay_together() -> None:
    assert numbers(choose_gpus(FRONTIER, 0b11111111, 2)) == (0, 1)
    assert numbers(choose_gpus(FRONTIER, 0b11111110, 2)) == (2, 3)
    assert numbers(choose_gpus(FRONTIER, 0b11111110, 1)) == (1,)
    assert numbers(choose_gpus(FRONTIER, 0b11101101, 4)) == (2, 3, 6, 7)
    assert numbers(choose_gpus(SUMMIT, 0b111110, 3)) == (3, 4, 5)
    assert numbers(choose_gpus(SUMMIT, 0b111110, 2)) == (1, 2)


def test_cores_are_beside_the_gpus() -> None:
    everything = (1 << 42) - 1
    assert numbers(choose_cores(SUMMIT, everything, 7, 0b000111)) == tuple(range(7))
    assert numbers(choose_cores(SUMMIT, everything, 7, 0b111000)) == tuple(range(21, 28))
    assert numbers(choose_cores(SUMMIT, everything, 23, 0b111000)) == (0, 1, *range(21, 42))
    assert numbers(choose_cores(SUMMIT, 0b1011, 2, 0)) == (0, 1)


@settings(deadline=None)
@given(st.sampled_from([FRONTIER, SUMMIT, NodeShape(4, 1, 5, 2), NodeShape(4, 1, 4, 1)]), st.data())
def test_as_few_groups_as_can_be(shape: NodeShape, data: st.DataObject) -> None:
    free = data.draw(st.integers(1, (1 << shape.gpus) - 1))
    count = data.draw(st.integers(1, free.bit_count()))
    chosen = choose_gpus(shape, free, count)
    assert chosen & ~free == 0
    assert chosen.bit_count() == count
    every = (sum(1 << number for number in some) for some in itertools.combinations(numbers(free), count))
    assert _groups(shape, chosen) == min(_groups(shape, gpus) for gpus in every)
    assert pattern_after(pattern_of(shape, free), count) == (
        _groups(shape, chosen),
        pattern_of(shape, free & ~chosen),
    )
