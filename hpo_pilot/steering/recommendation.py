"""Recommends trials: with noise the lowest value is partly luck, and a model of all results chooses better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hpo_pilot.optimizers import create_optimizer, optimizer_class
from hpo_pilot.optimizers.base import Optimizer, Recommendation, Result
from hpo_pilot.optimizers.bayesian import ModelSettings
from hpo_pilot.optimizers.level_results import LevelResults
from hpo_pilot.search import Search, Trial, TrialState, point_key
from hpo_pilot.search.earlier_results import EarlierResults
from hpo_pilot.search.measured_limits import measured_figures
from hpo_pilot.search.progress import SearchProgress
from hpo_pilot.search.ranking import costs, ranked_by_folds
from hpo_pilot.store import SearchRecord, Store
from hpo_pilot.store.trial_queries import best_numbers, sampled_trials


def told_result(search: Search, trial: Trial, seconds: float | None = None) -> Result:
    """Returns the result of a trial that is over, as optimizers are told it.

    Args:
        search: the search.
        trial: the trial.
        seconds: its `Trial.fold_seconds`; not told of a trial that was stopped early, which trained a part.
    """
    if trial.stopped_early and trial.stop is not None:
        projected = trial.stop.projected
        # A trial that diverged counts as failed. Otherwise there is an estimate, except with several objectives
        # before the first finished trial: then the optimizer only learns that the trial was stopped.
        diverged = trial.stop.value is None
        values = projected and costs(search.objectives, projected)
        return Result(trial.point, values, stopped=not diverged)
    means = costs(search.objectives, trial.values) if trial.values else None
    measured = measured_figures(search.measured_limits, trial)
    if search.levels is not None and seconds is not None:
        seconds *= search.levels.high / search.levels.part(trial)
    errors = trial.standard_errors or None
    return Result(trial.point, means, errors, measured=measured, seconds=seconds, level=trial.level)


def optimizer_of(
    search: Search, earlier: Sequence[EarlierResults], name: str = "", *, uses_levels: bool = False
) -> Optimizer:
    """Returns a new optimizer for a search, told of earlier results.

    Args:
        search: the search.
        earlier: the earlier results.
        name: another optimizer than that of the search.
        uses_levels: whether it is told results at all levels, and decides which points go on.
    """
    settings: Mapping[str, Any] = {} if name else search.optimizer.settings
    if search.levels is not None and issubclass(optimizer_class(name or search.optimizer.name).Settings, ModelSettings):
        settings = {"acquisition": "plain", **settings}  # no gain was seen: `python -m tests.performance fidelity`
    optimizer = create_optimizer(
        name or search.optimizer.name,
        search.space,
        seed=search.seed,
        settings=settings,
        trials=search.budget.trials,
        objectives=len(search.objectives),
        limits=() if name else search.measured_limits,  # infeasible trials are not recommended in any case
        levels=search.levels.values if search.levels is not None and uses_levels else (),
    )
    for one in earlier:
        optimizer.tell_earlier(one.source, one.results)
    objectives = search.objectives
    optimizer.tell((known.point, known.figures and costs(objectives, known.figures)) for known in search.known)
    return optimizer


#: Of searches with more trials than this, a model sees the best ones, and a sample of the others.
_MODELLED = 1_000


def modelled_trials(
    store: Store, record: SearchRecord, progress: SearchProgress, numbers: Collection[int] = ()
) -> list[Trial]:
    """Returns the trials for `recommend`: of a large search the best ones and an even sample, half of each.

    Args:
        store: the store.
        record: the search.
        progress: its progress.
        numbers: numbers of further trials.
    """
    if progress.told <= _MODELLED:  # not all trials: confirmation runs must not change the choice
        without = ("log_tail", "metrics", "metadata")
        return store.trials(record.id, folds=record.search.folds.k > 1, without=without)
    best = best_numbers(store.engine, record.id, record.search, _MODELLED // 2)
    wanted = {*best, *numbers}
    return sampled_trials(
        store.engine, record.id, progress, wanted, _MODELLED // 2, count=progress.told, good_folds=True
    )


def recommend(
    search: Search, trials: Collection[Trial], earlier: Sequence[EarlierResults]
) -> list[tuple[Trial, Recommendation]]:
    """Returns the trials in the order of their values without noise, as a model of all results predicts them.

    The model is that of `bayesian`, whatever optimizer proposed the points. Confirmation runs are left out. Costs take
    the place of figures of merit: lower is better. See `Optimizer.recommend`, also for the errors.
    """
    model = optimizer_of(search, earlier, "bayesian")
    told = sorted((trial for trial in trials if trial.told is not None), key=lambda trial: trial.told or 0)
    if search.levels is None:
        model.tell(told_result(search, trial) for trial in told)
    else:
        levels = LevelResults()
        for trial in told:
            levels.tell(point_key(trial.point), trial.level or 0, told_result(search, trial))
        model.tell(levels.results())
    trial_at = {point_key(trial.point): trial for trial in reversed(ranked_by_folds(search, trials))}
    found = model.recommend(len(told) + len(search.known))
    return [(trial_at[key], each) for each in found if (key := point_key(each.point)) in trial_at]


def confirmation_runs(
    search: Search,
    trials: Collection[Trial],
    earlier: Sequence[EarlierResults],
    with_outputs: Collection[int] | None = None,
) -> list[Trial]:
    """Returns the trials to confirm, each once per run that is still due. Stopped runs are due again.

    Only trials of the highest level are confirmed, by whole trainings to this level.

    Args:
        search: the search.
        trials: its trials.
        earlier: results of earlier searches.
        with_outputs: the trials that keep their outputs. Others are confirmed only where these are too few: the best
            confirmed trial is what users fetch. None: all alike.
    """
    ranked = ranked_by_folds(search, trials) if search.confirm.top else []
    if ranked and len(search.objectives) == 1:
        predicted = [trial for trial, each in recommend(search, trials, earlier) if each.error is not None]
        seen = {trial.number for trial in predicted}
        ranked = predicted + [trial for trial in ranked if trial.number not in seen]
    runs = Counter(trial.confirms for trial in trials if trial.state is not TrialState.STOPPED)
    level = max((trial.level or 0 for trial in ranked), default=0)
    top = [trial for trial in ranked if (trial.level or 0) == level]
    if with_outputs is not None:
        top.sort(key=lambda trial: trial.number not in with_outputs)  # stable
    return [trial for trial in top[: search.confirm.top] for _ in range(search.confirm.repeats - runs[trial.number])]
