"""Limits on measured figures."""

from __future__ import annotations

import math

import pytest

from hpo_pilot.search import TrialState
from hpo_pilot.search.measured_limits import measured_figures, measured_limit, why_infeasible
from tests.made import made_fold, made_search, made_trial

LIMITS = (measured_limit("memory_mb", "<= 100"), measured_limit("rate", ">= -2.5"), measured_limit("seconds", "<= 9"))
GOOD = {"memory_mb": 100.0, "rate": -2.5, "seconds": 9.0}


@pytest.mark.parametrize(
    ("figures", "wrong"),
    [
        (GOOD, []),
        ({**GOOD, "memory_mb": 101}, ["memory_mb is 101, not <= 100"]),
        ({**GOOD, "rate": -3, "seconds": math.inf}, ["rate is -3, not >= -2.5", "seconds is inf, not <= 9"]),
        ({"memory_mb": 1, "seconds": 1}, ["rate was not reported, so it is not known whether it is >= -2.5"]),
    ],
)
def test_every_limit_must_be_known_to_hold(figures, wrong):
    assert why_infeasible(LIMITS, figures) == "; ".join(wrong)


def test_a_figure_is_the_mean_over_the_folds():
    folds = [made_fold(n, 0.1, metrics={"rate": rate}, seconds=8 + n) for n, rate in enumerate((1, 3))]
    trial = made_trial(number=1, generation=1, point={}, state=TrialState.FINISHED, value=0.1, folds=tuple(folds))
    assert measured_figures(LIMITS, trial) == {"rate": 2.0, "seconds": 8.5}


@pytest.mark.parametrize(
    ("error", "beyond"),
    [
        ("the payload was ended by signal 9 (SIGKILL), as the system does when memory runs out", "memory_mb"),
        ("the payload used 900 MB of memory, more than the 800 MB that it asked for", "memory_mb"),
        ("slurmstepd: error: Detected 1 oom_kill event", "memory_mb"),
        ("the payload reached its time limit of 5 minutes", "seconds"),
        ("the payload ended with exit code 3", None),
    ],
)
def test_a_job_ended_for_using_too_much_is_beyond_the_limit(error, beyond):
    failed = made_trial(number=1, generation=1, point={}, state=TrialState.FAILED, error=error)
    assert measured_figures(LIMITS, failed) == ({beyond: math.inf} if beyond else {})


def test_a_search_keeps_its_limits_as_json():
    search = made_search(limits={"memory_mb": "<=1.6e4"})
    assert search.to_dict()["limits"] == {"memory_mb": "<= 1.6e4"}
    assert type(search).model_validate(search.to_dict()) == search
    assert [str(limit) for limit in search.measured_limits] == ["<= 16000"]
    assert "limits" not in made_search().to_dict()
