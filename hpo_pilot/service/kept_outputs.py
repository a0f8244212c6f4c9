"""The payload's outputs, kept at the server for the best trials only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpo_pilot.figures.summary import top_trials
from hpo_pilot.panda.workflow_manager import WorkflowManager
from hpo_pilot.search import Trial
from hpo_pilot.store import SearchRecord, SteeringStore

#: At least this many of the best trials keep their outputs; of a front, from which people choose, more.
_KEPT, _KEPT_OF_FRONT = 3, 10


class KeptOutputs:
    """Which trials of a search have outputs at the server."""

    def __init__(
        self, record: SearchRecord, store: SteeringStore, manager: WorkflowManager, trials: Iterable[Trial]
    ) -> None:
        """Starts from the trials that the store knows."""
        self._record = record
        self._store = store
        self._manager = manager
        several = len(record.search.objectives) > 1
        self._count = max(_KEPT_OF_FRONT if several else _KEPT, record.search.confirm.top)
        self._numbers: set[int] = set()
        if self._declared:
            over = {trial.number for trial in trials if trial.state.is_over}
            self._numbers = over & store.trials_with_outputs(record.id)

    @property
    def _declared(self) -> bool:
        return bool(self._record.search.payload.kept_files)

    def keep_best(self, new: Iterable[int], trials: Mapping[int, Trial]) -> None:
        """Adds trials that are over, and deletes the outputs of those that are not, or no longer, among the best.

        A job may have packed the outputs of several trials: its archive stays while one of them is wanted.

        Raises:
            TryAgainError: the server cannot be reached; what was not deleted is deleted with the next trial.
        """
        if not self._declared or self._manager.manners.keeps_outputs:
            return
        self._numbers |= set(new)
        candidates = [trials[number] for number in self._numbers if trials[number].confirms is None]
        best = top_trials(self._record.search, candidates, self._count)
        if self._record.search.confirm.top:
            # Those that were confirmed come before better ones that may still be, should the search be extended.
            confirmations = [trial for trial in trials.values() if trial.confirms is not None]
            best += top_trials(self._record.search, candidates + confirmations, self._count)
        gone = sorted(self._numbers - {trial.number for trial in best})
        if gone:
            for archive in self._store.unwanted_archives(self._record.id, gone):
                self._manager.discard(archive)
            self._store.discard_outputs(self._record.id, gone)
            self._numbers -= set(gone)
