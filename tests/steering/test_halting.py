"""Early stopping against a workflow manager in memory: decided once, killed until it is over, never counted twice."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf
from statistics import fmean

import pytest

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.panda.workflow_manager import EAGER, UnknownTaskError
from hpo_pilot.search import EarlyStop, Trial, TrialState
from hpo_pilot.steering.early_stopping import TrialStopper
from hpo_pilot.steering.ledger import Changes, OpenTrial
from hpo_pilot.steering.proposer import Proposer
from hpo_pilot.steering.registration import payload_document
from hpo_pilot.store import SearchState
from hpo_pilot.store.progress import progress_of
from hpo_pilot.store.queries import spent
from hpo_pilot.store.steering_store import NumberedTrials
from tests.made import made_attempt, made_end, made_search
from tests.steering.memory_panda import AtOnce, Panda, go
from tests.steering.memory_slots import Training, replay

RUNNING, FINISHED, STOPPED = TrialState.RUNNING, TrialState.FINISHED, TrialState.STOPPED
ASHA = {"early_stopping": {"method": "asha", "eta": 2}}
#: Two trials; the second one is hopeless.
TWO = {"trials": 3, "parallel": 2}


def report(panda, steering, *values):
    """Jobs 1, 2, … of the first task report their values at step 1; None: that one does not."""
    for number, value in enumerate(values, start=1):
        if value is not None:
            panda.report(1, number, (1, value))
    go(steering, 2)


def hopeless(panda, steering, *, good=0.1, bad=0.9):
    """Both trials have come to step 1, where the second one is told to stop."""
    go(steering, 2)
    report(panda, steering, good, bad)


def told_to_stop(store):
    return [event.what for event in store.events(1) if "told to stop" in event.what]


def test_a_hopeless_trial_is_killed_and_its_slot_goes_on(steer, store, panda):
    steering = steer(ASHA, **TWO)
    hopeless(panda, steering)
    first, second = store.trials(1)
    assert (first.stop, second.state, second.told) == (None, RUNNING, None)
    assert (second.stop.step, second.stop.value, second.stop.projected) == (1, 0.9, None) and not second.stopped_early
    assert panda.killed_jobs == [102] and len(panda.tasks) == 1
    reason = "loss 0.9 is 2nd of 2 at step 1, where 1 goes on (asha)"
    assert told_to_stop(store) == [f"trial 2 is told to stop: {reason}"]
    panda.report(1, 2, (1, 0.9), (2, 0.8), state=JobState.CANCELLED)
    go(steering, 3)
    second = store.trials(1)[1]
    assert (second.state, second.told, second.value, second.error) == (STOPPED, 1, None, f"stopped early: {reason}")
    assert (second.stop.step, second.stop.value, second.stop.projected) == (2, 0.8, (0.8,)) and second.stopped_early
    assert len(panda.tasks) == 2 and panda.killed_jobs == [102]
    assert spent(store.engine, 1).seconds == 4.0
    assert steering._spent.trials == 3 and steering._spent.job_seconds == 4.0
    observed = steering._proposer._optimizer.history
    assert [(o.value, o.stopped) for o in observed] == [(0.8, True)]
    panda.finish(1, 1)
    panda.finish(2, 1)
    go(steering, 4)
    assert steering.state is SearchState.DONE
    assert [trial.state for trial in store.trials(1)] == [FINISHED, STOPPED, FINISHED]
    assert (now := progress_of(store.engine, 1)).best == 1 and now.best_value == 0.1


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_a_training_that_diverges_is_stopped_and_told_as_failed(steer, store, panda, goal):
    steering = steer({**ASHA, "objective": {"metric": "loss", "goal": goal}}, **TWO)
    hopeless(panda, steering, bad=inf)
    reason = "loss is not a finite number: 2nd of 2 at step 1, where 1 goes on (asha)"
    assert told_to_stop(store) == [f"trial 2 is told to stop: {reason}"]
    assert store.intermediate_values(1, [2]) == {2: {0: [(1, inf)]}}
    panda.report(1, 2, (1, inf), state=JobState.CANCELLED)
    go(steering, 3)
    second = store.trials(1)[1]
    assert (second.state, second.value, second.error) == (STOPPED, None, f"stopped early: {reason}")
    assert (second.stop.step, second.stop.value, second.stop.projected) == (1, None, None)
    assert [(o.value, o.stopped) for o in steering._proposer._optimizer.history] == [(None, False)]


def test_trials_that_report_nothing_are_not_compared(steer, store, panda):
    steering = steer(ASHA, trials=3, parallel=3)
    go(steering, 2)
    panda.finish(1, 1)
    panda.finish(1, 2)
    panda.report(1, 3, (1, 0.9))
    go(steering, 2)
    assert panda.killed_jobs == [] and store.trials(1)[2].state is RUNNING
    panda.finish(1, 3)
    go(steering, 2)
    assert steering.state is SearchState.DONE


def test_projections_are_stored_and_the_same_after_a_restart(steer, store, panda):
    steering = steer({**ASHA, "objective": {"metric": "auc", "goal": "maximize"}}, trials=6, parallel=3)
    go(steering, 2)
    report(panda, steering, 0.5, 0.3)
    assert panda.killed_jobs == [102]
    panda.report(1, 3, (1, 0.9))
    go(steering, 2)
    panda.finish(1, 3)  # 0.3 (auc)
    panda.finish(1, 1)  # 0.1: better than it at step 1, and worse at the end
    go(steering, 1)
    panda.report(1, 2, (1, 0.3), state=JobState.CANCELLED)
    go(steering, 3)
    # Of the finished ones 0.9 and 0.5 at step 1 come to 0.3 and 0.1; it was 0.2 below the worse one. Of two, all of
    # that counts.
    assert store.trials(1)[1].stop.projected == (pytest.approx(0.1 - 0.2),)
    again = steer()
    go(again, 1)
    told = [(o.point, o.values, o.stopped) for o in steering._proposer._optimizer.history]
    again._proposer._ask([], 1, [])
    assert [(o.point, o.values, o.stopped) for o in again._proposer._optimizer.history] == told != []


def test_a_full_result_counts_although_the_trial_was_told_to_stop(steer, store, panda):
    steering = steer(ASHA, **TWO)
    hopeless(panda, steering)
    panda.finish(1, 2)
    go(steering, 3)
    second = store.trials(1)[1]
    assert (second.state, second.value, second.told, second.stopped_early) == (FINISHED, 0.2, 1, False)
    assert told_to_stop(store)[1:] == ["trial 2 was told to stop and ended before: its full result counts"]
    assert [(o.value, o.stopped) for o in steering._proposer._optimizer.history] == [(0.2, False)]


@pytest.mark.parametrize("moment", ["before the kill", "after the kill", "after its effect"])
def test_a_restart_at_any_moment_loses_and_doubles_nothing(steer, store, panda, moment):
    steering = steer(ASHA, **TWO)
    if moment == "before the kill":
        panda.broken["kill_jobs"] = TryAgainError("away")
    hopeless(panda, steering)
    assert panda.killed_jobs == ([] if moment == "before the kill" else [102])
    panda.finish(1, 1)  # what else there is goes on, whether the server takes kills or not
    go(steering, 2)
    assert store.trials(1)[0].state is FINISHED
    panda.broken.clear()
    if moment == "after its effect":
        panda.report(1, 2, (1, 0.9), state=JobState.CANCELLED)
    again = steer()
    go(again, 2)
    assert panda.killed_jobs == {"before the kill": [102], "after the kill": [102, 102]}.get(moment, [102])
    panda.report(1, 2, (1, 0.9), state=JobState.CANCELLED)
    go(again, 3)
    again = steer()
    go(again, 3)
    assert len(told_to_stop(store)) == 1
    assert [trial.state for trial in store.trials(1)[:2]] == [FINISHED, STOPPED]
    assert [trial.told for trial in store.trials(1)[:2]] == [1, 2] and len(panda.tasks) == 2


@pytest.mark.parametrize("rule", [{"method": "asha", "min_steps": 2, "max_steps": 40}, {"method": "median"}])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_trial_is_judged_once_at_a_step_also_after_a_restart(steer, panda, rule, restarts):
    steering = steer({"early_stopping": {**rule, "warmup_trials": 2}}, trials=6, parallel=6)
    go(steering, 2)
    panda.report(1, 1, (20, 0.5))
    go(steering, 1)
    for job in range(2, 6):  # Each is better than those before it, which had come to this step already.
        panda.report(1, job, (20, 0.1 - job / 100))
        go(steering, 1)
    if restarts:
        steering = steer()
    panda.report(1, 1, (20, 0.5), (21, 0.4))
    go(steering, 2)
    assert panda.killed_jobs == []


@pytest.mark.parametrize("restarts", [False, True])
def test_where_a_trial_was_judged_depends_on_the_length_of_whole_trainings(steer, panda, restarts):
    """A rung near the end of a training saves nothing: a trial is judged at the one before."""
    rule = {"method": "asha", "min_steps": 27, "eta": 3, "warmup_trials": 2}
    steering = steer({"early_stopping": rule, "folds": 2}, trials=6, parallel=6)
    go(steering, 2)
    for job in (1, 2):  # both folds of the first trial
        panda.report(1, job, *((step, 0.6) for step in (27, 81, 100)))
        go(steering, 1)
        panda.finish(1, job)
        go(steering, 1)
    panda.report(1, 3, (27, 0.5), (81, 0.4), (85, 0.4))
    go(steering, 1)
    for job in (5, 7, 9, 11):
        panda.report(1, job, (27, 0.2 - job / 100))
        go(steering, 1)
    if restarts:
        steering = steer()
    panda.report(1, 3, (27, 0.5), (81, 0.4), (85, 0.4), (86, 0.4))
    go(steering, 2)
    assert panda.killed_jobs == []


def test_what_a_server_revives_is_killed_again_and_its_result_does_not_count(steer, store, panda, monkeypatch):
    monkeypatch.setattr(Panda, "policy", replace(EAGER, revives=True))
    steering = steer(ASHA, **TWO)
    hopeless(panda, steering)
    panda.report(1, 2, (1, 0.9), state=JobState.CANCELLED)
    go(steering, 2)
    assert store.trials(1)[1].state is STOPPED
    panda.report(1, 2, state=JobState.ACTIVATED, attempt=2)
    go(steering, 1)
    assert panda.killed_jobs == [102, 1102]
    steering = steer()  # and after a restart
    go(steering, 1)
    assert panda.killed_jobs == [102, 1102, 1102]
    panda.finish(1, 2)
    late = panda.reports[1].pop(102)
    panda.report(1, 2, (1, 0.9), state=JobState.CANCELLED)
    panda.reports[1][1102] = replace(late, panda_id=1102, attempt=2)
    for _ in range(2):
        go(steering, 2)
        assert [event.what for event in store.events(1) if "came after" in event.what] == [
            "job 1102: trial 2 fold 0: a result came after it was stopped; it does not count"
        ]
        second = store.trials(1)[1]
        assert (second.state, second.value, second.told) == (STOPPED, None, 1)
        assert spent(store.engine, 1).seconds == steering._spent.job_seconds == 6.0
    assert panda.killed == []
    panda.states[1] = TaskState.RUNNING
    panda.finish(1, 1)
    panda.states[1] = TaskState.RUNNING
    go(steering, 2)
    assert panda.killed == [1]  # or the server might revive it once more


def test_with_folds_all_of_them_are_killed(steer, store, panda):
    steering = steer({**ASHA, "folds": 2}, **TWO)
    go(steering, 2)
    report(panda, steering, 0.1, 0.3, 0.9, 0.7)
    assert told_to_stop(store) == ["trial 2 is told to stop: loss 0.8 is 2nd of 2 at step 1, where 1 goes on (asha)"]
    assert panda.killed_jobs == [103, 104]
    panda.report(1, 3, (1, 0.9), state=JobState.CANCELLED)
    go(steering, 2)
    assert store.trials(1)[1].state is RUNNING
    panda.finish(1, 4)  # one full result of two is not enough
    go(steering, 2)
    second = store.trials(1)[1]
    assert (second.state, second.value) == (STOPPED, None)
    assert [fold.value for fold in second.folds] == [None, pytest.approx(0.2)]
    assert second.stop.value == pytest.approx(0.8)


def test_a_lost_task_is_not_sent_out_again_for_a_trial_that_was_to_stop(steer, store, panda):
    steering = steer(ASHA, **TWO)
    hopeless(panda, steering)
    panda.broken["results", 1] = UnknownTaskError("gone")
    go(steering, 2)
    assert [trial.state for trial in store.trials(1)[:2]] == [RUNNING, STOPPED]
    assert [[m.trial for job in task.jobs for m in job] for task in panda.tasks.values()][1:] == [[1], [3]]


def test_a_trial_whose_payload_fails_is_failed_and_one_that_ends_with_its_search_is_neither(steer, store, panda):
    steering = steer(ASHA, trials=4, parallel=3)
    go(steering, 2)
    for number, value in enumerate((0.1, 0.8, 0.9), start=1):
        panda.report(1, number, (1, value))
        go(steering, 2)
    assert panda.killed_jobs == [102, 103]
    panda.finish(1, 2, failed="no memory")
    go(steering, 2)
    assert (store.trials(1)[1].state, store.trials(1)[1].error) == (TrialState.FAILED, "no memory")
    steering.advance(set(), SearchState.STOPPING)
    third = store.trials(1)[2]
    assert (third.state, third.told, third.stopped_early, third.counts) == (STOPPED, None, False, False)


def test_stopped_trials_are_no_failures(steer, store, panda):
    steering = steer(ASHA, trials=6, parallel=2, failures=1)
    hopeless(panda, steering)
    for task, number, value in ((1, 2, 0.9), (2, 1, 1.0), (3, 1, 1.1), (4, 1, 1.2)):
        panda.report(task, number, (1, value))
        go(steering, 2)
        panda.report(task, number, (1, value), state=JobState.CANCELLED)
        go(steering, 3)
    assert [trial.state for trial in store.trials(1)[1:5]] == [STOPPED] * 4
    assert steering.state is SearchState.RUNNING and len(panda.tasks) == 5
    assert {attempt.task_id for attempt in steering._ledger.attempts} <= set(steering._tasks.open), (
        "others are forgotten"
    )


def test_confirmation_runs_are_never_stopped(steer, store, panda):
    steering = steer({**ASHA, "confirm": {"top": 1, "repeats": 2}}, trials=2, parallel=2)
    go(steering, 2)
    report(panda, steering, 0.1, 0.1)
    panda.finish(1, 1)
    panda.finish(1, 2)
    go(steering, 4)
    assert [trial.confirms for trial in store.trials(1)] == [None, None, 1, 1]
    for number in (1, 2):
        panda.report(2, number, (1, 0.9))
    go(steering, 3)
    assert panda.killed_jobs == [] and not told_to_stop(store)
    assert [len(look) for look in store.values_by_look(1)] == [0, 2]


def test_no_trial_is_compared_with_confirmation_runs(store, panda, register):
    record = register(made_search(**ASHA))
    trials = NumberedTrials(store, record.id)
    trials.update({n: Trial(n, 1, {"x": n / 9}, confirms=1 if n > 3 else None) for n in range(1, 10)})
    halting = TrialStopper(record, store, panda, trials)
    values = {n: 0.05 if trial.confirms else 0.1 for n, trial in trials.items()}
    running = (made_attempt(1, n, 0, 1, JobState.RUNNING, progress=((1, value),)) for n, value in values.items())
    look = Changes(list(running))
    halting.judge(look, {n: OpenTrial(trial) for n, trial in trials.items()})
    assert not look.stops


def test_of_several_objectives_one_decides_and_the_others_are_guessed(store, panda, register):
    objectives = [{"metric": "loss"}, {"metric": "auc", "goal": "maximize"}]
    search = made_search(objective=objectives, early_stopping={"method": "asha", "eta": 2, "metric": "auc"})
    record = register(search)
    trials = NumberedTrials(store, record.id)
    trials.update({n: Trial(n, 1, {"x": n / 9}) for n in (1, 2, 3)})
    halting = TrialStopper(record, store, panda, trials)
    out = {n: OpenTrial(trial) for n, trial in trials.items()}
    values = ((1, 0.9), (2, 0.8), (3, 0.5))
    look = Changes([made_attempt(1, n, 0, 1, JobState.RUNNING, progress=((1, auc),)) for n, auc in values])
    halting.judge(look, out)
    assert list(look.stops) == [3] and look.stops[3].value == 0.5
    halting.decided(look, out)
    over = Changes(ends=[made_end(3, STOPPED, told=3, ended=0.0)])
    for number, figures in ((1, (2.0, 0.95)), (2, (4.0, 0.85))):
        trials[number] = replace(trials[number], state=FINISHED, values=figures)
        halting.told(trials[number])
        over.attempts.append(made_attempt(1, number, 0, 1, JobState.FINISHED, values=figures))
    halting.judge(over, {})
    # The first objective by its median; the second one below the worse of the two, by what it was below it at step 1.
    assert over.ends[0].stop.projected == (3.0, pytest.approx(0.85 - 0.3))
    assert payload_document(search, None)["progress_metric"] == "auc"


def test_of_several_objectives_a_trial_is_no_failure_where_nothing_can_be_guessed():
    """None had finished when it was stopped; one that diverged would have failed."""
    search = made_search(objective=[{"metric": "loss"}, {"metric": "auc"}])
    proposer = Proposer(search, AtOnce(), lambda: None)
    for number, value in ((1, 0.5), (2, None)):
        stop = EarlyStop(1, "worse", 3, value)
        proposer.tell(Trial(number, 1, {"x": number / 9}, STOPPED, told=number, stop=stop))
    proposer.start(1, [])
    proposer.take()
    told = proposer._optimizer.history
    assert [(one.values, one.stopped) for one in told] == [(None, True), (None, False)]


def test_without_a_rule_values_are_kept_and_nothing_is_stopped(steer, store, panda):
    steering = steer(**TWO)
    hopeless(panda, steering)
    assert panda.killed_jobs == [] and store.intermediate_values(1, [2]) == {2: {0: [(1, 0.9)]}}


# --- whole searches, with curves in memory ---


def folded_curves(count=24, steps=81):
    """Trials of three folds. Better ones learn more slowly, and fold 2 is the hardest to begin with.

    That is what early stopping has to bear with: at step 3 the best are in the middle, and with two slots the third
    fold of a trial begins when the others are nearly over.
    """
    dice = random.Random(81)
    trials = []
    for _ in range(count):
        quality = dice.random()  # 0: the best
        rate = 0.5 + 0.5 * quality + 0.2 * dice.random()
        folds = []
        for fold in range(3):
            final = 0.08 + 0.4 * quality + 0.002 * dice.gauss(0, 1)
            start = (1.0 + 0.5 * quality) * (1.6 if fold == 2 else 1.0) * (1 + 0.1 * dice.gauss(0, 1))
            end = steps**-rate
            curve = [final + (start - final) * (step**-rate - end) / (1 - end) for step in range(1, steps + 1)]
            folds.append(Training(curve, final, 80 * (1 + 0.2 * dice.random())))
        trials.append(folds)
    return trials


@pytest.mark.parametrize("slots", [1, 2, 3, 8])
@pytest.mark.parametrize("early", [{"method": "asha", "max_steps": 81}, {"method": "asha"}, {"method": "median"}])
def test_the_best_trial_is_found_with_folds_and_few_slots(slots, early):
    table = folded_curves()
    true = {number: fmean(fold.final for fold in folds) for number, folds in enumerate(table, start=1)}
    trials, used = replay(table, slots, early_stopping=early)
    finished = {trial.number: trial.value for trial in trials if trial.state is FINISHED}
    assert min(finished, key=finished.get) == min(true, key=true.get)
    assert all(value == pytest.approx(true[number]) for number, value in finished.items())
    assert used < 0.85 * sum(fold.seconds for folds in table for fold in folds)
    stopped = [trial for trial in trials if trial.stopped_early]
    assert len(finished) + len(stopped) == len(trials) and len(stopped) >= 5
    for trial in stopped:
        done = sum(fold.value is not None for fold in trial.folds)
        assert done < 2, f"trial {trial.number} was stopped with {done} of 3 folds whole: {trial.error}"
        assert [fold.value for fold in trial.folds if fold.value is not None] == [
            pytest.approx(table[trial.number - 1][fold.number].final) for fold in trial.folds if fold.value is not None
        ]
    if (slots, early) == (2, {"method": "asha", "max_steps": 81}):
        # What optimizers are told, projections of stopped trials beside values of finished ones, is in the true order.
        told = {**finished, **{trial.number: trial.stop.projected[0] for trial in stopped}}
        pairs = [(a, b) for a in told for b in told if true[a] < true[b] - 0.02]
        assert sum(told[a] < told[b] for a, b in pairs) > 0.85 * len(pairs)


def test_a_trial_with_as_many_whole_folds_as_it_needs_is_finished_with_these(steer, store, panda):
    """It is told to stop; two of its three folds come to their end before the kill does anything."""
    steering = steer({**ASHA, "folds": {"k": 3, "require": 2}}, **TWO)
    go(steering, 2)
    report(panda, steering, 0.1, 0.1, 0.1, 0.9, 0.9, 0.9)
    assert panda.killed_jobs == [104, 105, 106]
    panda.finish(1, 4)
    panda.finish(1, 5)
    panda.report(1, 6, (1, 0.9), state=JobState.CANCELLED)
    go(steering, 2)
    second = store.trials(1)[1]
    assert (second.state, second.value, second.error) == (FINISHED, pytest.approx(0.2), None)
    assert [fold.value for fold in second.folds] == [pytest.approx(0.2), pytest.approx(0.2), None]
    assert told_to_stop(store)[1:] == [
        "trial 2 was told to stop; 2 of 3 folds had ended before, which is enough: it is finished"
    ]
    assert [(o.value, o.stopped) for o in steering._proposer._optimizer.history] == [(pytest.approx(0.2), False)]


def test_a_stopped_trial_is_told_as_what_its_whole_folds_are_worth(steer, store, panda):
    """Two of three folds are over; the third one is killed before it has reported anything."""
    steering = steer({**ASHA, "folds": 3}, **TWO)
    go(steering, 2)
    report(panda, steering, 0.1, 0.1, None, 0.9, 0.9)
    assert panda.killed_jobs == [104, 105]
    panda.finish(1, 4)
    panda.finish(1, 5)
    panda.report(1, 6, state=JobState.CANCELLED)
    go(steering, 2)
    for again in (False, True):
        second = store.trials(1)[1]
        assert second.state is STOPPED and second.stop.projected == (pytest.approx(0.2),)
        assert [fold.value for fold in second.folds] == [pytest.approx(0.2), pytest.approx(0.2), None]
        if not again:
            go(steer(), 2)
