"""Whether, and by which rule, hopeless trials are stopped before their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from hpo_pilot.search import limits
from hpo_pilot.search.misfit import Misfit, MisfitError
from hpo_pilot.search.point import StrictFloat, StrictInt, StrictStr
from hpo_pilot.search.section import Section

_Step = Annotated[StrictInt, Field(ge=1, le=2**53)]
_Seconds = Annotated[StrictFloat, Field(gt=0, le=limits.MOST_REPORT_SECONDS, allow_inf_nan=False)]

#: What only one of the rules knows.
_OF_ASHA = ("min_steps", "max_steps", "eta", "brackets")
_OF_MEDIAN = ("warmup_steps",)

#: Trials with figures at a step, before any is stopped there, where the file does not say: for the median rule.
_WARMUP_TRIALS = 5
_ETA = 3

#: The shortest pause between two reports of a job, in seconds, where the file does not say, and how many reports a
#: second all jobs of a search may make together then.
_REPORT_SECONDS = 2.0
_REPORTS_A_SECOND = 100.0


class EarlyStopping(Section):
    """Whether hopeless trials are stopped before their end, by the values that they report while they run."""

    method: Literal["none", "median", "asha"] = Field(
        "none",
        description="none: every trial runs to its end. median: one that is clearly worse than the median of the "
        "others at the same step is stopped. asha: of those that come to certain steps, the best share goes on.",
    )
    metric: Annotated[StrictStr, Field(min_length=1)] | None = Field(
        None,
        description="The objective that decides. Default: the objective; needed where there are several.",
    )
    min_steps: _Step | None = Field(
        None, description="asha: the first step at which trials are compared. Default: max_steps / eta^2, or 1."
    )
    max_steps: _Step | None = Field(
        None,
        description="asha: the steps of a whole training; none is stopped there or beyond. Default: not known.",
    )
    eta: Annotated[StrictInt, Field(ge=2, le=100)] | None = Field(
        None,
        description="asha: about one in so many goes on, and the steps of comparison grow by this factor. Default: 3.",
    )
    brackets: Annotated[StrictInt, Field(ge=1, le=10)] | None = Field(
        None,
        description="asha: the trials take turns in so many brackets; each is first compared eta times later than the "
        "one before. More of them where early figures tell little. Default: 1.",
    )
    warmup_steps: Annotated[StrictInt, Field(ge=0, le=2**53)] | None = Field(
        None, description="median: no trial is stopped before it has come to this step. Default: 1."
    )
    warmup_trials: Annotated[StrictInt, Field(ge=1, le=limits.MOST_TRIALS)] | None = Field(
        None,
        description="So many trials must have come to a step before any is stopped there. Default: 5 for median, eta "
        "for asha.",
    )
    folds: Annotated[StrictInt, Field(ge=1, le=limits.MOST_FOLDS)] | None = Field(
        None,
        description="So many folds of a trial must have come to a step before it is judged there by their mean. "
        "Default: half of them, or those that have begun where these are fewer.",
    )
    report_seconds: _Seconds | None = Field(
        None,
        description="The pause between two reports of a job that has new values. Default: 2, more for searches so "
        "wide that their jobs would make more than 100 reports a second. Pilots have a shortest pause of their own.",
    )

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"method": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> EarlyStopping:
        foreign = {"none": (*_OF_ASHA, *_OF_MEDIAN), "median": _OF_ASHA, "asha": _OF_MEDIAN}[self.method]
        misfits = [Misfit((key,), *self._not_its_own(key)) for key in foreign if getattr(self, key) is not None]
        if not misfits and self.model_fields_set and "method" not in self.model_fields_set:
            misfits.append(Misfit((), "has settings and no method: it stops nothing", "add method: asha, or median"))
        if self.max_steps is not None and self.min_steps is not None and self.min_steps >= self.max_steps:
            message = f"is {self.min_steps}, and a whole training has {self.max_steps} steps (max_steps)"
            misfits.append(Misfit(("min_steps",), message, f"use {max(1, self.max_steps // self.reduction)} or so"))
        if misfits:
            raise MisfitError(misfits)
        return self

    def _not_its_own(self, key: str) -> tuple[str, str]:
        """What is wrong with a setting of another method, and what to do."""
        other = "asha" if key in _OF_ASHA else "median"
        if "method" not in self.model_fields_set:
            return f"needs method {other}", f"add method: {other}"
        return f"is no setting of method {self.method}", f"leave it out, or use method: {other}"

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        short = {"enum": ["none", "median", "asha"], "description": "The method's name alone."}
        return {"anyOf": [short, handler(schema)]}

    @property
    def is_on(self) -> bool:
        """Whether any trial is ever stopped."""
        return self.method != "none"

    @property
    def reduction(self) -> int:
        """asha: one in so many goes on."""
        return self.eta or _ETA

    @property
    def first_rung(self) -> int:
        """asha: the first step of comparison."""
        if self.min_steps is not None:
            return self.min_steps
        return max(1, self.max_steps // self.reduction**2) if self.max_steps is not None else 1

    @property
    def trials_needed(self) -> int:
        """How many trials must have come to a step before any is stopped there."""
        return self.warmup_trials or (self.reduction if self.method == "asha" else _WARMUP_TRIALS)

    def folds_needed(self, k: int) -> int:
        """How many of `k` folds must have come to a step before a trial is judged there."""
        return min(k, self.folds or (k + 1) // 2)

    def seconds_between_reports(self, jobs: int) -> float:
        """The pause between two reports of one of `jobs` jobs that run side by side."""
        return self.report_seconds or max(_REPORT_SECONDS, jobs / _REPORTS_A_SECOND)


def early_stopping_misfits(
    early: EarlyStopping, *, trials_per_job: int, folds: int, metrics: Sequence[str]
) -> list[Misfit]:
    """What does not go with the rest of a search; paths are those of a search file.

    Args:
        early: the settings.
        trials_per_job: `resources.trials_per_job`.
        folds: `folds.k`.
        metrics: of the objectives; empty: not known.
    """
    misfits: list[Misfit] = []
    if not early.is_on:
        return misfits
    if trials_per_job > 1:
        message = f"needs jobs of one trial each, and resources.trials_per_job is {trials_per_job}"
        hint = "leave one of the two out: PanDA can kill a job, not one of its points"
        misfits.append(Misfit(("early_stopping", "method"), message, hint))
    if early.folds is not None and early.folds > folds:
        misfits.append(
            Misfit(("early_stopping", "folds"), f"is {early.folds}, and a trial has {folds} (folds)", f"use {folds}")
        )
    if early.metric is None and len(metrics) > 1:
        message = f"must say which figure decides whether a trial goes on, for there are {len(metrics)} objectives"
        misfits.append(Misfit(("early_stopping",), message, f"add metric: {metrics[0]}"))
    elif early.metric is not None and metrics and early.metric not in metrics:
        message = f"is {early.metric!r}, which is no objective of this search"
        misfits.append(Misfit(("early_stopping", "metric"), message, f"there is {', '.join(metrics)}"))
    return misfits
