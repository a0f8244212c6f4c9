"""What whoever looks at a search should know beside its results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpo_pilot.search import TrialState
from hpo_pilot.store import EMBEDDED, SearchRecord, Store
from hpo_pilot.store.tallies import open_tasks, reported_a_number, waiting_tasks

#: So many numbers of tasks are named.
_SHOWN = 5


def nothing_to_stop(store: Store, record: SearchRecord) -> list[str]:
    """That early stopping had nothing to go by, where trials have finished and none reported a number."""
    early = record.search.early_stopping
    if not early.is_on or not store.counts(record.id).get(TrialState.FINISHED):
        return []
    if reported_a_number(store.engine, record.id):
        return []
    metric, file = early.metric or record.search.objective.metric, record.search.payload.file_names.progress
    return [f"no trial reported a number {metric!r} in {file}: nothing could be stopped early"]


def waiting_at_the_server(store: Store, record: SearchRecord) -> list[str]:
    """Why the PanDA server makes no jobs of tasks that it has, in its own words."""
    if record.state.is_over:
        return []
    numbers: dict[str, list[int]] = {}
    for number, why in waiting_tasks(store.engine, record.id):
        numbers.setdefault(why, []).append(number)
    return [f"{_tasks(waiting)} at the PanDA server: {why}" for why, waiting in numbers.items()]


def _tasks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"task {numbers[0]} waits"
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", …" if len(numbers) > _SHOWN else "")
    return f"{len(numbers)} tasks ({shown}) wait"


def remarks_of(store: Store, record: SearchRecord, workdir: Path | None = None) -> list[str]:
    """The same, what the search has from earlier ones, and why its jobs wait.

    Args:
        store: its store.
        record: the search.
        workdir: the work folder whose embedded server may have its jobs; None: that is not asked for.
    """
    earlier = [str(one) for one in store.earlier_results(record.id)] if record.search.warm_start else []
    waiting: list[str] = []
    if workdir is not None and record.server == EMBEDDED and not record.state.is_over:
        from hpo_pilot.service.waiting_remarks import waiting_remarks  # noqa: PLC0415 - it brings an HTTP client

        waiting = waiting_remarks(workdir, open_tasks(store.engine, record.id))
    return earlier + nothing_to_stop(store, record) + waiting_at_the_server(store, record) + waiting
