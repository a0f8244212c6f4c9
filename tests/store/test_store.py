"""The store: what goes in comes out, each method is one transaction, states move only where they may."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from sqlalchemy import text

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobState, Member
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.search.progress import SearchProgress
from hpo_pilot.store import Annotation, NewTask, SearchState, TaskStage
from hpo_pilot.store.annotations import search_annotations, trial_annotations
from hpo_pilot.store.database import reading
from hpo_pilot.store.progress import all_progress, progress_of, stored_progress
from hpo_pilot.store.queries import search_heads, spent
from hpo_pilot.store.store import KnownTrials
from tests.made import made_attempt, made_end


@pytest.fixture
def record(store, search):
    return store.create_search(search, source="demo.yaml", sandbox="/s", owner="me")


def add_generation(store, record, points, generation=1, first=1):
    trials = [Trial(n, 1, point, seed=n * 10) for n, point in enumerate(points, start=first)]
    jobs = tuple((Member(t.number, fold, t.seed),) for t in trials for fold in range(2))
    task = NewTask(f"user.me.demo.{record.uid}.g{generation}/", generation, 0, jobs)
    return store.add_generation(record.id, history=first - 1, pending=[], trials=trials, task=task)


POINTS = [{"x": 0.25, "kind": 1}, {"x": 0.5, "kind": True}]


def test_a_search_comes_back_as_it_was(store, record, search):
    again = store.search("demo")
    assert again == record == store.search(record.id) == store.search(str(record.id))
    assert again.search == search
    assert again.state is SearchState.SUBMITTED
    assert len(again.uid) == 8
    choices = again.search.space.dimensions["kind"].choices
    assert [type(choice) for choice in choices] == [int, bool, str]


def test_notes_and_tags_come_back_and_show_in_the_heads(store, record):
    (head,) = search_heads(store.engine)
    assert head.annotation == Annotation()
    store.annotate(record.id, 0, "me", note="why", tags=["a", "b"])
    store.annotate(record.id, 3, "you", tags=["c"])
    store.annotate(record.id, 0, "me", note=None, tags=["a"])
    store.annotate(record.id, 0, "me", note="why", tags=["a"])  # changes nothing
    assert search_annotations(store.engine, [record.id]) == {record.id: Annotation("why", ("a",))}
    assert trial_annotations(store.engine, record.id) == {3: Annotation("", ("c",))}
    (again,) = search_heads(store.engine)
    assert again.annotation == Annotation("why", ("a",))
    assert [event.what for event in store.events(record.id)][1:] == [
        "note: why; tags: a, b",
        "trial 3: tags: c",
        "tags: a",
    ]


def test_names_are_one_search_s_and_an_unknown_one_names_those_that_are(store, search):
    with pytest.raises(InputError, match="the store is empty"):
        store.search("nope")
    store.create_search(search, source="demo.yaml", sandbox="/s", owner="me")
    with pytest.raises(InputError, match=r"there is demo$"):
        store.search("nope")
    with pytest.raises(InputError, match=r"did you mean demo\?"):
        store.search("dmeo")
    other = search.model_copy(update={"name": "other"})
    with pytest.raises(InputError, match="the same random identity"):
        store.create_search(other, source="", sandbox=None, owner="me", uid=store.search("demo").uid)
    assert store.find_search("other") is None
    with pytest.raises(InputError, match="already has a search 'demo'"):
        store.create_search(search, source="demo.yaml", sandbox="/s", owner="me")


def test_a_generation_is_an_intent_first(store, record):
    task = add_generation(store, record, POINTS)
    assert task.stage is TaskStage.INTENT
    assert task.jobs == (((1, 0, 10),), ((1, 1, 10),), ((2, 0, 20),), ((2, 1, 20),))
    assert store.open_tasks(record.id) == [task]
    store.task_submitted(task.id, 77)
    (submitted,) = store.open_tasks(record.id)
    assert (submitted.stage, submitted.jedi_task_id) == (TaskStage.SUBMITTED, 77)
    (generation,) = store.generations(record.id)
    assert (generation.number, generation.history, generation.trials) == (1, 0, (1, 2))
    points = [trial.point for trial in store.trials(record.id)]
    assert points == POINTS and [type(point["kind"]) for point in points] == [int, bool]


def test_results_are_recorded_with_their_trials(store, record):
    task = add_generation(store, record, POINTS)
    reported = ((1, 0.9), (2, inf), (3, 0.7))
    outcomes = [
        made_attempt(task.id, 1, 0, 1, JobState.FAILED, panda_id=5, error="lost"),
        made_attempt(task.id, 1, 0, 2, JobState.FINISHED, panda_id=6, value=0.5, seconds=2.0, progress=reported),
        made_attempt(task.id, 1, 1, 1, JobState.FINISHED, panda_id=7, value=0.7, seconds=3.0, output="out.tgz"),
    ]
    end = made_end(1, TrialState.FINISHED, 0.6, stds=(0.1414,), told=1, ended=100.0)
    store.record(record.id, started=[(1, 90.0)])
    store.record(record.id, outcomes, [end], started=[(1, 90.5)], events=["hello"])
    first, second = store.trials(record.id)
    assert first.started is not None and first.started.timestamp() == 90.5
    assert (first.state, first.value, first.told) == (TrialState.FINISHED, 0.6, 1)
    assert [(fold.value, fold.attempt) for fold in first.folds] == [(0.5, 2), (0.7, 1)]
    assert second.state is TrialState.PENDING
    assert spent(store.engine, record.id).seconds == 5.0
    assert store.outputs(record.id, 1) == {1: "out.tgz"}
    assert store.intermediate_values(record.id, [1, 2]) == {1: {0: [*reported]}}
    assert progress_of(store.engine, record.id).counts == {TrialState.FINISHED: 1, TrialState.PENDING: 1}
    assert "hello" in [event.what for event in store.events(record.id)]
    assert {o.trial for o in store.open_attempts(record.id)} == {2}


def test_results_without_folds_have_the_number_of_good_ones(store, record):
    task = add_generation(store, record, [{"x": 0.5, "kind": 1}, {"x": 0.25, "kind": 1}])
    good = [
        made_attempt(task.id, 1, fold, attempt, JobState.FINISHED, 0.5) for fold, attempt in [(0, 1), (1, 1), (1, 2)]
    ]
    other = made_attempt(task.id, 2, 0, 1, JobState.FINISHED, 0.5)
    ends = [made_end(1, TrialState.FINISHED, 0.5, told=1, stds=(0.0,)), made_end(2, TrialState.FAILED, told=2)]
    store.record(record.id, [*good, other], ends)
    (results,) = store.results(record.id, [1, 2])
    assert [(trial.number, trial.good, trial.folds) for trial in results] == [(1, 2, ()), (2, None, ())]
    assert results[0] == replace(store.trials(record.id)[0].without_folds, promoted=None)
    (bare,) = store.results(record.id, [1, 2], points=False)
    assert bare == [replace(trial, point={}, good=None) for trial in results]
    assert [trial.folds for page in store.results(record.id, [1], folds=True) for trial in page] == [
        store.trials(record.id)[0].folds
    ]
    assert list(store.brief_results(record.id, 2)) == [(results[0].point, (0.5,)), (results[1].point, ())]
    assert list(store.brief_results(record.id, 1)) == [(results[0].point, (0.5,))]


def test_trials_are_found_by_point_and_number(store, record):
    add_generation(store, record, [{"x": 0.5, "kind": kind} for kind in (1, True, "1")])
    with reading(store.engine) as connection:
        known = KnownTrials(connection, record.id)
        assert [trial.number for trial in known.at([{"x": 0.5, "kind": True}, {"x": 0.5, "kind": "1"}])] == [2, 3]
        assert [trial.number for trial in known.numbered([3, 9])] == [3]
        assert (len(known), known.at([]), known.failed()) == (3, [], [])


def test_a_row_of_progress_is_computed_where_the_writer_gave_none(store, record):
    assert stored_progress(store.engine, record.id) == SearchProgress()
    add_generation(store, record, POINTS)
    assert stored_progress(store.engine, record.id) is None
    assert all_progress(store.engine, [record.id, 99]) == {record.id: stored_progress(store.engine, record.id)}
    assert progress_of(store.engine, record.id).pending == 2
    given = replace(progress_of(store.engine, record.id), finished=1, pending=1)
    end = made_end(1, TrialState.FINISHED, 0.6, told=1, ended=100.0)
    store.record(record.id, (), [end], progress=given)
    assert stored_progress(store.engine, record.id) == given
    store.record(record.id, events=["no trial changes"])
    assert stored_progress(store.engine, record.id) == given


def test_no_place_in_the_order_of_results_is_given_twice(store, record):
    add_generation(store, record, POINTS)
    store.record(record.id, [], [made_end(1, TrialState.FINISHED, 0.1, told=1, ended=1.0)])
    with pytest.raises(Exception, match=r"(?i)unique"):
        store.record(record.id, [], [made_end(2, TrialState.FINISHED, 0.1, told=1, ended=1.0)], events=["never seen"])
    assert store.trials(record.id)[1].state is TrialState.PENDING
    assert "never seen" not in [event.what for event in store.events(record.id)]


def test_states_change_only_from_those_named(store, record):
    assert store.set_state(record.id, SearchState.RUNNING, "service", only_from=[SearchState.SUBMITTED])
    assert store.search(record.id).started is not None
    assert not store.set_state(record.id, SearchState.PAUSED, "me", only_from=[SearchState.SUBMITTED])
    assert store.search_states()[record.id][:2] == (SearchState.RUNNING, 1)
    store.set_state(record.id, SearchState.DONE, "service")
    assert store.search(record.id).ended is not None
    assert store.search_states() == {}
    assert not store.reopen(record.id, "me", "no", only_from=[SearchState.PAUSED])
    assert store.reopen(record.id, "me", "resumed", only_from=[SearchState.DONE])
    assert store.search(record.id).ended is None
    assert store.search_states()[record.id][:2] == (SearchState.RUNNING, 2)
    assert [event.what for event in store.events(record.id)] == ["submitted", "running", "done", "resumed"]


def test_reopening_forgives_the_failures_so_far(store, record):
    add_generation(store, record, POINTS)
    store.record(record.id, [], [made_end(2, TrialState.FAILED, error="broken", told=1, ended=1.0)])
    store.reopen(record.id, "me", "resumed", only_from=[SearchState.SUBMITTED])
    assert store.search(record.id).forgiven == 1


def test_a_changed_definition_has_a_new_version_and_lets_a_search_go_on(store, record, search):
    larger = search.model_copy(update={"budget": search.budget.model_copy(update={"trials": 9})})
    store.set_state(record.id, SearchState.DONE, "service")
    now = store.redefine(record.id, lambda _: (larger, "extended"), "me")
    assert (now.search.budget.trials, now.filed.budget.trials) == (9, 4)
    assert (now.state, now.version) == (SearchState.RUNNING, 2)
    assert not store.set_state(record.id, SearchState.DONE, "service", version=1)


def test_the_time_that_a_search_lay_ended_is_not_counted(store, record):
    store.set_state(record.id, SearchState.RUNNING, "service")
    store.set_state(record.id, SearchState.STOPPED, "me")
    with store.engine.begin() as connection:
        connection.execute(
            text("UPDATE searches SET started = started - 1000, clock = clock - 1000, ended = ended - 900")
        )
    store.reopen(record.id, "me", "resumed", only_from=[SearchState.STOPPED])
    now = store.search(record.id)
    assert (now.clock - now.started).total_seconds() == pytest.approx(900, abs=5)


def test_stopping_ends_whatever_is_not_over(store, record):
    add_generation(store, record, POINTS)
    store.record(record.id, [], [made_end(1, TrialState.FINISHED, 0.1, told=1, ended=1.0)])
    store.record(record.id, stop_rest="stopped on request")
    assert [trial.state for trial in store.trials(record.id)] == [TrialState.FINISHED, TrialState.STOPPED]


def test_jobs_of_several_members_come_back_as_they_were(store, record):
    trials = [Trial(1, 1, POINTS[0], seed=10), Trial(2, 1, POINTS[1], seed=20)]
    jobs = tuple(tuple(Member(trial.number, fold, trial.seed) for trial in trials) for fold in range(2))
    new = NewTask("t/", 1, 0, jobs)
    task = store.add_generation(record.id, history=0, pending=[], trials=trials, task=new)
    assert task.jobs == jobs and store.open_tasks(record.id)[0].jobs == jobs
    assert {(outcome.trial, outcome.fold) for outcome in store.open_attempts(record.id)} == {
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    }


def test_a_payloads_own_metadata_is_kept_with_its_fold(store, record):
    task = add_generation(store, record, POINTS)
    outcome = made_attempt(task.id, 1, 0, 1, JobState.FINISHED, value=0.5, metadata={"layers": [1, 2], "é": None})
    store.record(record.id, [outcome])
    assert store.trials(record.id)[0].folds[0].result.metadata == {"layers": [1, 2], "é": None}
    assert store.trials(record.id)[0].folds[1].result.metadata is None


def test_a_turn_that_never_came_is_no_attempt(store, record):
    first = add_generation(store, record, POINTS)
    again = NewTask("again/", 1, 1, ((Member(1, 0, 10),), (Member(2, 0, 20),)))
    outcomes = [
        made_attempt(first.id, 1, 0, 1, JobState.NOT_RUN, error="no time"),
        made_attempt(first.id, 2, 0, 1, JobState.NOT_RUN, error="cut short", seconds=4.0),
    ]
    second = store.record(record.id, outcomes, resubmit=again)
    assert {o.trial: o.state for o in store.open_attempts(record.id) if o.task_id == first.id and o.fold == 0} == {
        1: JobState.NOT_RUN,
        2: JobState.NOT_RUN,
    }
    store.record(
        record.id, [made_attempt(second.id, n, 0, 1, JobState.FINISHED, value=0.5, seconds=1.0) for n in (1, 2)]
    )
    assert [trial.folds[0].attempt for trial in store.trials(record.id)] == [1, 2]
    assert spent(store.engine, record.id).seconds == 6.0


def test_figures_of_several_objectives_are_kept(store, record):
    task = add_generation(store, record, POINTS)
    attempt = made_attempt(task.id, 1, 0, 1, JobState.FINISHED, values=(0.5, 7.0))
    end = made_end(1, TrialState.FINISHED, told=1, values=(0.5, 7.0), stds=(0.1, 0.2))
    store.record(record.id, [attempt], [end])
    trial = store.trials(record.id)[0]
    assert (trial.values, trial.stds, trial.folds[0].values) == ((0.5, 7.0), (0.1, 0.2), (0.5, 7.0))
