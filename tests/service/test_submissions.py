"""How a generation becomes jobs."""

from __future__ import annotations

import pytest

from hpo_pilot.search import Search
from hpo_pilot.service.submissions import task_jobs


def search(folds: int, per_job: int) -> Search:
    return Search.model_validate(
        {
            "search": "demo",
            "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
            "folds": folds,
            "payload": {"command": "true"},
            "resources": {"trials_per_job": per_job},
        }
    )


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
