"""Nodes, GPUs and cores that are close together, and requests for jobs."""

from __future__ import annotations

import itertools
import json
import math
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.capacity import (
    AllocationRequest,
    AllocationRoom,
    TimeLeft,
    choose_cores,
    choose_gpus,
    close_together,
    lowest,
    members,
    node_set,
    numbers,
    pattern_of,
    remaining_pattern,
)
from hpo_pilot.jobs.resources import JobNeeds, NodeShape, Room

FRONTIER = NodeShape(cores=56, memory_mb=512_000, gpus=8, close=2)
SUMMIT = NodeShape(cores=42, memory_mb=512_000, gpus=6, close=3)


def _groups(shape: NodeShape, gpus: int) -> int:
    return len({number // shape.close for number in numbers(gpus)})


def test_cores_are_beside_the_gpus() -> None:
    everything = (1 << 42) - 1
    assert numbers(choose_cores(SUMMIT, everything, 7, 0b000111)) == tuple(range(7))
    assert numbers(choose_cores(SUMMIT, everything, 7, 0b111000)) == tuple(range(21, 28))
    assert numbers(choose_cores(SUMMIT, everything, 23, 0b111000)) == (0, 1, *range(21, 42))
    assert numbers(choose_cores(SUMMIT, 0b1011, 2, 0)) == (0, 1)


@given(st.sampled_from([FRONTIER, SUMMIT, NodeShape(4, 1, 5, 2), NodeShape(4, 1, 4, 1)]), st.data())
def test_as_few_groups_as_can_be(shape: NodeShape, data: st.DataObject) -> None:
    free = data.draw(st.integers(1, (1 << shape.gpus) - 1))
    count = data.draw(st.integers(1, free.bit_count()))
    chosen = choose_gpus(shape, free, count)
    assert chosen & ~free == 0
    assert chosen.bit_count() == count
    every = (sum(1 << number for number in some) for some in itertools.combinations(numbers(free), count))
    assert _groups(shape, chosen) == min(_groups(shape, gpus) for gpus in every)
    assert remaining_pattern(pattern_of(shape, free), count) == (
        _groups(shape, chosen),
        pattern_of(shape, free & ~chosen),
    )


# --- sets of nodes ---


SETS = st.sets(st.integers(0, 200), min_size=1)


@given(SETS)
def test_a_set_has_its_members(numbers: set[int]) -> None:
    assert members(node_set(numbers)) == sorted(numbers)


@given(SETS, st.data())
def test_the_lowest_are_the_lowest(numbers: set[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(numbers)))
    assert members(lowest(node_set(numbers), count)) == sorted(numbers)[:count]


def _runs(numbers: list[int]) -> int:
    return sum(number - 1 not in numbers for number in numbers)


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


# --- requests for jobs ---


PAIR = JobNeeds(nodes=1, gpus_per_node=2, cores=7, memory_mb=100, minutes=10)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Room(1, (3, 3), 42, 900, 1000.0), Room(1, (3, 3), 42, 900, 600.0)),  # not where one waits to start
        (Room(1, (3, 3), 42, 900, 600.0), Room(1, (1, 1), 42, 900, 600.0)),  # close together
        (Room(1, (2, 1), 42, 900, 600.0), Room(1, (3, 3), 42, 900, 600.0)),  # few GPUs left
        (Room(1, (3,), 20, 900, 600.0), Room(1, (3,), 21, 900, 600.0)),  # few cores left
        (Room(1, (3,), 20, 900, 600.0), Room(1, (3,), 20, 901, 600.0)),  # little memory left
    ],
)
def test_room_is_taken_in_the_order_of_the_scheduler(first: Room, second: Room) -> None:
    for order in ([first, second], [second, first]):
        openings = AllocationRoom(order)
        assert openings.take(PAIR, 600.0)
        _, gpus = remaining_pattern(first.gpus, 2)
        assert set(openings) == {Room(1, gpus, first.cores - 7, first.memory_mb - 100, first.seconds), second}


def test_a_job_takes_nodes_of_several_openings_or_nothing() -> None:
    openings = AllocationRoom([Room(2, (3, 3), 42, 900, 600.0), Room(3, (3, 3), 50, 900, 600.0)])
    before = set(openings)
    whole = JobNeeds(nodes=4, gpus_per_node=6, cores=42, memory_mb=100, minutes=10)
    assert not openings.take(whole, 601.0)
    assert not openings.take(JobNeeds(6, 1, 1, 1, 10), 600.0)
    assert set(openings) == before
    assert openings.take(whole, 600.0)
    assert set(openings) == {Room(2, (), 8, 800, 600.0), Room(1, (3, 3), 50, 900, 600.0)}


def test_a_block_is_for_one_job_on_as_many_nodes() -> None:
    openings = AllocationRoom([Room(2, (3, 3), 42, 1000, 600.0)], [Room(2, (3, 3), 42, 1000, 300.0)] * 2)
    on = lambda nodes: JobNeeds(nodes, 6, 42, 1000, 10)  # noqa: E731
    assert not openings.take(on(3), 10.0)
    before = openings.copy()
    assert openings.take_many(on(2), 10.0, 9) == 3
    assert not openings
    assert before.take_many(on(1), 10.0, 9) == 2
    assert before.take_many(on(2), 301.0, 9) == 0
    assert before.take_many(on(2), 300.0, 1) == 1
    assert len(before.blocks) == 1


def test_a_request_survives_the_way_to_the_server() -> None:
    now = [Room(4000, (3, 3), 42, 512_000, 7199.7), Room(2, (1,), 7, 60_000, math.inf), Room(1, (), 3, 5, 0.4)]
    blocks = [Room(12, (3, 3), 42, 512_000, 900.9)] * 2
    later, left = (Room(64, (3, 3), 42, 512_000, 3600.0),), TimeLeft(7199.7, 0.25, 599.5)
    request = AllocationRequest(AllocationRoom(now, blocks), later, {"ada/gan.0f": 59.2, "büro/ü": 1.0}, left)
    text = request.to_text()
    assert text.isascii()
    assert "\n" not in text
    read = AllocationRequest.from_text(text)
    assert set(read.now) == {Room(4000, (3, 3), 42, 512_000, 7199.0), Room(2, (1,), 7, 60_000, 1e9)}
    assert read.now.blocks == [Room(12, (3, 3), 42, 512_000, 900.0)] * 2
    assert read.later == request.later
    assert read.left == TimeLeft(7199.0, 0.25, 600.0)
    assert AllocationRequest.from_text("{}").left.needed(JobNeeds(minutes=1e6), None) == 6e7  # of an earlier version
    assert read.seconds == {"ada/gan.0f": 60.0, "büro/ü": 1.0}
    assert AllocationRequest.from_text(read.to_text()).to_text() == read.to_text()


def test_of_many_openings_the_largest_are_told() -> None:
    openings = [Room(nodes, (3, 3), 42, nodes, 60.0) for nodes in range(1, 101)]
    read = AllocationRequest.from_text(
        AllocationRequest(AllocationRoom(openings), tuple(openings), {str(n): 1.0 for n in range(1000)}).to_text()
    )
    assert sorted(opening.nodes for opening in read.now) == list(range(37, 101))
    assert [opening.nodes for opening in read.later] == list(range(37, 101))
    assert len(read.seconds) == 256


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"now": 3}',
        '{"now": [[1, [3], 1, 1]]}',
        '{"now": [[1, [3], 1, 1, 1.5]]}',
        '{"now": [[0, [3], 1, 1, 1]]}',
        '{"now": [[1, [2, 3], 1, 1, 1]]}',
        '{"left": [1, 2, 3]}',
        '{"left": [1, NaN, 3]}',
        '{"now": [[1, [0], 1, 1, 1]]}',
        '{"now": [[1, 3, 1, 1, 1]]}',
        '{"later": [[1, [3], -1, 1, 1]]}',
        '{"later": [[1, [3], 1, 1, 1e400]]}',
        '{"seconds": {"s": -1}}',
        '{"seconds": [1]}',
        f'{{"left": [1, {10**400}, 1]}}',
        json.dumps({"now": [[1, [3], 1, 1, 1]] * 65}),
        "[" * 100_000,
    ],
)
def test_an_invalid_request_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no openings"):
        AllocationRequest.from_text(text)


@given(st.data())
def test_many_at_once_are_the_same_as_one_by_one(data: st.DataObject) -> None:
    counts = st.integers(0, 3)
    opening = st.builds(
        Room,
        st.integers(1, 6),
        st.lists(st.integers(1, 3), max_size=2).map(lambda gpus: tuple(sorted(gpus, reverse=True))),
        st.integers(1, 9),
        st.integers(1, 9),
        st.sampled_from([60.0, 90.0]),
    )
    started = data.draw(st.lists(opening, max_size=5))
    many, single = AllocationRoom(started), AllocationRoom(started)
    for _ in range(3):
        needs = JobNeeds(
            data.draw(st.integers(1, 5)), data.draw(counts), data.draw(st.integers(1, 3)), data.draw(counts)
        )
        seconds, most = data.draw(st.sampled_from([30.0, 75.0, 100.0])), data.draw(st.integers(0, 9))
        apart = many.copy()
        taken = 0
        while taken < most and single.take(needs, seconds):
            taken += 1
        assert many.take_many(needs, seconds, most) == taken
        assert set(many) == set(single)
        assert apart.take_many(needs, seconds, most) == taken
