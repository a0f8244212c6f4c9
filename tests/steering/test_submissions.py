"""How a generation becomes jobs, when free slots are filled, and how many points wait at the server."""

from __future__ import annotations

import json
import tarfile
from functools import partial
from typing import Any

import pytest

from hpo_pilot.jobs import JobNeeds
from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.search import Budget, Search, TrialState
from hpo_pilot.steering.registration import payload_document
from hpo_pilot.steering.submissions import Lookahead, Refill, Walltimes, task_jobs, task_spec, trials_per_task
from hpo_pilot.transformation.job import PayloadSettings
from tests.made import made_end, made_fold, made_search


def search(folds: int, per_job: int) -> Search:
    return made_search(folds=folds, resources={"trials_per_job": per_job})


@pytest.mark.parametrize(
    ("trials", "folds", "per_job", "jobs"),
    [
        (2, 2, 1, [["1/0"], ["1/1"], ["2/0"], ["2/1"]]),
        (4, 1, 4, [["1/0", "2/0", "3/0", "4/0"]]),
        (5, 1, 4, [["1/0", "2/0"], ["3/0", "4/0", "5/0"]]),
        (3, 2, 4, [["1/0", "2/0", "3/0"], ["1/1", "2/1", "3/1"]]),
        (1, 3, 4, [["1/0"], ["1/1"], ["1/2"]]),
        (0, 3, 4, []),
    ],
)
def test_jobs_are_even_and_the_folds_of_a_trial_run_side_by_side(trials, folds, per_job, jobs):
    made = task_jobs(search(folds, per_job), [(number, number * 10) for number in range(1, trials + 1)])
    assert [[f"{member.trial}/{member.fold}" for member in job] for job in made] == jobs
    assert all(member.seed == member.trial * 10 for job in made for member in job)


@pytest.mark.parametrize(
    ("folds", "per_job", "trials", "jobs"),
    [
        (1, 1, 1000, 1000),
        (5, 1, 200, 1000),
        (7, 1, 142, 994),
        (1000, 1, 1, 1000),
        (50, 200, 200, 50),
        (5, 200, 2000, 50),
    ],
)
def test_a_task_is_never_so_large_that_a_look_at_it_takes_long(folds, per_job, trials, jobs):
    given = search(folds, per_job)
    assert trials_per_task(given, None) == trials
    made = task_jobs(given, [(number, 0) for number in range(1, trials + 1)])
    assert len(made) == jobs
    assert sum(map(len, made)) <= 10_000


def test_pilots_are_told_of_nodes_and_ranks(tmp_path):
    search = made_search(resources={"nodes": 4, "gpus_per_node": 6, "cores": 42, "minutes": 90})
    sandbox = build_sandbox(None, payload_document(search, None), tmp_path)
    with tarfile.open(sandbox) as archive:
        archive.extract("hpo_pilot_payload.json", tmp_path, filter="data")
    document = PayloadSettings.read(str(tmp_path))
    assert (document.nodes, document.ranks_per_node, document.gpus, document.minutes) == (4, 6, 6, 90.0)
    needs = task_spec(search, "cafe", sandbox, "n", 1, (), {}).needs
    assert needs == JobNeeds(4, 6, 42, 2000, 90.0, 6)


@pytest.mark.parametrize(
    ("document", "nodes", "ranks"),
    [
        ({}, 1, 0),
        ({"nodes": 2, "gpus_per_node": 3}, 2, 3),
        ({"nodes": 2}, 2, 1),
        ({"nodes": 1, "gpus_per_node": 3}, 1, 0),
        ({"nodes": 2, "gpus_per_node": 6, "ranks_per_node": 2}, 2, 2),
        ({"nodes": None, "ranks_per_node": None, "minutes": None}, 1, 0),
    ],
)
def test_sandboxes_of_earlier_versions_say_less(tmp_path, document, nodes, ranks):
    (tmp_path / "hpo_pilot_payload.json").write_text(json.dumps(document))
    read = PayloadSettings.read(str(tmp_path))
    assert (read.nodes, read.ranks_per_node) == (nodes, ranks)


@pytest.mark.parametrize(
    ("refill", "polite", "first"), [("auto", 0.0, 1), ("auto", 0.25, 3), (0.5, 0.0, 6), (0.0, 0.25, 1), (1.0, 0.0, 12)]
)
def test_so_many_slots_must_be_free(refill, polite, first):
    budget = Budget(parallel=12, refill=refill)
    assert [free for free in range(13) if Refill(budget).is_due(free, 99, polite)] == list(range(first, 13))


def test_once_it_begins_all_slots_are_filled_task_by_task():
    refills = Refill(Budget(parallel=40))
    assert not refills.is_due(9, 99, 0.25)
    assert [refills.is_due(free, 99, 0.25) for free in (10, 5, 1, 0, 1)] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("budget", "per_job", "free", "left", "polite", "is_due"),
    [
        ({"parallel": 40}, 1, 2, 2, 0.25, True),
        ({"parallel": 12}, 4, 3, 99, 0.0, False),
        ({"parallel": 12}, 4, 4, 99, 0.0, True),
        ({"parallel": 12}, 4, 3, 3, 0.0, True),
        ({"parallel": 2}, 4, 2, 99, 0.0, True),
        ({"parallel": 40}, 4, 9, 99, 0.25, False),
        ({"parallel": 100, "refill": 0.07}, 1, 7, 99, 0.0, True),
    ],
    ids=[
        "the last points of a budget wait for no batch",
        "a job is filled before it goes out",
        "a full job",
        "the last of the budget",
        "there are never more",
        "a batch of jobs",
        "a share is not rounded up by a digit that is not there",
    ],
)
def test_slots_are_filled(budget, per_job, free, left, polite, is_due):
    assert Refill(Budget(**budget), per_job).is_due(free, left, polite) is is_due


@pytest.mark.parametrize(("parallel", "per_job", "smallest"), [(6, 4, 3), (5, 4, 2), (9, 4, 3), (8, 4, 4), (3, 8, 3)])
def test_a_job_that_ends_is_followed_by_another_whatever_the_others_do(parallel, per_job, smallest):
    refills = Refill(Budget(parallel=parallel), per_job)
    assert not refills.is_due(smallest - 1, 99, 0.0)
    assert refills.is_due(smallest, 99, 0.0)


@pytest.mark.parametrize(
    ("parallel", "queued", "per_job", "hand_over", "run_times", "waiting"),
    [
        (8, "auto", 1, None, [], 0),
        (8, "auto", 1, 0.5, [600.0], 0),
        (8, "auto", 1, 0.2, [1.0], 2),
        (8, "auto", 1, 0.2, [1.0, *[1e-4] * 51], 8),
        (1, "auto", 1, 1.0, [0.001], 0),
        (1, 3, 1, None, [1000.0], 3),
        (16, "auto", 4, 0.2, [1.0], 4),
        (16, "auto", 1, 0.2, [4.0], 1),
    ],
    ids=[
        "nothing is measured",
        "long trials",
        "short trials: as many as their hand-over costs",
        "very short trials",
        "one at a time stays sequential",
        "a number is taken as it is",
        "several trials a job: whole jobs wait",
        "the same time in one trial",
    ],
)
def test_points_that_wait_at_the_server(parallel, queued, per_job, hand_over, run_times, waiting):
    look = Lookahead(parallel, queued, per_job)
    if hand_over is not None:
        look.handed_over(hand_over)
    for seconds in run_times:
        look.ran(seconds)
    assert look.waiting == waiting


def test_a_walltime_is_by_what_is_trained_and_by_whole_first_attempts() -> None:
    """The highest level was 8, and is 27 now: some points go on from 8 to 9, others from 3 to 9."""
    levels = {"epochs": {"low": 1, "high": 27, "eta": 3}}
    document = {"fidelity": levels, "resources": {"minutes": 400}, "budget": {"trials": 50, "parallel": 4}}
    trial = partial(made_end, state=TrialState.FINISHED)

    def walltimes(*ended: tuple[int, int, float, dict[str, Any]]) -> list[int | None]:
        """After trials with the levels below and above, minutes, and more of their fold: of 8 to 9, and of 3 to 9."""
        made, trials = Walltimes(made_search(**document)), {1: trial(1, level=8), 2: trial(2, level=3)}
        for below, level, minutes, fold in ended:
            folds = (made_fold(0, 0.5, seconds=60.0 * minutes, **fold),)
            made.ran(trial(9, value=0.5, level=level, continues={8: 1, 3: 2}[below], folds=folds), trials)
        asked = {10 + n: trial(10 + n, level=9, continues=n) for n in trials}
        return [made.of([number], {**trials, **asked}) for number in asked]

    short, whole = (8, 9, 1.0, {}), (3, 9, 6.0, {})
    assert walltimes(*[short] * 7) == [None, None]
    assert walltimes(*[short] * 8) == [400 * 60 // 16 + 300, None], "9 epochs from the start are nine minutes"
    assert walltimes(*[short] * 8, *[whole] * 8) == [400 * 60 // 16 + 300] * 2
    assert walltimes(*[(8, 9, 1.0, {"attempt": 2})] * 8) == [None, None]
    assert walltimes(*[short] * 8, (8, 9, 300.0, {})) == [None, None]
