"""Results of earlier searches, as another search starts from them: `warm_start` of a search file.

They inform and do not count: an earlier search had another data set, another machine, a smaller model. Results of the
very same problem are `known` instead, and are taken at their word.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hpo_pilot.errors import InputError
from hpo_pilot.search.dimension import Dimension, Integer, Real
from hpo_pilot.search.misfit import listing
from hpo_pilot.search.objective import Objective
from hpo_pilot.search.point import Point, is_number, show
from hpo_pilot.search.space import SearchSpace
from hpo_pilot.search.trial import Trial, TrialState

#: Of one earlier search no more than its last results are taken: what an optimizer gains from more is not worth their
#: time and place.
MOST_RESULTS = 10_000


#: (point, values, standard errors, whether it was stopped early), as optimizers are told.
Result: TypeAlias = tuple[Point, tuple[float, ...] | None, tuple[float, ...] | None, bool]


@dataclass(frozen=True)
class EarlierTrial:
    """One result as its own search had it.

    Attributes:
        point: as it was tried there.
        values: one for each figure of that search, not sign-flipped; None: it failed.
        errors: standard errors of the values, where they are known.
        stopped: it was stopped early; the values are what it would probably have come to.
    """

    point: Mapping[str, Any]
    values: tuple[float, ...] | None
    errors: tuple[float | None, ...] = ()
    stopped: bool = False


@dataclass(frozen=True)
class EarlierSearch:
    """An earlier search as it was found.

    Attributes:
        source: its name, or the file that its results are in.
        objectives: what its values are; empty: nobody knows, so those of the search that starts from it.
        trials: in the order in which they came.
    """

    source: str
    objectives: tuple[Objective, ...]
    trials: tuple[EarlierTrial, ...]


@dataclass(frozen=True)
class EarlierResults:
    """What a search has from an earlier one: fitted to its space, stored with it, told to its optimizer.

    Attributes:
        source: the earlier search.
        results: (point, values, standard errors, stopped early); lower is better. Values are None where the trial
            failed, standard errors where one is unknown.
        notes: what did not fit, for people.
    """

    source: str
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"starts from {len(self.results)} result{'s' * (len(self.results) != 1)} of {self.source}"
        return f"{text} ({'; '.join(self.notes)})" if self.notes else text


def earlier_search(source: str, objectives: Sequence[Objective], trials: Sequence[Trial]) -> EarlierSearch:
    """The results of a search of the store, in order; without confirmation runs and what ended with the search."""
    over = [t for t in trials if t.counts and t.state.is_over]
    over.sort(key=lambda trial: trial.told or trial.number)
    return EarlierSearch(source, tuple(objectives), tuple(_earlier_trial(trial) for trial in over))


def _earlier_trial(trial: Trial) -> EarlierTrial:
    if trial.stopped_early and trial.stop is not None:
        return EarlierTrial(trial.point, trial.stop.projected, stopped=True)
    if trial.state is TrialState.FAILED or trial.figures is None:
        return EarlierTrial(trial.point, None)
    good = sum(1 for fold in trial.folds if fold.figures is not None)
    spreads = (trial.spreads or ()) if good > 1 else ()
    return EarlierTrial(trial.point, trial.figures, tuple(spread / good**0.5 for spread in spreads))


def fitted(earlier: EarlierSearch, space: SearchSpace, objectives: Sequence[Objective]) -> EarlierResults:
    """What a search over `space` can learn from an earlier one.

    - Its figure is found by its name. A single figure of another name is taken for ours, with a note; each is turned by
      its own goal, so that lower is better.
    - Parameters that `space` does not have are left aside.
    - Parameters that the earlier search did not have get values drawn evenly from their domain, another one for each
      result: so the results say nothing of them, and all the same of the others.
    - Numbers beyond the bounds stay as they are; the optimizer knows how far away they are. A result with a choice that
      the space does not have, or with text for a number, says nothing and is left out.

    Args:
        earlier: the earlier search.
        space: the new one's.
        objectives: the new one's objectives.

    Raises:
        InputError: there is nothing to learn: no results, no figure or parameter in common, or opposite goals.
    """
    source = earlier.source
    columns, notes = _columns(earlier, objectives)
    trials = earlier.trials
    if not any(trial.values for trial in trials):
        raise InputError(f"{source!r} has no result yet to start from")
    if len(trials) > MOST_RESULTS:
        notes.append(f"the last {MOST_RESULTS} of its {len(trials)} results are taken")
        trials = trials[-MOST_RESULTS:]
    theirs = list(dict.fromkeys(name for trial in trials for name in trial.point))
    if not space.dimensions.keys() & set(theirs):
        has = f": it has {listing(theirs)}, this one {listing(space.names)}" if theirs else f" ({listing(space.names)})"
        raise InputError(f"{source!r} has no parameter of this space{has}")
    if extra := [name for name in theirs if name not in space.dimensions]:
        notes.append(f"its {listing(extra)} is left aside, for this space does not have it")
    # The same values each time: what is stored must not depend on luck.
    numbers = random.Random(source)  # noqa: S311  nothing secret here
    results: list[Result] = []
    filled: set[str] = set()
    reasons: list[str] = []
    for trial in trials:
        point = _in_space(trial.point, space, numbers, filled, reasons)
        if point is not None:
            results.append((point, *_signed(trial, columns), trial.stopped))
    if not any(values for _, values, _, _ in results):
        why = f": {reasons[0]}" if reasons else ""
        raise InputError(f"none of the {len(trials)} results of {source!r} fits this space{why}")
    if filled:
        lacking = listing([name for name in space.names if name in filled])
        notes.append(f"results without {lacking} are taken to have had any value of it")
    if reasons:
        notes.append(f"{len(reasons)} of its {len(trials)} results do not fit this space ({reasons[0]})")
    return EarlierResults(source, tuple(results), tuple(notes))


def _columns(earlier: EarlierSearch, objectives: Sequence[Objective]) -> tuple[list[tuple[int, int]], list[str]]:
    """Of each of our objectives its place among theirs and the sign that makes lower better; and what to say of it."""
    if not earlier.objectives:
        figures = max((len(trial.values) for trial in earlier.trials if trial.values), default=len(objectives))
        if figures != len(objectives):
            ours = listing([repr(objective.metric) for objective in objectives])
            raise InputError(
                f"{earlier.source!r} has {figures} figure{'s' * (figures > 1)} of merit a result without saying which, "
                f"and this search wants {ours}: what `hpo-pilot export` writes names them"
            )
        ours = listing([f"{objective.metric!r} (to {objective.goal})" for objective in objectives])
        note = f"nothing says what its values are, or which way is better: they are taken for {ours}"
        return [(index, objective.sign) for index, objective in enumerate(objectives)], [note]
    places = {objective.metric: index for index, objective in enumerate(earlier.objectives)}
    columns, notes = [], []
    for objective in objectives:
        place = places.get(objective.metric)
        if place is not None and earlier.objectives[place].goal != objective.goal:
            raise InputError(
                f"{earlier.source!r} is to {earlier.objectives[place].goal} {objective.metric!r}, and this search to "
                f"{objective.goal} it: one of the two is wrong"
            )
        if place is None and len(earlier.objectives) == len(objectives) == 1:
            place = 0
            other = earlier.objectives[0]
            notes.append(f"its figure of merit is {other.metric!r} (to {other.goal}), taken for {objective.metric!r}")
        if place is None:
            there = listing([repr(other.metric) for other in earlier.objectives])
            raise InputError(f"{earlier.source!r} has no figure of merit {objective.metric!r}: it has {there}")
        columns.append((place, earlier.objectives[place].sign))
    return columns, notes


def _signed(
    trial: EarlierTrial, columns: Sequence[tuple[int, int]]
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """The values and standard errors of a result, in our order; lower is better."""
    if trial.values is None or any(place >= len(trial.values) for place, _ in columns):
        return None, None
    values = tuple(sign * trial.values[place] for place, sign in columns)
    errors = [trial.errors[place] if place < len(trial.errors) else None for place, _ in columns]
    known = tuple(error for error in errors if error is not None)
    return values, known if len(known) == len(columns) else None


def _in_space(
    point: Mapping[str, Any], space: SearchSpace, numbers: random.Random, filled: set[str], reasons: list[str]
) -> Point | None:
    """The point with the parameters of `space`; None where a value says nothing there.

    Args:
        point: as the earlier search had it.
        space: the new search's.
        numbers: where values come from that the point does not have.
        filled: gets the names of those.
        reasons: gets one more where the point says nothing.
    """
    values: Point = {}
    for name in space.parents_first:
        dimension = space.dimensions[name]
        place = numbers.random()  # drawn for every parameter, so that one more changes no other
        if not space.is_active(name, values):
            continue
        if name not in point:
            values[name] = dimension.from_unit(place)
            filled.add(name)
            continue
        try:
            values[name] = _taken(dimension, point[name])
        except ValueError as error:
            reasons.append(f"{name} {error}")
            return None
    return {name: values[name] for name in space.names if name in values}


def _taken(dimension: Dimension, value: Any) -> Any:
    """A value as the dimension has it; numbers beyond the bounds, or between the steps, as they are.

    Raises:
        ValueError: it has no place there.
    """
    if not isinstance(dimension, Real | Integer):
        return dimension.canonical(value)
    if not is_number(value):
        raise ValueError(f"must be a number, not {show(value)}")
    if dimension.scale == "log" and value <= 0:
        raise ValueError(f"must be above 0, for its scale is logarithmic, not {show(value)}")
    try:
        return dimension.canonical(value)
    except ValueError:
        return value
