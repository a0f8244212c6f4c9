"""The ledger: results in any order, late, twice, lost or foreign, each with its one effect."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from hpo_pilot.jobs import JobReport, JobState, Member, RunReport
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.steering.ledger import MAX_RESUBMISSIONS, Ledger, OpenTrial
from hpo_pilot.store import TaskRecord, TaskStage
from tests.made import made_attempt, made_report, made_search

UID = "cafecafe"
TWO = [{"metric": "loss"}, {"metric": "size"}]


def task(jobs, *, number=1, generation=1, revision=0):
    """A task whose jobs run one member each, or several: [(trial, fold), [(trial, fold), …], …]."""
    listed = [job if isinstance(job, list) else [job] for job in jobs]
    jobs = tuple(tuple(Member(trial, fold, 1) for trial, fold in job) for job in listed)
    return TaskRecord(
        number, generation, revision, f"t{number}/", TaskStage.SUBMITTED, 900 + number, jobs, datetime.now(UTC)
    )


def finished(number, trial, fold, value, *, panda_id=None, uid=UID, attempt=1, message=""):
    verdict = made_report(uid, 1, trial, fold, number, attempt, value, message, seconds=2.0, started=10.0, ended=12.0)
    return JobReport(panda_id or 100 + number, JobState.FINISHED, attempt, number, (verdict,))


def other(number, state, *, panda_id=None, attempt=1, error=None):
    return JobReport(panda_id or 100 + number, state, attempt, number, error=error)


def ledger(*trials, folds=1, needed=None):
    made = Ledger(UID, made_search(folds={"k": folds, "require": needed}), told=0)
    for number in trials:
        made.add(OpenTrial(Trial(number, 1, {"x": number}, seed=1)))
    return made


def test_the_mean_and_spread_of_all_folds():
    book, t = ledger(1, folds=3), task([(1, 0), (1, 1), (1, 2)])
    assert not book.absorb(t, [finished(1, 1, 0, 1.0), finished(3, 1, 2, 3.0)], 50.0).ends
    assert book.missing(t) == [2]
    (end,) = book.absorb(t, [finished(2, 1, 1, 2.0)], 60.0).ends
    assert (end.state, end.value, end.std, end.told, end.good_folds) == (TrialState.FINISHED, 2.0, 1.0, 1, 3)
    assert not book.open


def test_the_end_of_the_log_is_kept_with_every_result():
    book, t = ledger(1), task([(1, 0)])
    report = finished(1, 1, 0, 1.0)
    report = replace(report, reports=(replace(report.reports[0], log_tail="epoch 1\n"),))
    (attempt,) = book.absorb(t, [report], 50.0).attempts
    assert (attempt.error, attempt.log_tail) == (None, "epoch 1\n")


def test_order_of_results_is_the_order_of_ends():
    book, t = ledger(1, 2, 3), task([(1, 0), (2, 0), (3, 0)])
    ends = book.absorb(t, [finished(2, 2, 0, 1.0)], 1.0).ends + book.absorb(t, [finished(1, 1, 0, 1.0)], 2.0).ends
    assert [(end.number, end.told) for end in ends] == [(2, 1), (1, 2)]


def test_the_same_report_twice_changes_nothing():
    book, t = ledger(1, 2), task([(1, 0), (2, 0)])
    reports = [finished(1, 1, 0, 1.0), other(2, JobState.RUNNING)]
    assert book.absorb(t, reports, 1.0)
    assert not book.absorb(t, reports, 2.0)


@pytest.mark.parametrize(
    ("needed", "reports", "value", "error"),
    [
        (1, [finished(1, 1, 0, 0.0)], 0.0, None),
        (1, [finished(1, 1, 0, -3.5)], -3.5, None),
        (1, [finished(1, 1, 0, 1e300)], 1e300, None),
        (1, [finished(1, 1, 0, None, message="loss is NaN")], None, "loss is NaN"),
        (1, [other(1, JobState.FINISHED)], None, "without a figure of merit"),
        (
            3,
            [finished(1, 1, 0, 1.0), finished(2, 1, 1, None, message="crash"), finished(3, 1, 2, 1.0)],
            None,
            "2 of 3 folds good, 3 required: fold 1: crash",
        ),
        (2, [finished(1, 1, 0, 1.0), finished(2, 1, 1, None), finished(3, 1, 2, 3.0)], 2.0, None),
    ],
    ids=["zero", "negative", "huge", "the payload failed", "no metadata", "too few good folds", "enough good folds"],
)
def test_how_a_trial_ends(needed, reports, value, error):
    folds = len(reports)
    book, t = ledger(1, folds=folds, needed=needed), task([(1, fold) for fold in range(folds)])
    (end,) = book.absorb(t, reports, 1.0).ends
    assert (end.state, end.value) == (TrialState.FAILED if error else TrialState.FINISHED, value)
    assert (error or "") in (end.error or "") and end.told == 1 and (folds > 1 or end.std is None)
    assert end.good_folds == sum(report.reports != () and report.reports[0].values != () for report in reports)


def test_a_lost_attempt_is_not_a_verdict():
    book, t = ledger(1), task([(1, 0)])
    changes = book.absorb(t, [other(1, JobState.FAILED, error="lost heartbeat")], 1.0)
    assert [outcome.state for outcome in changes.attempts] == [JobState.FAILED]
    assert not changes.ends
    retry = finished(1, 1, 0, 5.0, panda_id=200, attempt=2)
    (end,) = book.absorb(t, [other(1, JobState.FAILED, error="lost heartbeat"), retry], 2.0).ends
    assert end.value == 5.0


def test_a_pilot_that_says_the_first_attempt_of_every_one_takes_none_s_place():
    book, t = ledger(1, folds=2), task([(1, 0), (1, 1)])
    lost = JobReport(100, JobState.FAILED, 1, 1, error="node died", started=100.0, ended=130.0)
    assert book.absorb(t, [lost, other(1, JobState.RUNNING, panda_id=200, attempt=2)], 1.0).spent.seconds == 30.0
    verdict = finished(1, 1, 0, 5.0, panda_id=200, attempt=1)
    changes = book.absorb(t, [verdict], 2.0)
    assert [(o.attempt, o.panda_id, o.value) for o in changes.attempts] == [(2, 200, 5.0)]
    assert changes.spent.seconds == 2.0, "the time of the lost attempt stays on the bill"
    assert not book.absorb(t, [lost, verdict], 3.0)


def test_a_fold_that_was_given_up_does_not_go_out_again_after_a_restart():
    book, runs, attempts = ledger(1, folds=2), task([(1, 0)]), []
    for number in range(2, MAX_RESUBMISSIONS + 3):
        t = task([(1, 1)], number=number, revision=number - 1)
        attempts += book.give_up(t, "the task ended as failed", 2.0).attempts
    again = ledger(1, folds=2)
    again.restore(attempts)
    assert len(attempts) == 1 and again.orphans([runs]) == []
    (end,) = again.absorb(runs, [finished(1, 1, 0, 1.0)], 4.0).ends
    assert end.state is TrialState.FAILED and "lost 3 times" in (end.error or "")


def test_only_the_lost_fold_goes_out_again_and_not_for_ever():
    book, t = ledger(1, folds=2), task([(1, 0), (1, 1)])
    book.absorb(t, [finished(1, 1, 0, 1.0), other(2, JobState.FAILED, error="node died")], 1.0)
    for number in range(2, MAX_RESUBMISSIONS + 2):
        changes = book.give_up(t, "the task ended as finished", 2.0)
        assert changes.again == [((1, 1, 1),)]
        assert not changes.ends
        t = task([(1, 1)], number=number, revision=number - 1)
    changes = book.give_up(t, "the task ended as failed", 3.0)
    assert changes.again == []
    (end,) = changes.ends
    assert end.state is TrialState.FAILED
    assert "lost 3 times" in (end.error or "")


def test_a_late_result_after_a_resubmission_counts_once():
    book, first = ledger(1), task([(1, 0)])
    book.give_up(first, "the server no longer knows the task", 1.0)
    second = task([(1, 0)], number=2, revision=1)
    (end,) = book.absorb(first, [finished(1, 1, 0, 7.0)], 2.0).ends
    assert end.value == 7.0
    late = book.absorb(second, [finished(1, 1, 0, 8.0, panda_id=300)], 3.0)
    assert not late.ends
    assert not late.attempts


def test_a_second_verdict_on_a_fold_of_an_open_trial_is_logged():
    book, first = ledger(1, folds=2), task([(1, 0), (1, 1)])
    book.absorb(first, [finished(1, 1, 0, 1.0)], 1.0)
    changes = book.absorb(task([(1, 0)], number=2), [finished(1, 1, 0, 9.0, panda_id=300)], 2.0)
    assert not changes.attempts
    assert any("second result" in event for event in changes.events)


@pytest.mark.parametrize(
    "report",
    [
        finished(1, 1, 0, 1.0, uid="deadbeef"),
        finished(1, 2, 0, 1.0),
        finished(7, 1, 0, 1.0),
        JobReport(5, JobState.FINISHED, 1, None),
    ],
    ids=["another search", "another trial", "unknown number", "no number"],
)
def test_what_is_not_ours_is_ignored_and_logged_once(report):
    book, t = ledger(1), task([(1, 0)])
    changes = book.absorb(t, [report], 1.0)
    assert not changes.attempts
    assert len(changes.events) == 1
    assert not book.absorb(t, [report], 2.0)
    assert book.missing(t) == [1]


def test_a_confirmation_run_has_no_place_in_the_history():
    book = ledger()
    book.add(OpenTrial(Trial(9, 1, {"x": 1}, seed=1, confirms=3)))
    (end,) = book.absorb(task([(9, 0)]), [finished(1, 9, 0, 1.0)], 1.0).ends
    assert end.told is None
    assert book.told == 0


def test_folds_that_no_task_holds_are_found():
    book, t = ledger(1, 2, folds=2), task([(1, 0), (1, 1), (2, 0)])
    book.absorb(t, [finished(1, 1, 0, 1.0)], 1.0)
    assert book.orphans([t]) == [(2, 1, 1)]
    assert book.orphans([]) == [(1, 1, 1), (2, 0, 1), (2, 1, 1)]


def test_a_trial_whose_folds_had_all_spoken_is_ended_when_it_is_loaded():
    book, t = ledger(1), task([(1, 0)])
    outcomes = book.absorb(t, [finished(1, 1, 0, 4.0)], 1.0).attempts
    again = ledger(1)
    again.restore(outcomes)
    (end,) = again.settle(2.0).ends
    assert end.value == 4.0


def test_a_restored_ledger_goes_on_where_the_store_was():
    book, t = ledger(1, folds=2), task([(1, 0), (1, 1)])
    outcomes = book.absorb(t, [finished(1, 1, 0, 1.0), other(2, JobState.FAILED, error="lost")], 1.0).attempts
    again = ledger(1, folds=2)
    again.restore(outcomes)
    assert again.missing(t) == [2]
    (end,) = again.absorb(t, [finished(2, 1, 1, 3.0, panda_id=200, attempt=2)], 2.0).ends
    assert end.value == 2.0


# --- jobs that run several points ---


def several(number, said, *, panda_id=None, attempt=1, ended=None):
    """A finished job's report: (trial, fold) -> a value, a text that says why it was not run, or a whole verdict."""
    verdicts = []
    for (trial, fold), what in said.items():
        if isinstance(what, str):
            verdicts.append(made_report(UID, 1, trial, fold, number, attempt, None, what, was_run=False))
        elif isinstance(what, RunReport):
            verdicts.append(what)
        else:
            verdicts.append(made_report(UID, 1, trial, fold, number, attempt, what, "", seconds=2.0, started=10.0))
    return JobReport(panda_id or 100 + number, JobState.FINISHED, attempt, number, tuple(verdicts), ended=ended)


def test_every_member_of_a_job_has_its_own_verdict():
    book, t = ledger(1, 2, 3), task([[(1, 0), (2, 0)], [(3, 0)]])
    assert book.missing(t) == [1, 2]
    changes = book.absorb(t, [several(1, {(1, 0): 0.5, (2, 0): None}), finished(2, 3, 0, 0.1)], 5.0)
    assert [(end.number, end.value) for end in changes.ends] == [(1, 0.5), (2, None), (3, 0.1)]
    assert changes.spent.seconds == 6.0
    assert not changes.again


def test_what_a_job_has_not_run_goes_out_at_once_and_by_as_many_as_it_ran():
    book = ledger(1, 2, 3, 4, 5, 6)
    t = task([[(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)], [(6, 0)]])
    said = {(1, 0): 0.1, (2, 0): 0.2, (3, 0): "time is over", (4, 0): "time is over", (5, 0): "time is over"}
    changes = book.absorb(t, [several(1, said)], 5.0)
    assert [[member.trial for member in job] for job in changes.again] == [[3, 4], [5]]
    assert [end.number for end in changes.ends] == [1, 2]
    assert any("ran 2 of its 5 points, then time is over" in event for event in changes.events)
    assert book.missing(t) == [2], "another task has them now"
    assert not book.absorb(t, [several(1, said)], 6.0)
    assert [job[0].trial for job in book.give_up(t, "the task ended", 7.0).again] == [6]


def test_what_is_not_run_counts_as_no_loss_however_often():
    book, t = ledger(*range(1, 9)), task([[(n, 0) for n in range(1, 9)]])
    for number in range(1, 8):
        left = range(number, 9)
        said = {(n, 0): (0.5 if n == number else "time is over") for n in left}
        changes = book.absorb(t, [several(1, said, panda_id=number)], 5.0)
        assert [end.number for end in changes.ends] == [number]
        assert sum(len(job) for job in changes.again) == 8 - number
        t = task([[(n, 0) for n in range(number + 1, 9)]], number=number + 1, revision=number)
    assert book.open[8].lost == {}


def test_a_job_that_ran_none_of_its_points_has_lost_them():
    book, t = ledger(1, 2), task([[(1, 0), (2, 0)]])
    for number in range(2, MAX_RESUBMISSIONS + 3):
        changes = book.absorb(t, [several(1, {(1, 0): "no time", (2, 0): "no time"}, panda_id=number)], 5.0)
        assert not changes.again and not changes.ends and book.missing(t) == [1]
        changes = book.give_up(t, "the task ended as done", 6.0)
        t = task([[(1, 0), (2, 0)]], number=number)
    assert [end.state for end in changes.ends] == [TrialState.FAILED] * 2
    assert "no time" in (changes.ends[0].error or "")


def test_a_lost_job_goes_out_again_as_it_was_without_what_has_spoken():
    book, t = ledger(1, 2, 3, folds=2), task([[(1, 0), (2, 0), (3, 0)], [(1, 1), (2, 1), (3, 1)]])
    book.absorb(t, [several(1, {(1, 0): 0.1, (2, 0): 0.2, (3, 0): 0.3})], 5.0)
    lost = JobReport(102, JobState.FAILED, 1, 2, error="node died", started=100.0, ended=130.0)
    changes = book.absorb(t, [lost], 6.0)
    assert [outcome.seconds for outcome in changes.attempts] == [10.0] * 3, "its time is counted once"
    assert changes.spent.seconds == 30.0
    (again,) = book.give_up(t, "the task ended as finished", 7.0).again
    assert [member[:2] for member in again] == [(1, 1), (2, 1), (3, 1)]


def test_verdicts_of_the_attempt_before_take_their_own_time_from_it():
    book, t = ledger(1, 2), task([[(1, 0), (2, 0)]])
    lost = JobReport(100, JobState.FAILED, 1, 1, error="node died", started=100.0, ended=130.0)
    assert book.absorb(t, [lost], 5.0).spent.seconds == 30.0
    kept = made_report(UID, 1, 1, 0, 1, 2, 0.5, "", ran_in=1, seconds=20.0)
    changes = book.absorb(t, [lost, several(1, {(1, 0): kept, (2, 0): 0.7}, panda_id=200, attempt=2)], 6.0)
    assert [(end.number, end.value) for end in changes.ends] == [(1, 0.5), (2, 0.7)]
    assert changes.spent.seconds == 20.0 - 15.0 + 2.0


def test_progress_is_that_of_the_member_that_runs():
    book, t = ledger(1, 2, 3), task([[(1, 0), (2, 0), (3, 0)]])
    report = JobReport(101, JobState.RUNNING, 1, 1, started=10.0, running=(2, 0), progress=((7, 0.25),))
    changes = book.absorb(t, [report], 50.0)
    assert {o.trial: (o.started, o.progress) for o in changes.attempts} == {
        1: (10.0, ()),
        2: (50.0, ((7, 0.25),)),
        3: (None, ()),
    }
    assert changes.started == [(1, 10.0), (2, 50.0)]
    assert not book.absorb(t, [report], 60.0)
    other_job = JobReport(101, JobState.RUNNING, 1, 1, started=10.0, running=(9, 0), progress=((8, 0.5),))
    assert {o.trial for o in book.absorb(t, [other_job], 60.0).attempts if o.progress} == {1}


def test_a_trial_starts_when_its_runner_says_however_rough_the_server_is():
    book, t = ledger(1, folds=2), task([(1, 0), (1, 1)])
    running = [JobReport(100 + n, JobState.RUNNING, 1, n, started=9.0) for n in (1, 2)]
    assert book.absorb(t, running, 50.0).started == [(1, 9.0)]
    said = [finished(n, 1, n - 1, 0.5) for n in (1, 2)]
    said[1] = replace(said[1], reports=(replace(said[1].reports[0], started=9.75),))
    assert book.absorb(t, said[:1], 60.0).started == []
    assert book.absorb(t, said, 70.0).started == [(1, 9.75)]


def test_one_foreign_verdict_spoils_a_report():
    book, t = ledger(1, 2), task([[(1, 0), (2, 0)]])
    foreign = made_report("deadbeef", 1, 2, 0, 1, 1, 0.5, "")
    changes = book.absorb(t, [several(1, {(1, 0): 0.1, (2, 0): foreign})], 5.0)
    assert not changes.attempts and len(changes.events) == 1 and book.missing(t) == [1]


def test_a_member_that_a_finished_job_does_not_mention_has_failed():
    book, t = ledger(1, 2), task([[(1, 0), (2, 0)]])
    changes = book.absorb(t, [several(1, {(1, 0): 0.1})], 5.0)
    assert [(end.number, end.value) for end in changes.ends] == [(1, 0.1), (2, None)]


def test_a_restored_ledger_knows_what_was_not_run():
    book, t = ledger(1, 2, 3), task([[(1, 0), (2, 0)], [(3, 0)]])
    outcomes = book.absorb(t, [several(1, {(1, 0): 0.1, (2, 0): "time is over"})], 5.0).attempts
    second = task([[(2, 0)]], number=2, revision=1)
    waiting = [made_attempt(2, 2, 0, 1, JobState.DEFINED), made_attempt(1, 3, 0, 1, JobState.DEFINED)]
    again = ledger(2, 3)
    again.restore([outcome for outcome in outcomes if outcome.trial == 2] + waiting)
    assert (again.missing(t), again.missing(second)) == ([2], [1])
    assert again.open[2].lost[0] == 0 and not again.orphans([t, second])
    assert again.orphans([t]) == [(2, 0, 1)]
    (end,) = again.absorb(second, [finished(1, 2, 0, 4.0)], 6.0).ends
    assert (end.number, end.value) == (2, 4.0)
    late = again.absorb(t, [several(1, {(1, 0): 0.1, (2, 0): 9.0}, panda_id=999)], 7.0)
    assert not late.attempts


def test_outputs_are_in_the_members_folder_of_the_jobs_archive():
    book, t = ledger(1, 2), task([[(1, 0), (2, 0)]])
    said = {(n, 0): made_report(UID, 1, n, 0, 1, 1, 0.5, "", has_outputs=True, folder=f"t{n}f0") for n in (1, 2)}
    outputs = [outcome.output for outcome in book.absorb(t, [several(1, said)], 5.0).attempts]
    assert outputs == [f"t1.901._000001.outputs.tar.gz/t{n}f0" for n in (1, 2)]


def test_a_remark_on_good_results_is_logged_once():
    book, t = ledger(1, 2), task([(1, 0), (2, 0)])
    remark = "declared outputs not found: model.npz"
    reports = [finished(n, n, 0, 0.5, message=remark) for n in (1, 2)]
    changes = book.absorb(t, reports, 1.0)
    assert changes.events == [f"trial 1 fold 0: {remark}"]


def finished_with(number, trial, fold, *values):
    verdict = made_report(UID, 1, trial, fold, number, 1, values[0], "", values=values, seconds=2.0)
    return JobReport(100 + number, JobState.FINISHED, 1, number, (verdict,))


def test_each_of_several_objectives_has_its_mean_and_spread():
    book = Ledger(UID, made_search(objective=TWO, folds=2), told=0)
    book.add(OpenTrial(Trial(1, 1, {"x": 1}, seed=1)))
    t = task([(1, 0), (1, 1)])
    changes = book.absorb(t, [finished_with(1, 1, 0, 1.0, 10.0), finished_with(2, 1, 1, 3.0, 14.0)], 5.0)
    (end,) = changes.ends
    assert (end.value, end.values) == (2.0, (2.0, 12.0))
    assert end.stds == pytest.approx((2**0.5, 8**0.5))
    assert end.std == end.stds[0]
    assert [outcome.values for outcome in changes.attempts] == [(1.0, 10.0), (3.0, 14.0)]


def test_a_figure_too_few_is_a_failure():
    book = Ledger(UID, made_search(objective=TWO), told=0)
    book.add(OpenTrial(Trial(1, 1, {"x": 1}, seed=1)))
    (end,) = book.absorb(task([(1, 0)]), [finished(1, 1, 0, 1.0)], 5.0).ends
    assert (end.state, end.values) == (TrialState.FAILED, ())
    assert end.error == "1 of 2 figures of merit came back from the payload runner"
