"""The searches as the pages see them: always as the store has them, and read once."""

from __future__ import annotations

import time

from sqlalchemy import event

from hpo_pilot.jobs import Member
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.store import NewTask, SearchState
from hpo_pilot.web.search_views import SearchCache
from tests.made import made_end


def generation(store, name: str, numbers: list[int], generation: int) -> int:
    record = store.search(name)
    trials = [Trial(n, 1, {"x": n / 1000, "kind": "a"}, seed=n) for n in numbers]
    jobs = tuple((Member(trial.number, 0, trial.seed),) for trial in trials)
    task = NewTask(f"user.me.{name}.{record.uid}.g{generation}/", generation, 0, jobs)
    store.add_generation(record.id, history=0, pending=[], trials=trials, task=task)
    return record.id


def test_a_view_is_what_the_store_has_after_every_step(pages):
    name, store = pages.submit("steps"), pages.store
    library = SearchCache(store)

    def same() -> None:
        view = library.view(name)
        assert list(view.trials) == store.trials(view.record.id, folds=False)
        assert view.record == store.search(name)
        assert library.with_folds(view) == store.trials(view.record.id)
        assert {state: n for state, n in view.counts.items() if n} == store.counts(view.record.id)

    same()
    number = generation(store, name, [1, 2], 1)
    same()
    now = time.time()
    store.record(number, [], [made_end(2, TrialState.FINISHED, 0.5, told=1, ended=now)])
    same()
    generation(store, name, [3], 2)
    same()
    ends = [made_end(1, TrialState.FAILED, error="broke", told=2, ended=now)]
    ends += [made_end(3, TrialState.FINISHED, 0.25, stds=(0.1,), told=3, ended=now)]
    store.record(number, [], ends)
    same()
    assert library.view(name).best.trial.number == 3
    store.set_state(number, SearchState.PAUSED, "alice")
    same()
    assert library.view(str(number)).record.name == name


def test_what_is_over_is_not_read_again(pages):
    name, store = pages.submit("quiet"), pages.store
    number = generation(store, name, list(range(1, 51)), 1)
    ends = [made_end(n, TrialState.FINISHED, float(n), told=n, ended=time.time()) for n in range(1, 50)]
    store.record(number, [], ends)
    library = SearchCache(store)
    library.view(name)
    rows = []

    @event.listens_for(store.engine, "after_cursor_execute")
    def count(_connection, _cursor, statement, *_rest) -> None:
        if "FROM trials" in statement:
            rows.append(statement)

    try:
        library.view(name)
        assert len(rows) == 1  # the pulse
        store.record(number, [], [made_end(50, TrialState.FAILED, error="x", told=50, ended=time.time())])
        rows.clear()
        assert library.view(name).counts[TrialState.FAILED] == 1
        assert all("count(" in statement or "number" in statement for statement in rows)
    finally:
        event.remove(store.engine, "after_cursor_execute", count)
