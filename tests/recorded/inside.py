"""All that the recording takes from within the package: when modules move, this file follows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpo_pilot import SearchSpace, create_optimizer, open_search
from hpo_pilot.errors import InputError
from hpo_pilot.jobs import Member
from hpo_pilot.jobs.results import read_description
from hpo_pilot.search import Trial
from hpo_pilot.server.tokens import Role
from hpo_pilot.steering.ledger import Changes, Ledger, OpenTrial
from hpo_pilot.store import TaskRecord, TaskStage
from tests.bearer import make_token_folder, token
from tests.server_process import ServerProcess

__all__ = ["InputError", "LedgerHere", "SearchSpace", "create_optimizer", "embedded_server", "open_search"]


@contextmanager
def embedded_server(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """An embedded server with an empty database; its URL, and a token by role, all of them ada's."""
    tokens = {role: token("ada", Role(role)) for role in ("user", "pilot")}
    database, made = folder / "panda.db", make_token_folder(folder / "tokens")
    with ServerProcess(database=database, files=folder / "files", tokens=made, stderr=folder / "server.log") as server:
        yield server.url, tokens


class LedgerHere:
    """The ledger of a search, asked in plain values: what the server says goes in, what changes comes out."""

    UID = "cafecafe"

    def __init__(self, trials: Sequence[int], folds: int, needed: int, objectives: int) -> None:
        self._ledger = Ledger(uid=self.UID, folds=folds, needed=needed, told=0, objectives=objectives)
        for number in trials:
            self._ledger.add(OpenTrial(Trial(number, 1, {"x": number}, seed=7)))

    @staticmethod
    def _task(number: int, jobs: Sequence[Sequence[tuple[int, int]]]) -> TaskRecord:
        """`jobs`: what each runs, (trial, fold)."""
        members = tuple(tuple(Member(trial, fold, 7) for trial, fold in job) for job in jobs)
        made = datetime(2025, 1, 1, tzinfo=UTC)
        return TaskRecord(number, 1, number - 1, f"t{number}/", TaskStage.SUBMITTED, 900 + number, members, made)

    def look(
        self, task: int, jobs: Sequence[Sequence[tuple[int, int]]], said: Sequence[tuple[Any, Any]], now: float
    ) -> dict[str, Any]:
        """What a look at a task changes; `said`: job descriptions as the server gives them, each with its metadata."""
        reports = [read_description(description, metadata) for description, metadata in said]
        return self._shown(self._ledger.absorb(self._task(task, jobs), reports, now))

    def give_up(self, task: int, jobs: Sequence[Sequence[tuple[int, int]]], now: float) -> dict[str, Any]:
        return self._shown(self._ledger.give_up(self._task(task, jobs), "the task ended as finished", now))

    def missing(self, task: int, jobs: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
        return self._ledger.missing(self._task(task, jobs))

    @staticmethod
    def _shown(changes: Changes) -> dict[str, Any]:
        keys = ["trial", "fold", "attempt", "state", "panda_id", "error", "log_tail", "output", "node"]
        keys += ["seconds", "joules", "started", "ended"]
        outcomes = [
            [*(getattr(one, key) for key in keys), _shown(one.values), one.metrics, one.progress]
            for one in changes.attempts
        ]
        ends = [
            [end.number, end.state, _shown(end.values), _shown(end.stds), end.error, end.told, end.good_folds]
            for end in changes.ends
        ]
        again = [[member[:2] for member in job] for job in changes.again]
        shown = {"outcomes": outcomes, "ends": ends, "started": changes.started, "events": changes.events}
        return {
            key: value for key, value in {**shown, "again": again, "seconds": changes.spent.seconds}.items() if value
        }


def _shown(figures: Sequence[float]) -> Any:
    """The figure of one objective, a list for several, None for none."""
    return list(figures) if len(figures) > 1 else next(iter(figures), None)
