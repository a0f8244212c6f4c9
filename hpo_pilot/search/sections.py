"""Sections of a search file: objectives, resources, segments, warm start and early stopping."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from hpo_pilot.jobs.resources import MOST_ON_A_GPU
from hpo_pilot.search import limits
from hpo_pilot.search.fields import Amount, Count, Section, ShortSection, StrictFloat, StrictInt, StrictStr, Text
from hpo_pilot.search.mistakes import Mistake
from hpo_pilot.search.parameters import Dimension


class Objective(Section):
    """A figure of merit and its goal."""

    metric: Text = Field("loss", description="Key of the figure of merit in output.json.")
    goal: Literal["minimize", "maximize"] = Field(
        "minimize", description="Whether smaller or larger figures are better."
    )
    reference: Annotated[StrictFloat, Field(allow_inf_nan=False)] | None = Field(
        None,
        description="For several objectives: the figure beyond which a trial adds nothing to the hypervolume. "
        "Default: computed from the first trials.",
    )

    @property
    def sign(self) -> int:
        """+1 to minimize, -1 to maximize: optimizers minimize sign x figure."""
        return 1 if self.goal == "minimize" else -1

    def to_dict(self) -> dict[str, Any]:
        """Returns the objective as in a search file; without `reference` if it has none."""
        own: dict[str, Any] = {"metric": self.metric, "goal": self.goal}
        return own if self.reference is None else {**own, "reference": self.reference}


class _OneOrMore:
    """JSON Schema of a list whose only item may be given without the list."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        several = handler(schema)
        text = "Several objectives: a search for the Pareto front."
        return {"anyOf": [several["items"], {**several, "minItems": 1, "description": text}]}


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


#: One objective or several; a search file may give a single one without a list.
Objectives = Annotated[
    tuple[Objective, ...], Field(max_length=limits.MOST_OBJECTIVES), BeforeValidator(_as_list), _OneOrMore()
]


def objective_mistakes(objectives: Sequence[Objective | None]) -> Iterator[Mistake]:
    """Yields clashes between objectives; paths are those of a search file. None: not valid, reported before."""
    if not objectives:
        yield Mistake(("objective",), "is empty", "give it a value, or leave the key out")
    first: dict[str, int] = {}
    for index, objective in enumerate(objectives):
        if objective is not None and (same := first.setdefault(objective.metric, index)) != index:
            message = f"{objective.metric} is the metric of objective[{same}] too"
            yield Mistake(("objective", index, "metric"), message, "name another figure, or remove one of them")


def known_value_mistakes(count: int, values: Sequence[float | Sequence[float] | None]) -> list[Mistake]:
    """Returns the known results without a figure for each of `count` objectives; paths are a search file's."""
    wanted = "one number" if count == 1 else f"a list of {count} numbers, one for each objective"
    wrong = [
        index
        for index, value in enumerate(values)
        if value is not None and (len(value) != count or count == 1 if isinstance(value, Sequence) else count > 1)
    ]
    return [Mistake(("known", index, "value"), f"must be {wanted}; null: it failed") for index in wrong]


def _without_default(schema: dict[str, Any]) -> None:
    """Removes the default from a field's schema, where it depends on other fields."""
    del schema["default"]


def _gpus(value: float) -> float:
    """Accepts whole numbers, and shares of a GPU with two decimals or more."""
    if isinstance(value, float) and not any(abs(value - 1 / n) <= _ROUNDED for n in range(2, MOST_ON_A_GPU + 1)):
        raise ValueError(
            f"must be a whole number, or a share of one GPU (0.5, 0.33, 0.25, 0.2, 0.17, 0.14 or 0.125), not {value:g}"
        )
    return value


_ROUNDED = 0.0051  # 0.33 for 1/3, 0.13 for 1/8


class Resources(Section):
    """Resources of one job."""

    nodes: Count = Field(1, le=limits.MOST_NODES, description="Nodes per job.")
    gpus_per_node: Annotated[StrictInt | StrictFloat, Field(ge=0, le=limits.MOST_PER_NODE), AfterValidator(_gpus)] = (
        Field(
            0,
            description="GPUs per node; 0.5, 0.33, 0.25, 0.2, 0.17, 0.14 or 0.125: a share of one GPU, for jobs of one "
            "process on one node.",
        )
    )
    ranks_per_node: Count | None = Field(
        None,
        le=limits.MOST_PER_NODE,
        description="Processes that the site's launcher starts on each node. Default on several nodes: one for each "
        "GPU, or one without GPUs. Default on one node: the command is started once, without a launcher.",
    )
    cores: Count = Field(
        1,
        le=limits.MOST_PER_NODE,
        description="CPU cores per node. Default: one for each rank; with GPUs, the same share of the node's cores at "
        "the site as of its GPUs.",
        json_schema_extra=_without_default,
    )
    memory_mb: Count = Field(
        2000,
        le=limits.MOST_MEMORY_MB,
        description="Memory per node, in MB. Default: 2000; with GPUs, 80% of the same share of the node's memory at "
        "the site as of its GPUs, if that is more.",
        json_schema_extra=_without_default,
    )
    minutes: Amount = Field(
        60, le=limits.MOST_MINUTES, description="Walltime limit of one job, in minutes, for all its trials together."
    )
    trials_per_job: Annotated[StrictInt, Field(ge=1, le=limits.MOST_TRIALS_PER_JOB)] = Field(
        1,
        description="Number of trials that one job runs, one after another, on one slot of a machine; each of k folds "
        "has a separate job. Trials that the job's time does not allow are submitted again.",
    )

    @property
    def gpu_share(self) -> int:
        """Number of such jobs on one GPU; 1: the job shares none."""
        return round(1 / self.gpus_per_node) if 0 < self.gpus_per_node < 1 else 1

    @property
    def whole_gpus(self) -> int:
        """GPUs that the job sees on each node; 1 for a share."""
        return math.ceil(self.gpus_per_node)

    @property
    def gpus(self) -> float:
        """GPUs of the whole job; a share counts as such."""
        return self.nodes * self.whole_gpus / self.gpu_share if self.gpu_share > 1 else self.nodes * self.whole_gpus

    @property
    def all_cores(self) -> int:
        """CPU cores of the whole job."""
        return self.nodes * self.cores

    @property
    def ranks(self) -> int:
        """Number of processes that the launcher starts on each node; 0: no launcher, the command is started once."""
        if self.ranks_per_node is not None:
            return self.ranks_per_node
        return (self.whole_gpus or 1) if self.nodes > 1 else 0


#: A local part that begins with a letter or digit, so that no address is an option of sendmail, and a domain.
_MAILBOX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}@[A-Za-z0-9][A-Za-z0-9-]{0,62}(?:\.[A-Za-z0-9-]{1,63})+")

_Event = Literal["done", "failed", "stalled"]


class Notify(Section):
    """Messages about events of the search, by a webhook, e-mail or both; `hpo-pilot manual service` has an example."""

    url: Text | None = Field(
        None,
        max_length=2000,
        description="Web address that gets a POST request with JSON; only its host is ever shown.",
    )
    email: Text | None = Field(None, max_length=254, description="E-mail address; needs a sendmail program.")
    on: tuple[_Event, ...] = Field(
        ("done", "failed", "stalled"),
        min_length=1,
        max_length=3,
        description="The events. stalled: nothing finished for three usual run times.",
    )

    def _mistakes(self) -> Iterator[Mistake]:
        if self.url is None and self.email is None:
            yield Mistake((), "names no receiver", "give it a url or an email")
        if self.url is not None and (wrong := _address_mistake(self.url)):
            yield Mistake(("url",), *wrong)
        if self.email is not None and not _MAILBOX.fullmatch(self.email):
            yield Mistake(("email",), "is not one e-mail address", "as in jane.doe@example.org")

    def shown(self) -> dict[str, Any]:
        """Returns the section for readers: path and query of a webhook's address are often its password."""
        parts = urlsplit(self.url or "")
        return self.model_dump(mode="json") | {"url": self.url and f"{parts.scheme}://{parts.netloc}/***"}


def _address_mistake(url: str) -> tuple[str, str] | None:
    """Returns what is wrong with the address of a webhook, and the remedy; never the address itself."""
    wanted = "as in https://hooks.example.org/services/T0/B0"
    if not re.fullmatch(r"[!-~]+", url):
        return "has a space or a character that addresses do not have", f"encode it, {wanted}"
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_host = False
    if not has_host or parts.scheme not in ("http", "https"):
        return "is not a web address", f"begin with https:// or http:// and a host, {wanted}"
    if "@" in parts.netloc:
        return "has a user or password before its host", "use the address with a token that the receiver gives out"
    return None


#: Longest name of a search, also of a segment's search, which is named `<search>-<segment>`.
LONGEST_NAME = 50


class Segment(Section):
    """Settings of one segment that differ from the search."""

    inputs: tuple[Text, ...] | None = Field(
        None,
        max_length=limits.MOST_INPUTS,
        description="This segment's inputs, in place of payload.inputs. Default: payload.inputs.",
    )
    space: dict[str, Dimension] | None = Field(
        None,
        min_length=1,
        max_length=limits.MOST_PARAMETERS,
        description="This segment's parameters, in place of the common space. Default: the common space.",
    )


def _by_name(value: Any) -> Any:
    """Reads a list of names as segments that differ only in their names."""
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        return {name: {} for name in value}
    return value


_Segments = Annotated[dict[Text, Segment], Field(min_length=1, max_length=limits.MOST_SEGMENTS)]
_Names = Annotated[
    list[Text], Field(min_length=1, max_length=limits.MOST_SEGMENTS, json_schema_extra={"uniqueItems": True})
]

#: Segments by name, in the order of the file.
Segments = Annotated[_Segments, BeforeValidator(_by_name, json_schema_input_type=_Names | _Segments)]


def segment_search_name(search: str, segment: str) -> str:
    """Returns the name of a segment's search; '-' replaces characters that names cannot have."""
    return f"{search}-{re.sub(r'[^A-Za-z0-9_-]', '-', segment)}"


#: Largest number of earlier searches for `warm_start`.
MOST_SOURCES = 10

_SEARCH_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_Source = Annotated[StrictStr, Field(min_length=1, max_length=1000)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


#: The names of earlier searches and the paths of result files; one alone may stand without a list.
WarmStart = Annotated[
    tuple[_Source, ...],
    Field(max_length=MOST_SOURCES),
    BeforeValidator(_listed, json_schema_input_type=_Source | Annotated[list[_Source], Field(max_length=MOST_SOURCES)]),
    Field(
        description="Earlier searches to learn from: their names, or paths of files that `hpo-pilot export` wrote. "
        "Their results are copied when this search is registered; its own results count more."
    ),
]


def is_result_file(source: str) -> bool:
    """Returns whether a `warm_start` entry is the path of a file; else it is the name of a search."""
    return _SEARCH_NAME.fullmatch(source) is None


def warm_start_mistakes(name: str, sources: Sequence[str]) -> Iterator[Mistake]:
    """Yields mistakes in `warm_start` of the search `name`; paths are those of a search file."""
    for index, source in enumerate(sources):
        if source == name:
            yield Mistake(("warm_start", index), "is this search itself", "give its own results as `known`")
        elif source in sources[:index]:
            yield Mistake(("warm_start", index), f"names {source!r} a second time", "remove one of the two")


_Step = Annotated[StrictInt, Field(ge=1, le=2**53)]
_Seconds = Annotated[StrictFloat, Field(gt=0, le=limits.MOST_REPORT_SECONDS, allow_inf_nan=False)]

#: Settings of one method only.
_OF_ASHA = ("min_steps", "max_steps", "eta", "brackets")
_OF_MEDIAN = ("warmup_steps",)

#: Default of `warmup_trials` for the median rule.
_WARMUP_TRIALS = 5
_ETA = 3

#: Default of `report_seconds`: at least these seconds, and more if all jobs together would exceed this report rate.
_REPORT_SECONDS = 0.5
_REPORTS_A_SECOND = 100.0


class EarlyStopping(ShortSection):
    """Stops trials with bad intermediate values before their end."""

    short = ("method", str, {"enum": ["none", "median", "asha"], "description": "The method's name alone."})

    method: Literal["none", "median", "asha"] = Field(
        "none",
        description="none: every trial runs to its end. median: a trial clearly worse than the median of the others at "
        "the same step is stopped. asha: at certain steps only the best share of the trials continues.",
    )
    metric: Text | None = Field(
        None, description="Metric of the objective that decides. Default: the objective; required if there are several."
    )
    min_steps: _Step | None = Field(
        None, description="asha: first step at which trials are compared. Default: max_steps / eta^2, or 1."
    )
    max_steps: _Step | None = Field(
        None, description="asha: steps of a whole training; no trial is stopped there or later. Default: not known."
    )
    eta: Annotated[StrictInt, Field(ge=2, le=100)] | None = Field(
        None,
        description="asha: about one trial in eta continues, and comparison steps grow by this factor. Default: 3.",
    )
    brackets: Annotated[StrictInt, Field(ge=1, le=10)] | None = Field(
        None,
        description="asha: number of brackets that the trials are distributed over; the first comparison of each "
        "bracket is eta times later than that of the one before. Use several if early figures say little. Default: 1.",
    )
    warmup_steps: Annotated[StrictInt, Field(ge=0, le=2**53)] | None = Field(
        None, description="median: no trial is stopped before this step. Default: 1."
    )
    warmup_trials: Annotated[StrictInt, Field(ge=1, le=limits.MOST_TRIALS)] | None = Field(
        None,
        description="Number of trials that must reach a step before one is stopped there. Default: 5 for median, eta "
        "for asha.",
    )
    folds: Annotated[StrictInt, Field(ge=1, le=limits.MOST_FOLDS)] | None = Field(
        None,
        description="Number of folds of a trial that must reach a step before their mean is compared there. Default: "
        "half of them, or all that have begun if fewer.",
    )
    report_seconds: _Seconds | None = Field(
        None,
        description="Seconds between two reports of a job with new values. Default: 0.5, or more if all jobs together "
        "would send more than 100 reports a second. Pilots have a shortest interval of their own.",
    )

    def _mistakes(self) -> Iterator[Mistake]:
        foreign = {"none": (*_OF_ASHA, *_OF_MEDIAN), "median": _OF_ASHA, "asha": _OF_MEDIAN}[self.method]
        wrong = [key for key in foreign if getattr(self, key) is not None]
        yield from (Mistake((key,), *self._not_its_own(key)) for key in wrong)
        if not wrong and self.model_fields_set and "method" not in self.model_fields_set:
            yield Mistake((), "has settings and no method: it stops nothing", "add method: asha, or median")
        if self.max_steps is not None and self.min_steps is not None and self.min_steps >= self.max_steps:
            message = f"is {self.min_steps}, and a whole training has {self.max_steps} steps (max_steps)"
            yield Mistake(("min_steps",), message, f"use {max(1, self.max_steps // self.reduction)} or so")

    def _not_its_own(self, key: str) -> tuple[str, str]:
        """Returns message and remedy for a setting of another method."""
        other = "asha" if key in _OF_ASHA else "median"
        if "method" not in self.model_fields_set:
            return f"needs method {other}", f"add method: {other}"
        return f"is not a setting of method {self.method}", f"leave it out, or use method: {other}"

    @property
    def is_on(self) -> bool:
        """True if trials can be stopped early."""
        return self.method != "none"

    @property
    def reduction(self) -> int:
        """asha: one trial in this number continues."""
        return self.eta or _ETA

    @property
    def first_rung(self) -> int:
        """asha: first step at which trials are compared."""
        if self.min_steps is not None:
            return self.min_steps
        return max(1, self.max_steps // self.reduction**2) if self.max_steps is not None else 1

    @property
    def trials_needed(self) -> int:
        """Number of trials that must reach a step before one is stopped there."""
        return self.warmup_trials or (self.reduction if self.method == "asha" else _WARMUP_TRIALS)

    def folds_needed(self, k: int) -> int:
        """Returns the number of folds, out of `k`, that must reach a step before the trial is judged there."""
        return min(k, self.folds or (k + 1) // 2)

    def seconds_between_reports(self, jobs: int) -> float:
        """Returns the seconds between two reports of a job if `jobs` jobs run at the same time."""
        return self.report_seconds or max(_REPORT_SECONDS, jobs / _REPORTS_A_SECOND)


def early_stopping_mistakes(
    early: EarlyStopping, *, trials_per_job: int, folds: int, metrics: Sequence[str]
) -> Iterator[Mistake]:
    """Yields settings that clash with the rest of a search; paths are those of a search file.

    Args:
        early: the settings.
        trials_per_job: `resources.trials_per_job`.
        folds: `folds.k`.
        metrics: metrics of the objectives; empty: not known.
    """
    if not early.is_on:
        return
    if trials_per_job > 1:
        message = f"needs jobs of one trial each, and resources.trials_per_job is {trials_per_job}"
        hint = "remove one of the two: PanDA can kill a job, not one of its points"
        yield Mistake(("early_stopping", "method"), message, hint)
    if early.folds is not None and early.folds > folds:
        message = f"is {early.folds}, and a trial has {folds} (folds)"
        yield Mistake(("early_stopping", "folds"), message, f"use {folds}")
    if early.metric is None and len(metrics) > 1:
        message = f"must name the figure that decides whether a trial continues: there are {len(metrics)} objectives"
        yield Mistake(("early_stopping",), message, f"add metric: {metrics[0]}")
    elif early.metric is not None and metrics and early.metric not in metrics:
        message = f"is {early.metric!r}, which is not an objective of this search"
        yield Mistake(("early_stopping", "metric"), message, f"there is {', '.join(metrics)}")
