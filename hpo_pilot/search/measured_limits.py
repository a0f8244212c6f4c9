"""Limits on measured figures of trials. A trial that is not known to be within all limits is kept, and never the best.

A figure is a metric that the payload, the runner or the pilot reports, as the mean over the folds. `seconds` is the run
time of a fold, unless the payload reports a metric of that name.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hpo_pilot.jobs.results import RAN_OUT
from hpo_pilot.search.fields import StrictStr
from hpo_pilot.search.mistakes import Mistake, MistakeError
from hpo_pilot.search.trials import Trial, TrialState
from hpo_pilot.search.values import is_number, show

_PATTERN = r"^\s*(<=|>=)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*$"


@dataclass(frozen=True)
class MeasuredLimit:
    """A limit on a measured figure.

    Attributes:
        name: name of the figure.
        sign: 1: the figure may be at most `bound`; -1: at least.
        bound: the limit, in the unit of the figure.
    """

    name: str
    sign: int
    bound: float

    def __str__(self) -> str:
        return f"{'<=' if self.sign > 0 else '>='} {self.bound:g}"

    def excess(self, figure: float) -> float:
        """Returns the distance beyond the limit, in the unit of the figure; 0 or less: the limit holds."""
        return self.sign * (figure - self.bound)

    def figure(self, trial: Trial) -> float | None:
        """Returns the figure of a trial, or infinity if its job was ended for using too much; None: not reported."""
        used = RAN_OUT.get(self.name)
        if trial.state is TrialState.FAILED and self.sign > 0 and used and used.search(trial.error or ""):
            return math.inf
        found = trial.mean_metric(self.name)
        if found is None and self.name == "seconds":
            seconds = [fold.result.seconds for fold in trial.folds if fold.result.seconds is not None]
            found = statistics.fmean(seconds) if seconds else None
        return found


def measured_limit(name: str, text: str) -> MeasuredLimit:
    """Returns the limit in a checked text, such as `<= 16000`."""
    found = re.fullmatch(_PATTERN, text)
    assert found is not None
    return MeasuredLimit(name, 1 if found[1] == "<=" else -1, float(found[2]))


def _checked(value: Any) -> Any:
    if isinstance(value, str) and (found := re.fullmatch(_PATTERN, value)) and math.isfinite(float(found[2])):
        return f"{found[1]} {found[2]}"
    bound = f"{value:g}" if is_number(value) else "16000"
    message = f"must be '<= NUMBER' or '>= NUMBER', not {show(value)}"
    raise MistakeError([Mistake((), message, f"as in '<= {bound}', in quotes")])


#: A limit as text, with one space.
LimitText = Annotated[
    StrictStr, BeforeValidator(_checked, json_schema_input_type=Annotated[StrictStr, Field(pattern=_PATTERN)])
]


#: A name as the runner reports it; one with quotes could not be found in SQLite's JSON.
LimitName = Annotated[StrictStr, Field(min_length=1, max_length=100, pattern=r'^[^"]*$')]


def measured_figures(limits: Sequence[MeasuredLimit], trial: Trial) -> dict[str, float]:
    """Returns the figures of a trial that have a limit, by name, without those that were not reported."""
    return {limit.name: figure for limit in limits if (figure := limit.figure(trial)) is not None}


def why_infeasible(limits: Sequence[MeasuredLimit], figures: Mapping[str, float]) -> str:
    """Returns the limits that do not hold, or are not known to hold, in words; empty: all hold."""
    wrong = []
    for limit in limits:
        figure = figures.get(limit.name)
        if figure is None:
            wrong.append(f"{limit.name} was not reported, so it is not known whether it is {limit}")
        elif limit.excess(figure) > 0:
            wrong.append(f"{limit.name} is {figure:.6g}, not {limit}")
    return "; ".join(wrong)
