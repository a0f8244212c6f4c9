from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_pilot.hpc.capacity import close_together, lowest, members, node_set

SETS = st.sets(st.integers(0, 200), min_size=1)


@settings(deadline=None)
@given(SETS)
def test_a_set_has_its_members(numbers: set[int]) -> None:
    assert members(node_set(numbers)) == sorted(numbers)


@settings(deadline=None)
@given(SETS, st.data())
def test_the_lowest_are_the_lowest(numbers: set[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(numbers)))
    assert members(lowest(node_set(numbers), count)) == sorted(numbers)[:count]


def _runs(numbers: list[int]) -> int:
    return sum(number - 1 not in numbers for number in numbers)


@settings(deadline=None)
@given(SETS, st.data())
def test_so_many_nodes_of_the_set_in_few_runs(numbers: set[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(numbers)))
    chosen = members(close_together(node_set(numbers), count))
    assert len(chosen) == count
    assert set(chosen) <= numbers
    lengths = []
    for number in sorted(numbers):
        if number - 1 in numbers:
            lengths[-1] += 1
        else:
            lengths.append(1)
    fewest, have = 0, 0
    for length in sorted(lengths, reverse=True):
        if have < count:
            fewest, have = fewest + 1, have + length
    assert _runs(chosen) == fewest


def test_a_run_of_just_the_right_length_is_taken_first() -> None:
    assert members(close_together(node_set([0, 1, 2, 3, 7, 8, 12, 13, 14]), 3)) == [12, 13, 14]
    assert members(close_together(node_set([0, 1, 2, 3, 7, 8, 12, 13, 14]), 2)) == [7, 8]
    assert members(close_together(node_set([0, 1, 2, 3, 7, 9, 10]), 1)) == [7]
    assert members(close_together(node_set([4, 5, 6]), 1)) == [4]
