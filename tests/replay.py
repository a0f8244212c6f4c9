"""Asking again: every recorded generation follows from its search, its cut of the history, and what was out."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.search import Generation, Point
from hpo_pilot.search.promotion import first_of_chain
from hpo_pilot.steering.proposer import Proposer
from hpo_pilot.store import SearchRecord, SteeringStore


class AtOnce:
    """An executor that works in the caller's thread."""

    def submit(self, work: Any, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except ExhaustedError as error:
            done.set_exception(error)
        return done


def replayed(store: SteeringStore, record: SearchRecord, generation: Generation) -> list[Point]:
    """What a new optimizer proposes that is told what this generation's was told."""
    assert generation.asked is not None
    budget = record.search.budget.model_copy(update={"trials": generation.budget})
    search = record.search.model_copy(update={"budget": budget})
    proposer = Proposer(search, AtOnce(), lambda: None, store.earlier_results(record.id))  # type: ignore[arg-type]
    trials = {trial.number: trial for trial in store.trials(record.id)}
    history = sorted((t for t in trials.values() if t.told is not None), key=lambda trial: trial.told or 0)
    for trial in history[: generation.history]:
        proposer.tell(trial, first_of_chain(trials, trial), trial.fold_seconds)
    proposer.start(generation.asked, [trials[number].point for number in generation.pending])
    return proposer.take()


def check_replay(workdir: Path, name: str) -> list[int]:
    """Replays every generation of a search that its optimizer was asked for; returns their numbers."""
    store = SteeringStore.open(f"sqlite:///{workdir / 'hpo-pilot.db'}")
    try:
        record = store.search(name)
        points = {trial.number: trial.point for trial in store.trials(record.id)}
        asked = [generation for generation in store.generations(record.id) if generation.asked is not None]
        for generation in asked:
            proposed = replayed(store, record, generation)
            # One task may not have carried all that were asked for.
            assert proposed[: len(generation.trials)] == [points[number] for number in generation.trials]
        return [generation.number for generation in asked]
    finally:
        store.close()
