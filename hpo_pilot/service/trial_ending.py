"""What comes of a trial whose folds have all spoken, or will not any more."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hpo_pilot.search import TrialState
from hpo_pilot.search.trial import means_and_stds
from hpo_pilot.service.changes import OpenTrial
from hpo_pilot.store import TrialEnd


def trial_end(
    trial: OpenTrial, told: int | None, now: float, *, folds: int, needed: int, objectives: int = 1
) -> TrialEnd:
    """How the trial ended.

    Enough good folds make a figure of merit, even where it was told to stop early: the full result counts.

    Args:
        trial: the trial; each of its folds has a verdict or is halted.
        told: its place in the order of results; None for a confirmation run.
        now: seconds since the epoch.
        folds: of a trial.
        needed: good folds that it needs.
        objectives: how many figures of merit a fold has.
    """
    good = [o.values or (o.value,) for _, o in sorted(trial.verdicts.items()) if o.value is not None]
    seconds = max((o.seconds for o in trial.verdicts.values() if o.seconds is not None), default=None)
    end = TrialEnd(trial.number, TrialState.FINISHED, None, None, None, told, now, len(good), seconds)
    if len(good) < needed and trial.halted:
        return replace(end, state=TrialState.STOPPED)
    if len(good) < needed:
        return replace(end, state=TrialState.FAILED, error=_reason(trial, len(good), folds, needed))
    means, stds = means_and_stds(good)
    end = replace(end, value=means[0], std=stds[0] if stds else None)
    return replace(end, values=means, stds=stds) if objectives > 1 else end


def _reason(trial: OpenTrial, good: int, folds: int, needed: int) -> str:
    """Why a trial failed; folds that failed alike share a line."""
    errors: dict[str, list[str]] = defaultdict(list)
    for fold, outcome in sorted(trial.verdicts.items()):
        if outcome.value is None:
            errors[outcome.error or "no reason given"].append(str(fold))
    if folds == 1:
        return next(iter(errors))
    parts = [f"fold{'s' * (len(n) > 1)} {', '.join(n)}: {error}" for error, n in errors.items()]
    return f"{good} of {folds} folds good, {needed} required: {'; '.join(parts)}"
