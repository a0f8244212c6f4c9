"""The best points run again at the end with fresh seeds, against winner's luck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from hpo_pilot.figures.summary import top_trials
from hpo_pilot.search import Search, Trial, TrialState


def runs_to_come(search: Search, trials: Collection[Trial]) -> list[Trial]:
    """The trials to run again, each as often as it still has to be; those that were stopped do not count."""
    searched = [trial for trial in trials if trial.confirms is None]
    done = Counter(trial.confirms for trial in trials if trial.state is not TrialState.STOPPED)
    return [
        trial
        for trial in top_trials(search, searched, search.confirm.top)
        for _ in range(search.confirm.repeats - done[trial.number])
    ]
