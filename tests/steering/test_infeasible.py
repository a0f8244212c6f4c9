"""Trials beyond limits on measured figures, from the report of a job to the end of the search."""

from __future__ import annotations

from hpo_pilot.search import TrialState
from hpo_pilot.search.ranking import ranked_by_folds
from hpo_pilot.store import SearchState
from hpo_pilot.store.progress import progress_of
from tests.steering.memory_panda import finish_all, go

INFEASIBLE, FINISHED = TrialState.INFEASIBLE, TrialState.FINISHED
LIMITED = {"limits": {"size": "<= 5", "memory_mb": "<= 100"}, "confirm": {"top": 1, "repeats": 1}}


def told(steering):
    return [observation.measured for observation in steering._proposer._optimizer.history]


def test_infeasible_trials_are_kept_and_never_the_best(steer, store, panda):
    steering = steer(LIMITED, trials=9, parallel=4)
    go(steering, 2)
    panda.finish(1, 1, size=6, memory_mb=50, other=1)  # the lowest value, 0.1
    panda.finish(1, 2, size=5)
    panda.finish(1, 3, size=4, memory_mb=100)
    panda.finish(1, 4, failed="killed, as the system does when memory runs out")
    go(steering, 2)
    states = [(trial.state, trial.values, trial.error) for trial in store.trials(1)[:3]]
    assert states[0] == (INFEASIBLE, (0.1,), "size is 6, not <= 5")
    assert (states[1][0], states[1][2].startswith("memory_mb was not reported")) == (INFEASIBLE, True)
    assert (states[2][0], states[2][2]) == (FINISHED, None)
    assert ranked_by_folds(steering._search, store.trials(1))[0].number == 3
    expected = [{"size": 6, "memory_mb": 50}, {"size": 5}, {"size": 4, "memory_mb": 100}, {"memory_mb": float("inf")}]
    assert told(steering) == expected
    again = steer()  # the figures are read again
    finish_all(again, panda)
    assert told(again)[:4] == expected
    assert [trial.confirms for trial in store.trials(1) if trial.confirms is not None] == [3]
    progress = progress_of(store.engine, 1)
    assert (progress.best, progress.infeasible, progress.failed, progress.over) == (3, 7, 1, 10)


def test_a_search_without_a_feasible_trial_says_so(steer, store, panda):
    steering = steer({"limits": {"size": "<= 5"}}, trials=2, parallel=2)
    finish_all(steering, panda)
    record = store.search(1)
    assert record.state is SearchState.FAILED
    assert "none of its 2 trials is known to be within the limits" in record.message
