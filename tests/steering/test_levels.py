"""Trials that are promoted from level to level: each level once, whatever is killed or lost."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from concurrent.futures import Future

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import TaskState
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.level_results import LevelResults
from hpo_pilot.search import SearchSpace, Trial, TrialState, point_key
from hpo_pilot.search.promotion import first_of_chain
from hpo_pilot.steering.changes import add_point, extend, retry
from hpo_pilot.steering.proposer import Proposer
from hpo_pilot.store import SearchState
from hpo_pilot.store.invariants import check
from hpo_pilot.store.progress import progress_of
from hpo_pilot.store.queries import last_spans, levels_trained
from hpo_pilot.store.trial_queries import level_counts
from tests.made import made_search
from tests.steering.memory_panda import AtOnce, finish_all, go

EPOCHS = {"fidelity": {"epochs": {"low": 1, "high": 9, "eta": 3}}}


def check_levels(trials):
    """Every point has each level at most once, in ascending order, with one seed."""
    by_number = {trial.number: trial for trial in trials}
    assert max(Counter(t.continues for t in trials if t.continues and not t.ended_with_search).values(), default=0) <= 1
    levels = [(point_key(t.point), t.level) for t in trials if t.trains_point and not t.retries]
    assert len(set(levels)) == len(levels)
    for trial in trials:
        if trial.continues is None:
            assert trial.level == 1 or trial.confirms
        else:
            before = by_number[trial.continues]
            assert (trial.point, trial.seed, trial.level) == (before.point, before.seed, 3 * before.level)
            assert before.state is TrialState.FINISHED


@pytest.mark.parametrize("restarts", [False, True])
def test_the_best_go_on_and_one_comes_to_the_end(steer, store, panda, restarts):
    document = {**EPOCHS, "optimizer": "bayesian", "confirm": {"top": 2, "repeats": 1}}
    steering = steer(document, trials=9, parallel=3)
    for _ in range(12):
        finish_all(steering, panda, rounds=1)
        steering = steer() if restarts else steering
    finish_all(steering, panda)
    trials = store.trials(1)
    assert store.search(1).state is SearchState.DONE
    check_levels(trials)
    levels = Counter(trial.level for trial in trials if trial.confirms is None)
    assert levels[1] == 9 and 3 <= levels[3] <= 4 and 1 <= levels[9] <= 2
    confirmed = [trial for trial in trials if trial.confirms]
    assert {trial.level for trial in confirmed} == {9} and len(confirmed) == levels[9]
    assert levels_trained(store.engine, 1) == 9 + 2 * levels[3] + 6 * levels[9]
    assert {span.levels for span in last_spans(store.engine, 1, 99)} == {1.0, 2.0, 6.0, 9.0}
    progress = progress_of(store.engine, 1)
    assert (progress.counted, progress.continuations) == (9, levels[3] + levels[9])
    assert next(t for t in trials if t.number == progress.best).level == 9


class Later(AtOnce):
    """Works when it is told to."""

    work = None

    def submit(self, function, /, *arguments):
        future = Future()

        def work():
            done = super(Later, self).submit(function, *arguments)
            (future.set_exception if done.exception() else future.set_result)(done.exception() or done.result())

        self.work = work
        return future


def test_an_ask_projects_the_results_before_it_and_does_so_in_the_executor(monkeypatch):
    executor, results, projected = Later(), LevelResults.results, []
    monkeypatch.setattr(LevelResults, "results", lambda self: projected.append(results(self)) or projected[-1])
    proposer = Proposer(made_search(**EPOCHS), executor, lambda: None)

    def tell(number, level, chain):
        trial = Trial(number, 1, {"x": chain / 8}, TrialState.FINISHED, values=(0.5,), told=number, level=level)
        proposer.tell(trial, chain)

    tell(1, 1, 1)
    proposer.start(1, [])
    tell(2, 1, 2)  # while the ask waits
    tell(3, 3, 1)
    assert projected == []
    executor.work()
    assert len(proposer.take()) == 1
    proposer.start(1, [])
    executor.work()
    found = [[(one.point["x"] * 8, one.stopped) for one in told] for told in projected]
    assert found == [[(1, False)], [(1, False), (2, True)]]
    assert len(proposer.take()) == 1


@pytest.mark.parametrize("folds", [1, 2])
def test_run_times_of_levels_are_told_and_after_a_restart_the_same_ones(steer, store, panda, monkeypatch, folds):
    """Some jobs fail, some trainings find no checkpoint, and the highest level is raised."""
    told, tell = [], LevelResults.tell

    def spy(self, chain, level, result):
        told.append((chain, level, result.seconds))
        tell(self, chain, level, result)

    def whole(trial, high):
        part = trial.level if trial.continues is None or trial.from_start else trial.level - trial.level / 3
        return trial.fold_seconds and pytest.approx(trial.fold_seconds * high / part)

    def run(steering, rounds):
        for _ in range(rounds):
            go(steering, 2)
            for number, task in panda.tasks.items():
                for job, ((trial, fold, _),) in enumerate(task.jobs, 1):
                    if 100 * number + job not in panda.reports[number]:
                        how = {"failed": "diverged" if trial % 7 == 0 else None, "from_start": trial % 5 == 0}
                        panda.finish(number, job, seconds=10.0 * trial + fold, **how)

    monkeypatch.setattr(LevelResults, "tell", spy)
    run(steer({**EPOCHS, "folds": {"k": folds}}, trials=40, parallel=3), 12)
    live, by_number, count = [*told], {trial.number: trial for trial in store.trials(1)}, len(told)
    assert store.search(1).state is SearchState.RUNNING
    history = sorted((trial for trial in by_number.values() if trial.told), key=lambda trial: trial.told)
    assert live == [(first_of_chain(by_number, one), one.level, whole(one, 9)) for one in history[:count]]
    assert {level for _, level, _ in live} == {1, 3, 9}
    assert any(one.from_start for one in history[:count])
    finished = [one for one in history[:count] if one.state is TrialState.FINISHED]
    assert all(one.fold_seconds == 10.0 * one.number + (folds - 1) / 2 for one in finished)
    extend(store, store.search(1), "me", {"high": 27})
    told.clear()
    steering = steer()
    run(steering, 4)
    again = [(chain, level, seconds and pytest.approx(3 * seconds)) for chain, level, seconds in live]
    assert told[:count] == again and len(told) > count
    assert all(one.seconds for one in steering._proposer._levels.results() if one.values)


def test_points_are_chosen_by_improvement_per_cost_on_request():
    """Run times differ by up to a thousand; most are known at the lowest level only, whose jobs are shorter."""
    space = {name: {"type": "real", "low": 0.0, "high": 1.0} for name in ("x", "size")}
    points = create_optimizer("random", SearchSpace.from_dict(space), seed=8).ask(24, [])

    def asked(acquisition, seconds):
        optimizer = {"name": "bayesian", "start_points": 8, **({"acquisition": acquisition} if acquisition else {})}
        proposer = Proposer(made_search(**EPOCHS, space=space, optimizer=optimizer), AtOnce(), lambda: None)
        for number, (level, chain) in enumerate([(1, n) for n in range(1, 25)] + [(3, n) for n in range(1, 7)], 1):
            point = points[chain - 1]
            trial = Trial(number, 1, point, TrialState.FINISHED, values=((point["x"] - 0.4) ** 2,), level=level)
            proposer.tell(trial, chain, seconds(point) * level)
        proposer.start(4, [])
        return proposer.take()

    def by_size(point):
        return 3 * 1000 ** point["size"]

    default, plain, per_cost = (asked(how, by_size) for how in (None, "plain", "per_cost"))
    assert default == plain != per_cost
    assert sum(point["size"] for point in per_cost) < sum(point["size"] for point in plain)
    assert asked("per_cost", lambda _: 30.0) == plain


def test_a_task_has_the_levels_of_its_trials(steer, panda):
    finish_all(steer({**EPOCHS, "payload": {"command": "train {epochs}"}}, trials=3, parallel=3), panda)
    told = [(task.points[n]["epochs"], *level) for task in panda.tasks.values() for n, level in task.levels.items()]
    assert told == [(1, 1, None, True)] * 3 + [(3, 3, 1, True), (9, 9, 1, True)]


def finish_waiting(steering, panda, seconds):
    """Ends the jobs that wait, whose run time is `seconds(level)`; returns the tasks."""
    go(steering, 2)
    waiting = {number: task for number, task in panda.tasks.items() if panda.states[number] is TaskState.RUNNING}
    for number, task in waiting.items():
        for job, ((trial, *_),) in enumerate(task.jobs, 1):
            panda.finish(number, job, seconds=seconds(task.levels[trial].level))
    return [*waiting.values()]


def test_walltimes_are_those_of_the_levels(steer, panda):
    """An epoch takes ten minutes."""
    steering = steer({**EPOCHS, "resources": {"minutes": 400}}, trials=60, parallel=4)
    asked = defaultdict(list)
    for _ in range(30):
        for task in finish_waiting(steering, panda, {1: 600, 3: 1200, 9: 3600}.get):
            (level,) = {level.level for level in task.levels.values()}
            asked[level] += [task.walltime] * len(task.jobs)
    assert asked[1][:8] == [None] * 8 and set(asked[1][12:]) == {400 * 60 // 16 + 300}
    assert asked[3][:8] == [None] * 8 and set(asked[3][12:]) == {400 * 60 // 4 + 300}, "its checkpoint may be lost"
    assert len(asked[3]) > 12 and set(asked[9]) == {None}


def test_after_a_loss_walltimes_are_whole(steer, panda):
    """Too short a walltime may have ended the job."""
    steering = steer({**EPOCHS, "resources": {"minutes": 400}}, trials=60, parallel=4)
    while not finish_waiting(steering, panda, lambda level: 600 * level)[0].walltime:
        assert len(panda.tasks) < 40
    go(steering, 2)
    lost = max(panda.tasks)
    panda.states[lost] = TaskState.FAILED
    go(steering, 2)
    again = panda.tasks[max(panda.tasks)]
    assert panda.tasks[lost].walltime and again.points == panda.tasks[lost].points and again.walltime is None
    assert [task.walltime for task in finish_waiting(steering, panda, lambda level: 600 * level)][-1] is None


@pytest.mark.parametrize(("limit", "levels"), [(1, [1]), (5, [1, 1, 1, 3]), (9, [1, 1, 1, 3]), (11, [1, 1, 1, 3, 9])])
def test_the_sum_of_levels_is_limited(steer, store, panda, limit, levels):
    finish_all(steer(EPOCHS, trials=3, parallel=3, fidelity=limit), panda)
    assert [trial.level for trial in store.trials(1)] == levels
    assert store.search(1).state is SearchState.DONE


@pytest.mark.parametrize("failed", [None, "diverged"])
def test_a_level_trained_from_the_start_is_charged_in_whole(steer, store, panda, failed):
    """Also where the steering ends between the reports of its folds."""
    steering = steer({**EPOCHS, "folds": {"k": 2}}, trials=3, parallel=3, fidelity=100)
    finish_all(steering, panda, rounds=1)
    steering = steer()
    go(steering)
    number, (second,) = max(panda.tasks), [trial for trial in store.trials(1) if trial.continues]
    trained = [3.0]

    def levels():
        trained.append(steering._spent.levels)
        return [(one.level, one.trained) for one in level_counts(store.engine, 1, store.search(1).search.levels)]

    assert levels() == [(1, 3), (3, 2)]
    panda.finish(number, 1, from_start=True)
    go(steering)
    assert levels() == [(1, 3), (3, 3)]
    steering = steer()
    assert levels() == [(1, 3), (3, 3)]
    panda.finish(number, 2, failed=failed, from_start=True)
    go(steering)
    assert store.trials(1)[second.number - 1].state.is_over
    assert levels_trained(store.engine, 1) == 6
    assert trained[1:4] == [5, 6, 6]
    assert not check(store)


@pytest.mark.parametrize(("limit", "whole"), [(None, 2), (72, 2), (64, 1)])
def test_points_trained_in_whole_whatever_their_figures_take_a_quarter_of_a_limit(steer, store, panda, limit, whole):
    finish_all(steer({"fidelity": {"epochs": {"low": 1, "high": 9, "eta": 9}}}, trials=16, fidelity=limit), panda)
    assert Counter(trial.level for trial in store.trials(1)) == {1: 16, 9: whole}


@pytest.mark.parametrize(
    ("document", "budget", "highest"),
    [
        ({"optimizer": "grid", "space": {"x": {"type": "integer", "low": 1, "high": 9}}}, {"refill": 0.25}, 9),
        ({}, {"refill": 1.0, "fidelity": 11}, 3),
        ({"fidelity": {"data": {"low": 0.05, "high": 0.2, "eta": 2}}}, {"refill": 1.0, "fidelity": 0.45}, 0.1),
    ],
)
def test_a_search_ends_where_less_is_left_than_a_batch(steer, store, panda, document, budget, highest):
    finish_all(steer({**EPOCHS, **document}, trials=40, parallel=8, **budget), panda, rounds=12)
    search, levels = store.search(1), [trial.level for trial in store.trials(1)]
    assert search.state is SearchState.DONE and max(levels) == highest
    if "fidelity" in budget:
        with pytest.raises(InputError, match="too few are left: `hpo-pilot extend"):
            add_point(store, search, "me", store.trials(1)[0].point)


@pytest.mark.parametrize("more", [{"fidelity": 30}, {"fidelity": 200, "high": 27}, {"fidelity": 60, "trials": 3}])
def test_points_that_go_on_after_an_extension_were_kept(steer, store, panda, more):
    steering = steer(EPOCHS, trials=9, parallel=3, fidelity=17)
    finish_all(steering, panda, rounds=12)
    before, kept = store.trials(1), steering.waiting_points()
    assert store.search(1).state is SearchState.DONE and 1 < len(kept) <= 5
    extend(store, store.search(1), "me", more)
    finish_all(steer(), panda, rounds=20)
    later = [t.continues for t in store.trials(1) if t.number > len(before) and (t.continues or 99) <= len(before)]
    trials = {trial.number: trial for trial in before}
    assert later and {first_of_chain(trials, trials[number]) for number in later} <= kept


MODEL = {**EPOCHS, "optimizer": "bayesian"}


def agreeing_loss(trial, point, level):
    """Ranks are the same at all levels."""
    return (point["x"] - 0.3) ** 2 + 1 / level


@pytest.fixture
def agreeing(panda):
    panda.loss = agreeing_loss


@pytest.mark.usefixtures("agreeing")
@pytest.mark.parametrize("limit", [None, 150])
def test_where_ranks_agree_the_optimizer_decides_which_points_go_on(steer, store, panda, limit):
    steering = steer(MODEL, parallel=4, trials=99 if limit else 40, fidelity=limit)
    decided, planned = 0.0, limit or 40 + 16 * 2 + 8 * 6
    for _ in range(60):
        if steering._promotions.by_optimizer:
            decided = steering._spent.levels
        finish_all(steering, panda, rounds=1)
    search, trials = store.search(1), store.trials(1)
    check_levels(trials)
    assert search.state is SearchState.DONE
    assert planned - 20 <= decided <= planned
    if limit is None:
        assert sum(trial.counts for trial in trials) == 40, "then the rule decides"
    else:
        assert "budget.fidelity was spent after" in search.message
        assert limit - 1 < levels_trained(store.engine, 1) <= limit
    best = min((trial for trial in trials if trial.level == 9), key=lambda trial: trial.values)
    assert abs(best.point["x"] - 0.3) < 0.05
    mixed = [task for task in panda.tasks.values() if {level[0] for level in task.levels.values()} > {1}]
    assert mixed, "a task has new points and points that go on"
    by_number = {trial.number: trial for trial in trials}
    assert all(by_number[number].level == level[0] for task in mixed for number, level in task.levels.items())


@pytest.mark.usefixtures("agreeing")
def test_where_ranks_no_longer_agree_the_rule_decides(steer, store, panda):
    steering, agree = steer(MODEL, trials=40, parallel=4), panda.loss
    while not steering._promotions.by_optimizer:
        finish_all(steering, panda, rounds=1)
    panda.loss = lambda trial, point, level: -agree(trial, point, level) if level == 9 else agree(trial, point, level)
    finish_all(steering, panda, rounds=60)
    assert store.search(1).state is SearchState.DONE
    assert not steering._promotions.by_optimizer
    assert Counter(trial.level for trial in store.trials(1))[1] == 40


@pytest.mark.usefixtures("agreeing")
@pytest.mark.parametrize("high", [81, 9])
def test_what_the_rule_trained_before_does_not_end_a_search(steer, store, panda, high):
    """Where less is planned than the rule trains before the ranks are known."""
    document = {**MODEL, "fidelity": {"epochs": {"low": 1, "high": high, "eta": 3}}}
    finish_all(steer(document, trials=30, parallel=4), panda, rounds=60)
    assert (store.search(1).state, store.search(1).message) == (SearchState.DONE, "")
    assert sum(trial.counts for trial in store.trials(1)) == 30
    extend(store, store.search(1), "me", {"trials": 5})
    finish_all(steer(), panda, rounds=20)
    assert sum(trial.counts for trial in store.trials(1)) == 35


@pytest.mark.usefixtures("agreeing")
@pytest.mark.parametrize("late", [False, True])
def test_all_of_a_small_space_is_trained_also_if_results_come_while_the_optimizer_works(steer, store, panda, late):
    space = {"x": {"type": "integer", "low": 1, "high": 12}}
    steering, executor = steer({**MODEL, "space": space}, trials=48, parallel=4), Later()
    if late:
        steering._proposer._executor = executor
    for _ in range(80):
        go(steering, 1)
        finish_all(steering, panda, rounds=1)
        if late and executor.work is not None:
            executor.work()
            executor.work = None
    trials = store.trials(1)
    check_levels(trials)
    assert store.search(1).state is SearchState.DONE
    assert store.search(1).message == f"every point of the space was tried: {len(trials)} trials"
    levels = Counter(trial.level for trial in trials)
    assert levels[1] == 12 and levels[9] >= 8


@pytest.mark.usefixtures("agreeing")
def test_a_point_that_may_not_go_on_is_not_tried_anew(steer, store, panda):
    """An optimizer may have forgotten a result."""
    steering = steer(MODEL, trials=40, parallel=4)
    while not steering._promotions.by_optimizer:
        finish_all(steering, panda, rounds=1)
    trials = store.trials(1)
    gone = next(trial.point for trial in trials if any(other.continues == trial.number for other in trials))
    assert steering._promotions.affordable([gone], store.trials_at(1, [gone]), 9) == []
    new = {"x": 0.123}
    assert steering._promotions.affordable([new, gone], trials, 9) == [(new, None)]
    assert steering._promotions.affordable([new], trials, 0) == []
    steering._promotions.give_up()
    assert not steering._promotions.by_optimizer
    finish_all(steering, panda, rounds=1)
    assert steering._promotions.by_optimizer, "after the next result"


def promoting(steer, panda, document=EPOCHS):
    """A search of three points, all with a result, of which the best one goes on."""
    steering = steer(document, trials=3, parallel=3)
    go(steering)
    for job in (1, 2, 3):
        panda.finish(1, job)
    go(steering)
    return steering


def test_a_point_is_kept_while_its_next_level_is_open(steer, store, panda):
    """The budget may end the search then; the promotion is due again after an extension."""
    steering = promoting(steer, panda)
    (going_on,) = (trial for trial in store.trials(1) if trial.continues)
    assert going_on.continues in steering.waiting_points()


def test_a_failed_promotion_is_tried_again_at_its_level(steer, store, panda):
    steering = promoting(steer, panda)
    panda.finish(2, failed="no memory")
    finish_all(steering, panda)
    assert [(trial.level, trial.continues) for trial in store.trials(1)][3:] == [(3, 1), (3, 2), (9, 5)]
    assert retry(store, store.search(1), "me") == 1
    assert store.search(1).search.budget.trials == 3, "it is a point that was counted"
    finish_all(steer(), panda)
    again = store.trials(1)[6]
    assert (again.level, again.continues, again.retries, again.seed) == (3, 1, 4, store.trials(1)[0].seed)


def test_what_is_tried_again_stays_within_the_budget(steer, store, panda):
    document = {**EPOCHS, "budget": {"trials": 3, "parallel": 3, "fidelity": 8}}
    steering = promoting(steer, panda, document)
    panda.finish(2, failed="no memory")
    finish_all(steering, panda)
    failed = [trial.number for trial in store.trials(1) if trial.state is TrialState.FAILED]
    left = 8 - levels_trained(store.engine, 1)
    assert failed and left < 2
    with pytest.raises(InputError, match=r"takes 2 epochs, and its budget has . left.*--fidelity"):
        retry(store, store.search(1), "me")


def test_a_request_beyond_the_budget_waits_and_the_search_ends(steer, store, panda):
    document = {**EPOCHS, "budget": {"trials": 3, "parallel": 3, "fidelity": 12}}
    steering = promoting(steer, panda, document)
    for task in (2, 3, 4):
        panda.finish(task, failed="no memory")
        go(steering)
    finish_all(steering, panda)
    assert levels_trained(store.engine, 1) == 9
    for failed in (4, 5):  # 2 epochs each, and 3 are left
        retry(store, store.search(1), "me", [failed])
    finish_all(steer(), panda)
    assert (store.search(1).state, levels_trained(store.engine, 1)) == (SearchState.DONE, 11)
    assert check(store) == []
    extend(store, store.search(1), "me", {"fidelity": 1})
    finish_all(steer(), panda)
    assert [trial.retries for trial in store.trials(1) if trial.retries] == [4, 5]


def test_promotions_of_a_stopped_search_are_due_again(steer, store, panda):
    steering = promoting(steer, panda)
    steering.advance(None, SearchState.STOPPING)
    go(steering)
    store.reopen(1, "me", "resumed", only_from=(SearchState.STOPPED,))
    finish_all(steer(), panda)
    stopped, again = store.trials(1)[3:5]
    assert stopped.ended_with_search and (again.level, again.continues) == (3, 1)
    check_levels(store.trials(1))


@pytest.mark.parametrize("by_optimizer", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_no_level_is_counted_twice_whatever_happens(steer, store, panda, seed, by_optimizer):
    """Jobs end, fail and get lost in any order, answers to submissions too, and the steering is killed at any time."""
    chance, decided, points = random.Random(seed), False, 36 if by_optimizer else 12
    if by_optimizer:
        panda.loss = agreeing_loss
    steering = steer({**EPOCHS, "optimizer": "bayesian" if by_optimizer else "random"}, trials=points, parallel=4)
    for _ in range(60):
        panda.lost_answers = int(chance.random() < 0.2)
        go(steering, chance.randrange(1, 4))
        waiting = [
            (number, job)
            for number, task in panda.tasks.items()
            for job in range(1, len(task.jobs) + 1)
            if 100 * number + job not in panda.reports[number]
        ]
        for number, job in waiting:
            if chance.random() < 0.5:
                panda.finish(number, job, failed="diverged" if chance.random() < 0.2 else None)
        if chance.random() < 0.4:
            steering = steer()
        check_levels(store.trials(1))
        decided = decided or steering._promotions.by_optimizer
    panda.lost_answers = 0
    finish_all(steering, panda, rounds=30)
    trials = store.trials(1)
    assert store.search(1).state is SearchState.DONE
    assert decided == by_optimizer
    assert sum(trial.counts for trial in trials) == points
    assert 9 in {trial.level for trial in trials if trial.values}
