"""A search: the content of a search file as frozen values.

`schemas/search.json` is generated from these models. They have all defaults and limits of the search file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictBool, ValidationError, field_serializer, field_validator

from hpo_pilot.jobs import JobNeeds
from hpo_pilot.jobs.resources import gpu_count
from hpo_pilot.jobs.results import MEASURES
from hpo_pilot.search import limits
from hpo_pilot.search.fidelity import Fidelity, Levels, fidelity_mistakes
from hpo_pilot.search.fields import (
    Amount,
    Count,
    Scalar,
    Section,
    ShortSection,
    StrictFloat,
    StrictInt,
    StrictStr,
    Text,
)
from hpo_pilot.search.measured_limits import LimitName, LimitText, MeasuredLimit, measured_limit
from hpo_pilot.search.mistakes import (
    NAME_PATTERN,
    QUEUE_PATTERN,
    QUEUES_PATTERN,
    Mistake,
    MistakeError,
    others_than_default,
)
from hpo_pilot.search.parameters import Dimension
from hpo_pilot.search.payload import Payload
from hpo_pilot.search.prior import Prior, prior_mistakes
from hpo_pilot.search.promotion import mean_share
from hpo_pilot.search.sections import (
    LONGEST_NAME,
    EarlyStopping,
    Notify,
    Objective,
    Objectives,
    Resources,
    Segments,
    WarmStart,
    early_stopping_mistakes,
    known_value_mistakes,
    objective_mistakes,
    segment_search_name,
    warm_start_mistakes,
)
from hpo_pilot.search.space import SearchSpace
from hpo_pilot.search.trials import planned_trials
from hpo_pilot.search.values import point_key

_Figure = Annotated[StrictFloat, Field(allow_inf_nan=False)]
_Queue = Annotated[StrictStr, Field(pattern=QUEUE_PATTERN)]
_Queues = Annotated[StrictStr, Field(pattern=QUEUES_PATTERN)]


class OptimizerChoice(ShortSection):
    """The optimizer's name and settings."""

    short = ("name", str, {"type": "string", "minLength": 1, "description": "The optimizer's name alone."})
    model_config = ConfigDict(frozen=True, extra="allow")

    name: Text = Field(
        description="auto, bayesian, evolutionary, cma, random, grid, optuna, gest, or one of another package."
    )

    @property
    def settings(self) -> dict[str, Any]:
        """All keys except `name`. The optimizer checks them."""
        return dict(self.__pydantic_extra__ or {})


class Budget(Section):
    """The end of the search, and its number of parallel trials."""

    trials: Count = Field(64, le=limits.MOST_TRIALS, description="Number of trials in all; with `fidelity`, of points.")
    parallel: Count = Field(
        8,
        le=limits.MOST_PARALLEL,
        description="Number of trials at the same time; resources.trials_per_job puts several of them into one job.",
    )
    queued: Annotated[StrictInt, Field(ge=0, le=limits.MOST_PARALLEL)] | Literal["auto"] = Field(
        "auto",
        description="Number of further trials that wait at the server, so that a free slot gets work at once. "
        "auto: computed from the measured hand-over time.",
    )
    hours: Amount | None = Field(
        None, le=limits.MOST_HOURS, description="No new trial starts later than this number of hours after the start."
    )
    gpu_hours: Amount | None = Field(
        None,
        le=limits.MOST_MACHINE_HOURS,
        description="Limit of the GPU-hours of all jobs, including repeated attempts. A trial starts only if it should "
        "fit, judging by past run times. Running trials are stopped when the limit is reached.",
    )
    core_hours: Amount | None = Field(
        None, le=limits.MOST_MACHINE_HOURS, description="The same limit for CPU core-hours."
    )
    fidelity: Amount | None = Field(
        None,
        le=limits.MOST_FIDELITY,
        description="Limit of the sum of the levels that all trials are trained to, such as epochs, with `fidelity`. A "
        "trial that goes on from 9 to 27 takes 18 of it; 27, once its job reports that it found no checkpoint and "
        "trained from the start. Confirmation runs take nothing.",
    )
    failures: Count = Field(
        10, le=limits.MOST_TRIALS, description="The search stops after this number of failed trials in a row."
    )
    refill: Annotated[StrictFloat, Field(ge=0, le=1)] | Literal["auto"] = Field(
        "auto",
        description="Share of `parallel` that must be free before new trials are submitted. "
        "auto: 0 on the embedded PanDA server, 0.25 on other servers, where each task takes time for brokerage.",
    )


class Confirm(Section):
    """Runs the best points again at the end with new seeds, because the best of many noisy results is partly luck."""

    top: Annotated[StrictInt, Field(ge=0, le=limits.MOST_TRIALS)] = Field(
        0, description="Number of best points to run again; 0: none."
    )
    repeats: Count = Field(3, le=limits.MOST_REPEATS, description="Number of repetitions of each.")


class Folds(ShortSection):
    """k-fold cross-validation: k jobs per trial, with mean and standard deviation of their figures."""

    short = ("k", int, {"type": "integer", "minimum": 1, "maximum": limits.MOST_FOLDS, "description": "k alone."})

    k: Count = Field(1, le=limits.MOST_FOLDS, description="Number of folds; each is a separate job.")
    require: Count | None = Field(
        None, le=limits.MOST_FOLDS, description="A trial with fewer successful folds fails. Default: all k."
    )

    def _mistakes(self) -> Iterator[Mistake]:
        if self.require is not None and self.require > self.k:
            message = f"is {self.require}, and a trial has {self.k} folds (k)"
            yield Mistake(("require",), message, f"use {self.k} or less")

    @property
    def needed(self) -> int:
        """Number of successful folds that a trial needs."""
        return self.k if self.require is None else self.require


#: The profiles that are not of a certain site: this machine, and any site of a PanDA server.
BUILT_IN_SITES = ("local", "grid")


class SiteChoice(Section):
    """The site of the jobs."""

    profile: _Queue = Field(
        "local",
        description="The site profile: local is this machine, grid is any site of a PanDA server; "
        "`hpo-pilot sites` lists the others, whose jobs go to no pilot with a different profile.",
    )
    queue: _Queues | None = Field(
        None,
        description="The PanDA queue, or several, separated by commas. Default: LOCAL on the embedded server; PanDA's "
        "choice on other servers.",
    )
    exclude: tuple[_Queue, ...] = Field(
        (), max_length=limits.MOST_NAMES, description="PanDA queues that the jobs must not use."
    )
    architecture: Text | None = Field(
        None, description="CPU and GPU required, in the form of prun --architecture: '@el9#x86_64&nvidia'."
    )

    @property
    def named(self) -> str | None:
        """The profile, if it is one of a certain site."""
        return None if self.profile in BUILT_IN_SITES else self.profile

    @field_validator("architecture")
    @classmethod
    def _readable(cls, text: str | None) -> str | None:
        if text and "{" in text:
            try:
                json.loads(text)
            except ValueError as error:
                raise MistakeError([Mistake((), f"has a brace and is not JSON: {error}", "quote its keys")]) from error
        return text


_WEB_ADDRESS = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(/[A-Za-z0-9._~/-]*)?")


class PandaOptions(Section):
    """Settings of the PanDA tasks."""

    label: Text = Field("user", description="prodSourceLabel of the tasks. PanDA stores results only for 'user'.")
    vo: Text | None = Field(None, description="Virtual organization. Default: the user's at that server.")
    working_group: Text | None = Field(None, description="Working group that the jobs are charged to.")
    official: StrictBool = Field(
        False,
        description="The outputs belong to the working group, as with prun --official: their names begin with "
        "group.<working_group>, and the user needs its production role.",
    )
    priority: StrictInt | None = Field(
        None,
        ge=-limits.MOST_PRIORITY,
        le=limits.MOST_PRIORITY,
        description="Task priority. Default: the server's for users.",
    )
    attempts: Count = Field(
        3, le=limits.MOST_ATTEMPTS, description="Largest number of attempts of a job that the infrastructure loses."
    )
    jobs_per_task: Annotated[Count, Field(le=limits.MOST_JOBS_PER_TASK)] | Literal["auto"] = Field(
        "auto",
        description="Largest number of jobs in one task. auto: 10 if the server runs the first 10 jobs of a task as "
        "scouts and holds the others until these have ended, as ATLAS's does; else as many as fit. The folds of a "
        "trial stay in one task.",
    )
    monitor: Text | None = Field(
        None,
        description="Address of the BigPanDA monitor, for links to tasks. Default: PANDAMON_URL of the environment, "
        "else the monitor known for the server.",
    )

    def _mistakes(self) -> Iterator[Mistake]:
        if self.official and self.working_group is None:
            yield Mistake(("official",), "outputs of a working group need one", "name it under panda.working_group")
        if self.monitor is not None and not _WEB_ADDRESS.fullmatch(self.monitor):
            yield Mistake(("monitor",), "is not the address of a web page", "as in https://panda-doma.cern.ch")


class KnownResult(Section):
    """A result from before this search. The optimizer learns from it, and it does not count as a trial."""

    point: dict[str, Scalar] = Field(description="The point.")
    value: _Figure | Annotated[tuple[_Figure, ...], Field(min_length=2, max_length=limits.MOST_OBJECTIVES)] | None = (
        Field(
            description="Its figure of merit as the payload reports it, or a list with one for each objective; null: "
            "the point failed."
        )
    )

    @property
    def figures(self) -> tuple[float, ...] | None:
        """One figure for each objective; None: the point failed."""
        return (self.value,) if isinstance(self.value, float) else self.value


class Search(Section):
    """A hyper-parameter search, complete and checked."""

    name: Annotated[
        StrictStr,
        Field(alias="search", pattern=NAME_PATTERN, description="Name of the search; commands find it by this name."),
    ]
    objectives: Objectives = Field(
        (Objective(),),
        alias="objective",
        description="The figure of merit to optimize, or a list of several.",
        json_schema_extra={"default": Objective().to_dict()},
    )
    space_dimensions: dict[str, Dimension] = Field(
        alias="space",
        min_length=1,
        max_length=limits.MOST_PARAMETERS,
        description="The hyper-parameters by name, with their domains.",
    )
    constraints: tuple[Text, ...] = Field(
        (),
        max_length=limits.MOST_CONSTRAINTS,
        description="Expressions of the parameters that every point satisfies, as 'layers * width <= 1024'.",
    )
    limit_texts: dict[LimitName, LimitText] = Field(
        {},
        alias="limits",
        max_length=limits.MOST_MEASURED_LIMITS,
        description="Limits on measured figures by name, as '<= 16000': metrics that the payload or the pilot reports, "
        "and `seconds`, the run time. A trial that is not known to be within all of them is never the best.",
    )
    prior: dict[str, Prior] = Field(
        {}, description="Beliefs on where good values are, by parameter; the results overcome a wrong one."
    )
    start: tuple[dict[str, Scalar], ...] = Field((), max_length=limits.MOST_POINTS, description="Points to try first.")
    known: tuple[KnownResult, ...] = Field(
        (),
        max_length=limits.MOST_POINTS,
        description="Earlier results: points with values. The optimizer learns from them and does not try them again.",
    )
    warm_start: WarmStart = ()
    optimizer: OptimizerChoice = OptimizerChoice(name="auto")
    budget: Budget = Budget()
    confirm: Confirm = Confirm()
    folds: Folds = Folds()
    seed: Annotated[StrictInt, Field(ge=0, lt=2**32)] = Field(0, description="The same seed gives the same points.")
    early_stopping: EarlyStopping = EarlyStopping()
    fidelity: Fidelity = Field(
        {},
        description="Levels of the training, by the name that the payload knows them by: every point is trained to the "
        "lowest level, and the best go on to the next. As in epochs: {low: 1, high: 81}.",
    )
    payload: Payload
    resources: Resources = Resources()
    site: SiteChoice = SiteChoice()
    panda: PandaOptions = PandaOptions()
    notify: Notify | None = None
    segments: Segments | None = Field(
        None,
        description="One search for each segment, named <search>-<segment>: a list of names, or names with their own "
        "inputs or space. %SEGMENT_NAME in payload.command is replaced by the segment's name.",
    )

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    def _mistakes(self) -> Iterable[Mistake]:
        sections = {field.alias or name: getattr(self, name) for name, field in type(self).model_fields.items()}
        mistakes = [
            *start_mistakes(self.space, self.start),
            *objective_mistakes(self.objectives),
            *mistakes_across(sections | {"space": self.space}),
        ]
        return mistakes or segment_mistakes(self)

    @field_serializer("objectives")
    def _objective_or_list(self, objectives: tuple[Objective, ...]) -> dict[str, Any] | list[dict[str, Any]]:
        listed = [objective.to_dict() for objective in objectives]
        return listed if len(listed) > 1 else listed[0]

    @property
    def objective(self) -> Objective:
        """The objective, or the first of several."""
        return self.objectives[0]

    @property
    def planned_trials(self) -> int:
        """Number of trials that there will be, confirmation runs included."""
        return planned_trials(
            self.budget.trials,
            len(self.objectives),
            self.confirm.top,
            self.confirm.repeats,
            self.levels,
            self.budget.fidelity,
        )

    @property
    def mean_job(self) -> float:
        """Expected mean run time of a job, as a share of the longest: with levels, most jobs are shorter."""
        if (levels := self.levels) is None:
            return 1.0
        return mean_share(levels.planned(self.budget.trials, self.budget.fidelity), levels.values)

    @property
    def levels(self) -> Levels | None:
        """The levels of the training; None: every trial is a whole training."""
        return next(iter(self.fidelity.values()), None)

    @property
    def level_name(self) -> str:
        """Name of the levels, as the payload knows them; empty: there are none."""
        return next(iter(self.fidelity), "")

    @cached_property
    def space(self) -> SearchSpace:
        """The space with its constraints."""
        return SearchSpace(dimensions=self.space_dimensions, constraints=self.constraints, prior=self.prior)

    @cached_property
    def measured_limits(self) -> tuple[MeasuredLimit, ...]:
        """The limits on measured figures."""
        return tuple(measured_limit(name, text) for name, text in self.limit_texts.items())

    @property
    def job_needs(self) -> JobNeeds:
        """The needs of each job."""
        needs, checkpoints = self.resources, bool(self.payload.checkpoint)
        return JobNeeds(
            needs.nodes,
            gpu_count(needs.whole_gpus, needs.gpu_share),
            needs.cores,
            needs.memory_mb,
            needs.minutes,
            needs.ranks,
            checkpoints,
        )

    def payload_point(self, point: Mapping[str, Any], level: float | None = None) -> dict[str, Any]:
        """Returns the content of the payload's input file: a point, with the level of its training if there is one."""
        return self.payload.point.payload_point(point) | dict.fromkeys(self.fidelity, level)

    @property
    def segment(self) -> str | None:
        """Name of the segment that this search belongs to; None for a search without segments or with several."""
        return next(iter(self.segments)) if self.segments and len(self.segments) == 1 else None

    def by_segment(self) -> dict[str, Search]:
        """Returns the search of each segment by segment; empty for a search without segments.

        Raises:
            pydantic.ValidationError: a segment's space clashes with the rest; not possible in a checked search.
        """
        return {name: self._of_segment(name) for name in self.segments or {}}

    def _of_segment(self, name: str) -> Search:
        assert self.segments is not None
        own, whole = self.segments[name], self.to_dict()
        whole |= {"search": segment_search_name(self.name, name), "segments": {name: {}}}
        if own.inputs is not None:
            whole["payload"] |= {"inputs": list(own.inputs)}
        if own.space is not None:
            whole["space"] = {key: domain.model_dump(mode="json") for key, domain in own.space.items()}
        return Search.model_validate(whole)

    def to_dict(self) -> dict[str, Any]:
        """Returns the search as JSON values with the keys of the file; `Search.model_validate` reads it back."""
        whole = self.model_dump(mode="json", by_alias=True)
        if self.budget.fidelity is None:
            del whole["budget"]["fidelity"]
        return {key: value for key, value in whole.items() if value or key not in ("notify", "limits", "fidelity")}

    def shown(self) -> dict[str, Any]:
        """Returns the search as `to_dict` for readers who must not see the secret parts of `notify.url`."""
        return self.to_dict() | ({} if self.notify is None else {"notify": self.notify.shown()})


def mistakes_across(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields mistakes between sections; paths are those of a search file.

    Args:
        sections: valid sections by key; `space` is a `SearchSpace`. What depends on a missing section is not checked.
    """
    space, objectives, known = (sections.get(key, ()) for key in ("space", "objective", "known"))
    payload, confirm, budget, early = (sections.get(key) for key in ("payload", "confirm", "budget", "early_stopping"))
    if isinstance(space, SearchSpace):
        yield from known_mistakes(space, known)
        prior = sections.get("prior", {})
        yield from (wrong.under("prior") for wrong in prior_mistakes(space.dimensions, prior))
        if payload is not None:
            yield from (wrong.under("payload", "point") for wrong in payload.point.mistakes(space.dimensions))
    yield from limit_mistakes(sections.get("limits", {}), [one.metric for one in objectives], payload)
    if payload is not None and payload.result is not None and len(objectives) > 1:
        message = f"is one value, and there are {len(objectives)} objectives"
        yield Mistake(("payload", "result"), message, "write output.json, with all of them")
    if payload is not None and payload.is_none:
        yield from _mistakes_without_payload(sections)
    if "search" in sections:
        yield from warm_start_mistakes(sections["search"], sections.get("warm_start", ()))
    if confirm is not None and budget is not None:
        yield from confirm_mistakes(confirm, budget)
    if objectives:
        yield from known_value_mistakes(len(objectives), [one.value for one in known])
    if early is not None:
        yield from early_stopping_mistakes(
            early,
            trials_per_job=sections["resources"].trials_per_job if "resources" in sections else 1,
            folds=sections["folds"].k if "folds" in sections else early.folds or 1,
            metrics=[objective.metric for objective in objectives],
        )
    yield from fidelity_mistakes(sections)


def _mistakes_without_payload(sections: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields keys that have no meaning in a search without payload; paths are those of a search file."""
    why = "has no meaning with payload: none, whose trials run where clients ask for them"
    for key, only in (("resources", ()), ("site", ()), ("folds", ()), ("budget", ("gpu_hours",))):
        if (section := sections.get(key)) is not None:
            yield from (one.under(key) for one in others_than_default(section, why, only=only))
    for name, segment in (sections.get("segments") or {}).items():
        if segment.inputs is not None:
            yield Mistake(("segments", name, "inputs"), why, "remove it")


def limit_mistakes(texts: Collection[str], metrics: Sequence[str], payload: Payload | None) -> Iterator[Mistake]:
    """Yields limits on figures that are never reported; paths are those of a search file.

    Args:
        texts: the limits, by name.
        metrics: metrics of the objectives.
        payload: the payload; None: not known.
    """
    measured = {"seconds", *(measure.name for measure in MEASURES)}
    for name in texts:
        if name in metrics:
            hint = "limits are for other figures" if len(metrics) == 1 else "its `reference` says which values count"
            yield Mistake(("limits", name), "is an objective of this search", hint, at_key=True)
        elif payload is not None and payload.result is not None and name not in measured:
            message = "is never reported: with payload.result, the payload gives its figure of merit alone"
            yield Mistake(("limits", name), message, "write output.json, with `metrics`", at_key=True)


def start_mistakes(space: SearchSpace, start: Sequence[Mapping[str, Any] | None]) -> Iterator[Mistake]:
    """Yields mistakes in the points to try first; paths are a search file's. None: not a point, reported before."""
    first: dict[str, int] = {}
    for index, point in enumerate(start):
        if point is None:
            continue
        if wrong := space.mistakes(point):
            yield from (mistake.under("start", index) for mistake in wrong)
        elif (same := first.setdefault(point_key(space.canonical(point)), index)) != index:
            yield Mistake(("start", index), f"is the same point as start[{same}]", "remove one of the two")


def known_mistakes(space: SearchSpace, known: Sequence[KnownResult]) -> Iterator[Mistake]:
    """Yields mistakes in the points of known results; paths are those of a search file."""
    for index, result in enumerate(known):
        yield from (mistake.under("known", index, "point") for mistake in space.mistakes(result.point))


def segment_mistakes(search: Search) -> Iterator[Mistake]:
    """Yields mistakes in the segments of a search that is valid otherwise; paths are those of a search file."""
    first: dict[str, str] = {}
    for name, segment in (search.segments or {}).items():
        called = segment_search_name(search.name, name)
        if len(called) > LONGEST_NAME:
            message = f"its search would be called {called!r}, which is longer than {LONGEST_NAME} characters"
            yield Mistake(("segments", name), message, "shorten one of the names", at_key=True)
        elif first.setdefault(called.casefold(), name) != name:
            message = f"its search would have the name of that of {first[called.casefold()]!r}: {called!r}"
            yield Mistake(("segments", name), message, "rename one of the two", at_key=True)
        elif segment.space is not None:
            yield from _own_space_mistakes(search, name, segment.space)


def _own_space_mistakes(search: Search, segment: str, dimensions: Mapping[str, Dimension]) -> Iterator[Mistake]:
    place = ("segments", segment, "space")
    try:
        space = SearchSpace(dimensions=dict(dimensions), constraints=search.constraints)
    except ValidationError as error:
        yield Mistake(place, str(error.errors()[0]["ctx"]["error"]))
        return
    point = (mistake.under("payload", "point") for mistake in search.payload.point.mistakes(dimensions))
    for wrong in (*start_mistakes(space, search.start), *known_mistakes(space, search.known), *point):
        yield Mistake(place, f"does not fit {wrong}")


def confirm_mistakes(confirm: Confirm, budget: Budget) -> Iterator[Mistake]:
    """Yields a mistake in `confirm`, given the budget; the path is that of a search file."""
    if confirm.top > budget.trials:
        message = f"is {confirm.top}, and the search has {budget.trials} trials (budget.trials)"
        yield Mistake(("confirm", "top"), message, f"use {budget.trials} or less")
    elif confirm.top * confirm.repeats > limits.MOST_TRIALS:
        message = f"{confirm.top} trials, {confirm.repeats} times each, are more than {limits.MOST_TRIALS}"
        yield Mistake(("confirm", "repeats"), message, f"use {limits.MOST_TRIALS // confirm.top} or less")


def width_mistakes(budget: Budget, resources: Resources, folds: Folds) -> Iterator[Mistake]:
    """Yields counts that are too large together; paths are those of a search file."""
    per_job, k = resources.trials_per_job, folds.k
    queued = 0 if budget.queued == "auto" else budget.queued
    jobs = -(-(budget.parallel + queued) // per_job) * k
    if jobs > limits.MOST_JOBS_OUT:
        what = "budget.parallel" + (" and budget.queued" if queued else "") + (f" with {k} folds" if k > 1 else "")
        message = f"{what} would have {jobs} jobs submitted at once; the limit is {limits.MOST_JOBS_OUT}"
        most = max(1, limits.MOST_JOBS_OUT // k * per_job - queued)
        hint = f"use {most} or less" if queued < limits.MOST_JOBS_OUT // k else ""
        yield Mistake(("budget", "parallel"), message, hint)
    most_runs = limits.MOST_RUNS_PER_TASK
    if k * per_job > most_runs:
        message = f"{per_job} trials of {k} folds would be submitted together; the limit is {most_runs} folds"
        yield Mistake(("resources", "trials_per_job"), message, f"use {max(1, most_runs // k)}")


def budget_mistakes(budget: Budget, resources: Resources, folds: Folds) -> Iterator[Mistake]:
    """Yields limits too low for one trial that takes all of `resources.minutes`; paths start at a limit."""
    hours = folds.k * resources.minutes / 60 / resources.trials_per_job
    for name, limit, least, unit in (
        ("gpu_hours", budget.gpu_hours, hours * resources.gpus, "GPU-hours"),
        ("core_hours", budget.core_hours, hours * resources.all_cores, "core-hours"),
    ):
        if limit is not None and limit < least:
            message = f"one trial may take {least:.4g} {unit} (resources.minutes): {limit:g} allows no trial"
            yield Mistake((name,), message, f"allow {least:.4g} or more, or fewer resources.minutes")
