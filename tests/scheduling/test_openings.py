from __future__ import annotations

import pytest

from hpo_pilot.jobs import JobNeeds
from hpo_pilot.scheduling import Opening, Openings

PAIR = JobNeeds(nodes=1, gpus_per_node=2, cores=7, memory_mb=100, minutes=10)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Opening(1, (3, 3), 42, 900, 1000.0), Opening(1, (3, 3), 42, 900, 600.0)),  # not where one waits to start
        (Opening(1, (3, 3), 42, 900, 600.0), Opening(1, (1, 1), 42, 900, 600.0)),  # close together
        (Opening(1, (2, 1), 42, 900, 600.0), Opening(1, (3, 3), 42, 900, 600.0)),  # few GPUs left
        (Opening(1, (3,), 20, 900, 600.0), Opening(1, (3,), 21, 900, 600.0)),  # few cores left
        (Opening(1, (3,), 20, 900, 600.0), Opening(1, (3,), 20, 901, 600.0)),  # little memory left
    ],
)
def test_room_is_taken_in_the_order_of_the_scheduler(first: Opening, second: Opening) -> None:
    for order in ([first, second], [second, first]):
        openings = Openings(order)
        assert openings.take(PAIR, 600.0)
        assert set(openings) == {first.without(PAIR, 1), second}


def test_a_job_takes_nodes_of_several_openings_or_nothing() -> None:
    openings = Openings([Opening(2, (3, 3), 42, 900, 600.0), Opening(3, (3, 3), 50, 900, 600.0)])
    before = set(openings)
    whole = JobNeeds(nodes=4, gpus_per_node=6, cores=42, memory_mb=100, minutes=10)
    assert not openings.take(whole, 601.0)
    assert not openings.take(JobNeeds(6, 1, 1, 1, 10), 600.0)
    assert set(openings) == before
    assert openings.take(whole, 600.0)
    assert set(openings) == {Opening(2, (), 8, 800, 600.0), Opening(1, (3, 3), 50, 900, 600.0)}
