"""The levels to which trials are trained, as `fidelity: {epochs: {low: 1, high: 81}}` of a search file gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from hpo_pilot.search.fields import Section, StrictFloat, StrictInt, Text
from hpo_pilot.search.mistakes import Mistake
from hpo_pilot.search.promotion import counts_within, first_points, level_sum, levels_between, planned_counts
from hpo_pilot.search.space import SearchSpace, name_mistakes

if TYPE_CHECKING:
    from hpo_pilot.search.payload import Payload
    from hpo_pilot.search.trials import Trial

_Level = Annotated[StrictInt | StrictFloat, Field(gt=0, le=1e12, allow_inf_nan=False)]


class Levels(Section):
    """The levels of a training: low, low x eta, low x eta^2, …, high."""

    low: _Level = Field(description="The level that every point is trained to, such as 1 epoch or 0.05 of the data.")
    high: _Level = Field(description="The level of a whole training.")
    eta: Annotated[StrictInt, Field(ge=2, le=100)] = Field(
        3, description="About one point in eta goes on from each level, and levels grow by this factor."
    )

    def _mistakes(self) -> Iterator[Mistake]:
        if self.low >= self.high:
            yield Mistake(
                ("low",), f"is {self.low:g}, and high is {self.high:g}", "use a smaller number, high / 27 or so"
            )

    @property
    def values(self) -> tuple[float, ...]:
        """The levels in ascending order; whole numbers if low and high are."""
        low = self.low if isinstance(self.high, int) else float(self.low)
        return levels_between(low, self.high, self.eta)

    def part(self, trial: Trial) -> float:
        """Returns the part of its level that a trial trains: 18 from 9 to 27 epochs, if these are levels now."""
        level = trial.level or 0
        goes_on = trial.continues is not None and not trial.from_start
        return level - max((each for each in self.values if goes_on and each < level), default=0)

    def planned(self, points: int, limit: float | None) -> Sequence[int]:
        """Returns the expected number of trials at each level; `limit`: of the sum of the levels, None: none."""
        counts = self.wanted(points, limit)
        if limit is None or level_sum(counts, self.values) <= limit:
            return counts
        return counts_within(points, self.values, self.eta, first_points(points, self.high, limit), limit)

    def wanted(self, points: int, limit: float | None) -> Sequence[int]:
        """Returns as `planned`, but the sum of the levels may be more than its limit."""
        return planned_counts(points, len(self.values), self.eta, first_points(points, self.high, limit))


#: The levels by the name that payloads know them by; empty: every trial is a whole training.
Fidelity = Annotated[dict[Text, Levels], Field(max_length=1)]


def fidelity_mistakes(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields settings that clash with levels; paths are those of a search file.

    Args:
        sections: valid sections by key, as of `mistakes_across`.
    """
    fidelity: Mapping[str, Levels] = sections.get("fidelity", {})
    budget, early, resources = (sections.get(key) for key in ("budget", "early_stopping", "resources"))
    if budget is not None and budget.fidelity is not None:
        least = next((levels.low for levels in fidelity.values()), None)
        if least is None:
            message = "limits the levels of all trials, and the search has none"
            yield Mistake(("budget", "fidelity"), message, "add fidelity, or use budget.hours")
        elif budget.fidelity < least:
            message = f"is {budget.fidelity:g}: no trial can reach the lowest level, {least:g}"
            yield Mistake(("budget", "fidelity"), message, f"use {least:g} or more")
    yield from (mistake.under("fidelity") for mistake in name_mistakes(fidelity))
    for name in fidelity:
        if early is not None and early.is_on:
            message = "trains every point in parts already, and only the best go on"
            yield Mistake(("fidelity",), message, "remove early_stopping, or fidelity", at_key=True)
        if resources is not None and resources.trials_per_job > 1:
            message = f"needs jobs of one trial each, and resources.trials_per_job is {resources.trials_per_job}"
            yield Mistake(("fidelity",), message, "remove one of the two", at_key=True)
        spaces = [sections.get("space"), *(one.space for one in (sections.get("segments") or {}).values())]
        names = {key for space in spaces for key in (space.names if isinstance(space, SearchSpace) else space or ())}
        payload: Payload | None = sections.get("payload")
        own = {**payload.point.fixed, **payload.point.arrays} if payload is not None else {}
        if name in names or name in own:
            what = "a parameter of the space" if name in names else "in payload.point"
            yield Mistake(("fidelity", name), f"is {what} too", "rename one of the two", at_key=True)
