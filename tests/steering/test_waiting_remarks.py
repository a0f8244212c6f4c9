"""Why jobs wait, in words."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_pilot.steering.status import why_they_wait

SHAPE = {"jobs": 3, "since": 60.0, "nodes": 1, "gpus": 0, "cores": 1, "memory_mb": 2000, "minutes": 60.0}
OFFER = {
    "queue": "Q",
    "asked": 5.0,
    "nodes": 1,
    "gpus": 0,
    "cores": 8,
    "memory_mb": 0,
    "minutes": 0.0,
    "is_busy": False,
}


def said(
    shapes: list[dict[str, Any]], offers: list[dict[str, Any]], going: int = 0, known_for: float = 9e3
) -> list[str]:
    answer = {"waiting": [SHAPE | one for one in shapes], "offers": [OFFER | one for one in offers]}
    return why_they_wait({**answer, "going": going, "known_for": known_for})


def test_nobody_asks() -> None:
    (remark,) = said([{}], [])
    assert remark.startswith("3 jobs wait, and no pilot has asked for jobs for 10 minutes: ")
    assert said([{}], [{"asked": 700.0}]) == [remark]
    (remark,) = said([{"jobs": 1}], [], known_for=90)
    assert remark.startswith("1 job waits, and no pilot has asked for jobs for 90 seconds: ")


@pytest.mark.parametrize(
    ("shapes", "offers", "more"),
    [
        ([], [], {}),
        ([{"since": 2.0}], [], {}),  # it has only just come
        ([{}], [], {"known_for": 3.0}),  # and so has the server
        ([{}], [{}], {}),  # it may be on its way
        ([{}], [{"asked": 900.0, "is_busy": True}], {"going": 1}),  # a pilot that is full asks for nothing
        ([{"gpus": 2}], [{}, {"gpus": 2, "asked": 900.0, "is_busy": True}], {"going": 1}),
        ([{}], [], {"going": 1}),
        ([{"gpus": 2}], [{"gpus": 1}, {"gpus": 4}], {}),
        ([{"minutes": 90.0}], [{"minutes": 30.0}, {"minutes": 0.0}], {}),
    ],
)
def test_nothing_to_say(shapes: list[dict[str, Any]], offers: list[dict[str, Any]], more: dict[str, Any]) -> None:
    assert said(shapes, offers, **more) == []


@pytest.mark.parametrize(
    ("shape", "offers", "lacking"),
    [
        ({"gpus": 2}, [{}, {"gpus": 1}], "has 2 GPUs on a node"),
        ({"gpus": 1}, [{}], "has 1 GPU on a node"),
        ({"nodes": 3, "gpus": 4}, [{"nodes": 2, "gpus": 1}], "has 3 nodes at once or 4 GPUs on a node"),
        ({"gpus": 2}, [{}, {"gpus": 2, "asked": 900.0}], "has 2 GPUs on a node"),  # that one has gone
        ({"cores": 9}, [{}], "has 9 cores on a node"),
        ({"memory_mb": 4000}, [{"memory_mb": 3000}], "has 4000 MB of memory on a node"),
        ({"minutes": 90.0}, [{"minutes": 30.0}], "has 90 minutes for a job"),
        ({"nodes": 2, "gpus": 1}, [{"nodes": 2}, {"gpus": 1}], "has all of this: 2 nodes at once, 1 GPU on a node, "),
    ],
)
def test_no_pilot_has_what_is_wanted(shape: dict[str, Any], offers: list[dict[str, Any]], lacking: str) -> None:
    (remark,) = said([shape], offers)
    assert remark.startswith(f"3 jobs wait, and no pilot that asked lately {lacking}")
    assert said([shape, {"minutes": 20.0}], offers) == [remark]  # others fit


def test_a_site_profile_that_no_pilot_has() -> None:
    (remark,) = said([{"site": "summit"}], [{"site": "local"}])
    assert "the site profile summit" in remark and "hpo-pilot pilots submit --site summit" in remark
    assert said([{"site": "summit"}], [{"site": "summit"}, {"site": "local"}]) == []
    assert said([{"site": "summit"}], [{"site": ""}]) == []


def test_a_queue_that_no_pilot_serves() -> None:
    (remark,) = said([{"queues": ["N", "M"]}], [{}, {"queue": "R"}, {}])
    assert remark.startswith(
        "3 jobs wait in queue N or M, which no pilot serves: those that asked lately serve Q and R"
    )
    assert said([{"queues": ["N", "Q"]}], [{}]) == said([{"queues": []}], [{}]) == []
    (remark,) = said([{"queues": ["Q"], "gpus": 2}], [{"queue": "R", "gpus": 2}, {}])
    assert "no pilot that asked lately has 2 GPUs" in remark


def test_pilots_that_cannot_start_them() -> None:
    (remark,) = said([{}], [{"why": "srun is not in PATH"}])
    assert remark.startswith("3 jobs wait, and no pilot can start them: srun is not in PATH")
    assert said([{}], [{"why": "srun is not in PATH"}, {"why": ""}]) == []
