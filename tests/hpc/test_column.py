from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_pilot.hpc.capacity import NodeCounts, members, node_set

AMOUNTS = st.lists(st.integers(0, 300), min_size=1, max_size=90)


@settings(deadline=None)
@given(AMOUNTS, st.data())
def test_a_column_does_what_a_list_does(amounts: list[int], data: st.DataObject) -> None:
    column, most = NodeCounts(amounts), list(amounts)
    for _ in range(data.draw(st.integers(0, 8))):
        some = data.draw(st.sets(st.integers(0, len(amounts) - 1), min_size=1))
        if data.draw(st.booleans()):
            taken = data.draw(st.integers(0, min(amounts[node] for node in some)))
            column.subtract(taken, node_set(some))
            amounts = [amount - taken * (node in some) for node, amount in enumerate(amounts)]
        else:
            given_back = data.draw(st.integers(0, min(most[node] - amounts[node] for node in some)))
            column.add(given_back, node_set(some))
            amounts = [amount + given_back * (node in some) for node, amount in enumerate(amounts)]
        within = data.draw(st.sets(st.integers(0, len(amounts) - 1), min_size=1))
        wanted = data.draw(st.integers(-1, 400))
        assert members(column.at_least(wanted, node_set(within))) == sorted(n for n in within if amounts[n] >= wanted)
        least = min(amounts[node] for node in within)
        assert column.least(node_set(within)) == (least, node_set(n for n in within if amounts[n] == least))


def test_nothing_is_taken_or_given_that_is_not_there() -> None:
    column = NodeCounts([5, 3])
    with pytest.raises(ValueError, match="4 taken"):
        column.subtract(4, 0b11)
    with pytest.raises(ValueError, match="8 taken"):
        column.subtract(8, 0b01)
    with pytest.raises(ValueError, match="3 given back"):
        column.add(3, 0b01)
    assert column.least(0b01) == (5, 0b01)
    assert column.least(0b10) == (3, 0b10)
