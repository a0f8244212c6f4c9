from __future__ import annotations

from itertools import groupby

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
    runs = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    lengths = sorted((len(list(run)) for _, run in runs), reverse=True)
    assert _runs(chosen) == next(few for few in range(1, len(lengths) + 1) if sum(lengths[:few]) >= count)


def test_a_run_of_just_the_right_length_is_taken_first() -> None:
    assert members(close_together(node_set([0, 1, 2, 3, 7, 8, 12, 13, 14]), 3)) == [12, 13, 14]
    assert members(close_together(node_set([0, 1, 2, 3, 7, 8, 12, 13, 14]), 2)) == [7, 8]
    assert members(close_together(node_set([0, 1, 2, 3, 7, 9, 10]), 1)) == [7]
    assert members(close_together(node_set([4, 5, 6]), 1)) == [4]
