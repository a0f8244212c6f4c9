"""A trial's folds: which attempt counts."""

from __future__ import annotations

import pytest

from hpo_pilot.jobs import Attempt, JobState
from hpo_pilot.search import Fold, Trial, TrialState
from tests.made import made_attempt


def attempt(state: JobState, *values: float, seconds: float | None = 1.0, attempt: int = 1) -> Attempt:
    return made_attempt(1, 1, 0, attempt, state, values=values, seconds=seconds)


LOST, GOOD, BAD = attempt(JobState.FAILED), attempt(JobState.FINISHED, 0.5, attempt=2), attempt(JobState.FINISHED)
NOT_BEGUN = attempt(JobState.NOT_RUN, seconds=None)


@pytest.mark.parametrize(
    ("attempts", "result", "number"),
    [
        ((LOST, GOOD), GOOD, 2),
        ((GOOD, LOST), GOOD, 1),
        ((LOST, BAD), BAD, 2),
        ((NOT_BEGUN, GOOD), GOOD, 1),
        ((NOT_BEGUN,), NOT_BEGUN, 1),
    ],
)
def test_the_first_attempt_with_figures_counts_else_the_last_that_has_begun(attempts, result, number):
    fold = Fold(0, attempts)
    assert (fold.result, fold.attempt, fold.values) == (result, number, result.values)


def test_a_trial_sums_its_attempts_and_counts_its_good_folds():
    folds = (Fold(0, (LOST, GOOD)), Fold(1, (BAD,)))
    trial = Trial(1, 1, {}, TrialState.FINISHED, values=(0.5, 3.0), folds=folds)
    assert (trial.value, trial.std, trial.good_folds, trial.spent.seconds) == (0.5, None, 1, 3.0)
