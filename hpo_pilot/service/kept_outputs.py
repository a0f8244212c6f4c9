"""The payload's outputs, kept at the server for the best trials only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpo_pilot.panda.workflow_manager import WorkflowManager
from hpo_pilot.report.summary import top_trials
from hpo_pilot.search import Trial
from hpo_pilot.store import SearchRecord, SteeringStore

#: At least this many of the best trials keep their outputs.
_KEPT = 3


class KeptOutputs:
    """Which trials of a search have outputs at the server."""

    def __init__(
        self, record: SearchRecord, store: SteeringStore, manager: WorkflowManager, trials: Iterable[Trial]
    ) -> None:
        """Starts from the trials that the store knows."""
        self._record = record
        self._store = store
        self._manager = manager
        self._count = max(_KEPT, record.search.confirm.top)
        self._numbers = {trial.number for trial in trials if trial.value is not None} if self._declared else set()

    @property
    def _declared(self) -> bool:
        return bool(self._record.search.payload.outputs)

    def keep_best(self, new: Iterable[int], trials: Mapping[int, Trial]) -> None:
        """Adds finished trials, and deletes the outputs of those that are no longer among the best.

        Raises:
            TryAgainError: the server cannot be reached; what was not deleted is deleted with the next trial.
        """
        if not self._declared:
            return
        self._numbers |= set(new)
        best = top_trials(self._record.search, [trials[number] for number in self._numbers], self._count)
        gone = sorted(self._numbers - {trial.number for trial in best})
        for number in gone:
            for output in self._store.outputs(self._record.id, number).values():
                self._manager.discard(output)
        if gone:
            self._store.discard_outputs(self._record.id, gone)
            self._numbers -= set(gone)
