"""The points that a search's users asked for, as its steering sends them out; and new trials of any origin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpo_pilot.search import Point, Trial, TrialState, point_key
from hpo_pilot.service.submissions import trial_seed
from hpo_pilot.store import NewTrial, SteeringStore, Wish


class WishList:
    """What waits, the next one first. A search is loaded anew whenever a user asks for something."""

    def __init__(self, search_id: int, store: SteeringStore) -> None:
        """Loads it."""
        self._store = store
        self._waiting = store.wishes(search_id)

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self, count: int, trials: Mapping[int, Trial]) -> list[Wish]:
        """The first of them, at most so many; they wait on until `sent`.

        A point that the optimizer came upon while its user asked for it is one of `trials` now, and not tried twice.
        """
        if not self._waiting:
            return []
        there = {
            point_key(trial.point): trial.number
            for trial in trials.values()
            if trial.counts and trial.state is not TrialState.FAILED
        }
        for wish in list(self._waiting):
            if wish.retries is None and (number := there.get(point_key(wish.point))) is not None:
                self._store.fulfil(wish.id, number)
                self._waiting.remove(wish)
        return self._waiting[:count]

    def sent(self, wishes: Iterable[int | None]) -> None:
        """These have become trials: the ids of wishes; None for trials that come of none."""
        gone = set(wishes)
        self._waiting = [wish for wish in self._waiting if wish.id not in gone]


def new_trials(
    seed: int,
    first: int,
    points: Sequence[Point],
    confirms: Sequence[int] | None = None,
    wishes: Sequence[Wish] | None = None,
) -> list[NewTrial]:
    """Trials of these points, to be registered.

    Args:
        seed: the search's.
        first: the number of the first of them.
        points: the points.
        confirms: of confirmation runs, what each confirms.
        wishes: of points that users asked for, the wishes.
    """
    trials = []
    for index, point in enumerate(points):
        number, wish = first + index, wishes[index] if wishes else None
        trials.append(
            NewTrial(
                number,
                point,
                trial_seed(seed, number),
                confirms[index] if confirms else None,
                wish.retries if wish else None,
                wish.id if wish else None,
            )
        )
    return trials
