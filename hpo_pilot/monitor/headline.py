"""What a search comes to, in words and at a glance: does it go well, what is best, what does it cost, what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from hpo_pilot.figures.failures import shortened
from hpo_pilot.figures.wording import count, duration, number, plus_minus, span
from hpo_pilot.monitor.library import View
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.service.outlook import Outlook, outlook
from hpo_pilot.store import SearchState

#: So many failures in a row are said first.
_IN_A_ROW = 3

#: A search whose best is older than this share of its results, and than so many, no longer improves.
_STALE_SHARE, _STALE_LEAST = 0.4, 12

_REASON = 220


@dataclass(frozen=True)
class Limit:
    """A limit of the budget.

    Attributes:
        name: in words.
        used: so much of it.
        allowed: so much in all.
        text: both, in words.
    """

    name: str
    used: float
    allowed: float
    text: str

    @property
    def percent(self) -> float:
        """How much of it is used, of 100."""
        return max(0.0, min(100.0, 100 * self.used / self.allowed)) if self.allowed > 0 else 100.0


@dataclass(frozen=True)
class Headline:
    """A search at a glance.

    Attributes:
        mood: `good`, `bad`, `busy` or `idle`: the colour of it.
        verdict: does it go well, in a sentence or two.
        trouble: what is wrong, one sentence each; empty: nothing.
        best: the best figure of merit in words; empty: there is none yet.
        outlook: how far it is.
        end: when it will end or has ended, in words.
        limits: the budget's, those first that count hours.
        cost: what it took, in the unit that counts.
        unit: of that: GPU-hours, or core-hours where it has no GPUs.
        energy: in words; empty: not known.
    """

    mood: str
    verdict: str
    trouble: tuple[str, ...]
    best: str
    outlook: Outlook
    end: str
    limits: tuple[Limit, ...]
    cost: str
    unit: str
    energy: str

    @property
    def percent(self) -> float:
        """How much of what is planned is over, of 100."""
        return 100.0 * self.outlook.over / self.outlook.planned if self.outlook.planned else 0.0


def headline(view: View, now: datetime, unsteered: str = "") -> Headline:
    """A search at a glance.

    Args:
        view: the search.
        now: the present.
        unsteered: why nothing steers it, and what would, in a sentence; empty: something does, or it is over.
    """
    record, search = view.record, view.search
    best = view.best
    ahead = outlook(
        search,
        record.state,
        view.trials,
        clock=record.clock,
        cost=view.cost,
        best=None if best is None else best.trial.number,
        now=now,
        steered=not unsteered,
    )
    trouble = _trouble(view, ahead, unsteered)
    mood, verdict = _verdict(view, ahead, trouble, steered=not unsteered)
    return Headline(
        mood=mood,
        verdict=verdict,
        trouble=tuple(trouble),
        best=best_text(view),
        outlook=ahead,
        end=_end(view, ahead, now, steered=not unsteered),
        limits=tuple(_limits(view, now)),
        cost=number(view.cost.gpu_hours if view.cost.gpu_hours > 0 else view.cost.core_hours, 3),
        unit="GPU-hours" if view.cost.gpu_hours > 0 else "core-hours",
        energy="" if view.cost.energy_kwh is None or not view.cost.energy_source else _energy(view),
    )


def best_text(view: View) -> str:
    """The best figure of merit; of several objectives how large the front is."""
    best = view.best
    if best is None:
        return ""
    if len(view.search.objectives) > 1:
        volume = f", hypervolume {number(view.steps[-1][1])}" if view.steps else ""
        return f"{count(len(view.standings), 'trial')} on the front{volume}"
    spread = None if best.confirmed else best.trial.std
    return plus_minus(best.value, spread)


#: What is said of a search in these states while nothing steers it.
_UNSTEERED = {
    SearchState.SUBMITTED: "Submitted, but nothing steers it: it does not begin.",
    SearchState.RUNNING: "Begun, but nothing steers it now: it does not go on.",
    SearchState.STOPPING: "Stopping, but nothing steers it now: its jobs are not being ended.",
}


def _verdict(view: View, ahead: Outlook, trouble: Sequence[str], *, steered: bool) -> tuple[str, str]:
    state, best = view.record.state, view.best
    told = view.pulse.told
    if not steered and state in _UNSTEERED:
        return "bad", _UNSTEERED[state]
    if state is SearchState.SUBMITTED:
        return "idle", "Submitted; it has not begun."
    if state is SearchState.PAUSED:
        return "idle", "Paused: no new trials until it is resumed."
    if state is SearchState.STOPPING:
        return "idle", "Stopping: its jobs are being ended."
    if state is SearchState.FAILED:
        return "bad", f"Failed: {shortened(view.record.message or 'no reason was recorded', 2 * _REASON)}"
    if state is SearchState.STOPPED:
        return "idle", f"Stopped after {count(ahead.over, 'trial')}."
    if state is SearchState.DONE:
        message = f" {shortened(view.record.message, _REASON).rstrip('.')}." if view.record.message else ""
        return "good", f"Done: {count(ahead.over, 'trial')} are over.{message}" + _gain(view)
    if trouble and best is None and told:
        return "bad", "Running, but nothing has succeeded yet."
    if _failures_in_a_row(view) >= _IN_A_ROW:
        return "bad", f"Running, but the last {_failures_in_a_row(view)} trials failed."
    if best is None:
        return "busy", "Running; the first result is still to come."
    since = ahead.since_best or 0
    if since >= max(_STALE_LEAST, _STALE_SHARE * told):
        return "busy", f"Running; the last {count(since, 'result')} brought no improvement.{_gain(view)}"
    when = "the newest result is the best" if not since else f"the best came {count(since, 'result')} ago"
    return "good", f"Going well: {when}.{_gain(view)}"


def _gain(view: View) -> str:
    """From where to where the best went, in a sentence; empty where it went nowhere."""
    if len(view.search.objectives) > 1 or len(view.steps) < 2 or view.steps[0][1] == view.steps[-1][1]:
        return ""
    metric = view.search.objective.metric
    return f" Its {metric} went from {number(view.steps[0][1])} to {number(view.steps[-1][1])}."


def _failures_in_a_row(view: View) -> int:
    failed = {trial.told for trial in view.failures}
    run, newest = 0, view.pulse.told
    while newest - run in failed and newest - run > view.record.forgiven:
        run += 1
    return run


def _trouble(view: View, ahead: Outlook, unsteered: str) -> list[str]:
    found = [f"{unsteered[0].upper()}{unsteered[1:]}."] if unsteered else []
    failed = view.counts[TrialState.FAILED]
    if failed:
        latest: Trial = view.failures[0]
        reason = shortened((latest.error or "no reason was recorded").strip().partition("\n")[0], _REASON)
        found.append(f"{failed:,} of {count(ahead.over, 'trial')} failed; the latest: {reason}")
    return found


def _end(view: View, ahead: Outlook, now: datetime, *, steered: bool) -> str:
    record = view.record
    if record.state.is_over:
        took = span(record.started, record.ended)
        return f"ended after {duration(took)}" if took is not None else "ended"
    if not steered:
        return "nothing steers it"
    if record.state is not SearchState.RUNNING:
        return "not running"
    if ahead.end is None:
        return "no estimate yet"
    left = (ahead.end - now).total_seconds()
    why = {"hours": " (its hours)", "gpu_hours": " (its GPU-hours)", "core_hours": " (its core-hours)"}
    return f"in about {duration(round(left)) if left > 0 else 'a moment'}{why.get(ahead.limit, '')}"


def _limits(view: View, now: datetime) -> list[Limit]:
    budget, cost, record = view.search.budget, view.cost, view.record
    found = []
    if budget.gpu_hours is not None:
        found.append(_limit("GPU-hours", cost.gpu_hours, budget.gpu_hours))
    if budget.core_hours is not None:
        found.append(_limit("core-hours", cost.core_hours, budget.core_hours))
    if budget.hours is not None:
        passed = (span(record.clock, record.ended or now) or 0.0) / 3600
        found.append(_limit("hours", passed, budget.hours))
    return found


def _limit(name: str, used: float, allowed: float) -> Limit:
    return Limit(name, used, allowed, f"{number(used, 3)} of {number(allowed)} {name}")


def _energy(view: View) -> str:
    source = {"measured": "measured", "estimated": "estimated", "mixed": "partly measured"}
    return f"{number(view.cost.energy_kwh, 3)} kWh, {source[view.cost.energy_source or 'estimated']}"
