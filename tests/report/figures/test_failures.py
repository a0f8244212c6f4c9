from __future__ import annotations

from hpo_pilot.report.summary import LOG_LIMIT, REASON_LIMIT, failure_groups
from hpo_pilot.search import TrialState
from tests.made import made_fold
from tests.report.figures.made_up import make_trial


def test_reasons_that_differ_in_numbers_are_one() -> None:
    trials = [make_trial(n, None, error=f"exit status 1 after {n}.5 s") for n in (1, 2, 3)]
    trials += [make_trial(4, None, error="no output.json"), make_trial(5, 0.1)]
    first, second = failure_groups(trials)
    assert (first.reason, first.trials, first.lost) == ("exit status 1 after 1.5 s", (1, 2, 3), True)
    assert (second.reason, second.trials) == ("no output.json", (4,))


def test_only_the_first_line_decides() -> None:
    (group,) = failure_groups([make_trial(1, None, error="crashed\nat a"), make_trial(2, None, error="crashed\nat b")])
    assert group.trials == (1, 2)


def test_a_log_is_kept_to_its_end_and_a_reason_to_its_start() -> None:
    fold = made_fold(fold=0, error="crashed", log_tail="x" * 60_000 + "the end")
    (group,) = failure_groups([make_trial(1, None, error="r" * 5000, folds=(fold,))])
    assert group.log_tail is not None
    assert len(group.log_tail) == LOG_LIMIT
    assert group.log_tail.endswith("the end")
    assert len(group.reason) == REASON_LIMIT


def test_a_trial_without_a_reason_of_its_own_gives_its_folds() -> None:
    folds = (made_fold(fold=0, error="killed"), made_fold(fold=1, error="killed"), made_fold(fold=2, value=1.0))
    (group,) = failure_groups([make_trial(1, None, error=None, folds=folds)])
    assert (group.reason, group.folds, group.trials) == ("killed", 2, (1,))
    (nothing,) = failure_groups([make_trial(1, None, error=None)])
    assert nothing.reason == "no reason was recorded"


def test_a_lost_fold_of_a_finished_trial_is_no_lost_trial() -> None:
    folds = (made_fold(fold=0, value=0.1), made_fold(fold=1, error="killed"))
    (group,) = failure_groups([make_trial(1, 0.1, folds=folds)])
    assert (group.lost, group.folds) == (False, 1)


def test_a_stopped_trial_is_no_failure() -> None:
    fold = made_fold(fold=0, error="cancelled")
    assert failure_groups([make_trial(1, None, state=TrialState.STOPPED, error="stopped", folds=(fold,))]) == []
