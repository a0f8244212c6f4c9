"""Reads search files: checks everything that needs only the file, and keeps line and column of each mistake.

Each section is checked by its own model, and each parameter of the space too, so that a wrong section does not hide
mistakes in the others. Where it is clear what a wrong key or value should be, the check continues with that. Checks
across sections use all valid sections.
"""

from __future__ import annotations

import ast
import copy
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from hpo_pilot.errors import Problem
from hpo_pilot.search.command import command_mistakes
from hpo_pilot.search.fields import Scalar, Text
from hpo_pilot.search.mistakes import FieldPath, Mistake, keys_of, mistakes_of, model_at, unknown_key
from hpo_pilot.search.parameters import DIMENSION, DIMENSION_TYPES, Categorical, Dimension, Integer, Ordinal, Real
from hpo_pilot.search.payload import Payload
from hpo_pilot.search.search import (
    Budget,
    Folds,
    OptimizerChoice,
    Search,
    SiteChoice,
    budget_mistakes,
    mistakes_across,
    start_mistakes,
    width_mistakes,
)
from hpo_pilot.search.sections import EarlyStopping, Objective, Resources, objective_mistakes
from hpo_pilot.search.space import SearchSpace, condition_mistakes, constraint_mistakes, name_mistakes
from hpo_pilot.search.values import is_number, show
from hpo_pilot.search.yaml_document import STR, Document, plain_tag, scalar_value

#: Number of checks of one section: a wrong key may hide a wrong value, which may hide wrong bounds.
_ROUNDS = 4

#: Finite spaces up to this size are counted, to compare them with the budget.
_COUNTABLE = 20_000

#: With more objectives than this, a front does not help to choose a trial.
_COSTLY_OBJECTIVES = 4

#: Programs that start the ranks of a training.
_LAUNCHERS = frozenset({"flux", "horovodrun", "jsrun", "mpiexec", "mpirun", "srun", "torchrun"})

_FIELDS = {field.alias or name: field for name, field in Search.model_fields.items()}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    key: TypeAdapter(cast(Any, Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation))
    for key, field in _FIELDS.items()
    if key not in ("space", "objective")
}
_MODELS: dict[str, type[BaseModel]] = {
    key: model for key, field in _FIELDS.items() if (model := model_at(field.annotation, ())) is not None
}
_MODELS["objective"] = Objective

#: Sections that are lists, and the type of one item.
_ITEMS: dict[str, TypeAdapter[Any]] = {
    "objective": TypeAdapter(Objective),
    "constraints": TypeAdapter(Text),
    "start": TypeAdapter(dict[str, Scalar]),
}

#: Examples of sections, for hints.
_EXAMPLES: dict[object, str] = {
    Objective: "objective: {metric: loss, goal: minimize}",
    OptimizerChoice: "optimizer: bayesian, or optimizer: {name: evolutionary, population: 24}",
}

#: The right place of keys given in a wrong place; keys of several sections are left out.
ELSEWHERE = {
    **{
        key: f"under {section}"
        for section, model in _MODELS.items()
        for key in keys_of(model)
        if sum(key in keys_of(other) for other in _MODELS.values()) == 1
    },
    **dict.fromkeys(_FIELDS, "at the top level"),
}


_Model = TypeVar("_Model", bound=BaseModel)


#: Words in names of metrics that are nearly always maximized; and words that turn their meaning round.
_LARGER_IS_BETTER = frozenset(
    {
        *("accuracy", "acc", "ams", "auc", "auroc", "dice", "efficiency", "f1", "iou", "precision", "purity", "r2"),
        *("recall", "reward", "score", "sensitivity", "significance", "specificity"),
    }
)
_SMALLER_IS_BETTER = frozenset({"error", "err", "inverse", "loss", "minus", "neg", "negative", "one"})

#: A scale over this factor, three decades, is usually meant to be logarithmic.
_DECADES = 1000

_YEAR_MINUTES = 365 * 24 * 60


class SearchFile:
    """A search file with its valid sections, and all mistakes found in it.

    Attributes:
        document: the file's YAML with the places of its values.
        problems: mistakes in the file.
        notes: settings that are allowed but perhaps not intended.
        sections: the valid sections by key, with the defaults of sections that the file does not have. `objective` is
            a tuple, `space` the space with its constraints.
    """

    def __init__(
        self, document: Document, default_resources: Callable[[Resources, SiteChoice], Mapping[str, int]]
    ) -> None:
        """Checks a document; further checks may add problems and notes.

        Args:
            document: the file's YAML.
            default_resources: returns members of `resources` for a file that does not give them.
        """
        self.document = document
        self.problems: list[Problem] = list(document.problems)
        self.notes: list[Problem] = []
        self.sections: dict[str, Any] = {}
        self._given: dict[str, Any] = {}
        if isinstance(document.value, Mapping):
            self._given = self._top_level(dict(document.value))
            self._check_sections()
            self._add_resources(default_resources)
            self._check_across()
        elif not self.problems:
            self.tell(Mistake((), "must be a mapping of search, space, payload and so on, not a list or single value"))

    def section(self, model: type[_Model]) -> _Model | None:
        """Returns the section of a model if it is valid."""
        return next((section for section in self.sections.values() if isinstance(section, model)), None)

    def search(self) -> Search | None:
        """Returns the search; None if there are problems."""
        if self.problems:
            return None
        try:
            return Search.model_validate(self._given)
        except ValidationError as error:
            self.tell(*mistakes_of(error, self._given, Search))
            return None

    def tell(self, *mistakes: Mistake, under: FieldPath = ()) -> None:
        """Adds mistakes to `problems`, without those in values that could not be read."""
        for mistake in mistakes:
            path = under + mistake.path
            if path not in self.document.faulty:
                self.problems.append(self.document.problem(path, mistake.message, mistake.hint, at_key=mistake.at_key))

    def note(self, *notes: Mistake) -> None:
        """Adds notes."""
        self.notes += [self.document.problem(note.path, note.message, note.hint) for note in notes]

    def _top_level(self, data: dict[str, Any]) -> dict[str, Any]:
        """Returns `data` without unknown keys; a misspelt key gets its right name if that is clear."""
        for key in [key for key in data if key not in _FIELDS]:
            mistake = unknown_key(key, list(_FIELDS), data, ELSEWHERE)
            self.tell(mistake)
            value = data.pop(key)
            if mistake.rename is not None:
                self.document.rename((key,), (mistake.rename,))
                data[mistake.rename] = value
        for key, field in _FIELDS.items():
            if field.is_required() and key not in data:
                self.tell(Mistake((key,), "is missing"))
        return data

    def _check_sections(self) -> None:
        self._check_objectives(self._given.get("objective", {}))
        for key in _ADAPTERS:
            if key in self._given:
                self._check_section(key, self._given[key])
            elif not _FIELDS[key].is_required():
                self.sections[key] = _FIELDS[key].get_default(call_default_factory=True)
        if "space" in self._given:
            self._check_space(self._given["space"])

    def _add_resources(self, defaults: Callable[[Resources, SiteChoice], Mapping[str, int]]) -> None:
        resources, site = self.section(Resources), self.section(SiteChoice)
        payload = self.section(Payload)
        if resources is None or site is None or (payload is not None and payload.is_none):
            return
        given = resources.model_fields_set
        added = {name: value for name, value in defaults(resources, site).items() if name not in given}
        self.sections["resources"] = resources.model_copy(update=added)
        self._given["resources"] = {**self._given.get("resources", {}), **added}

    def _check_objectives(self, value: Any) -> None:
        several = isinstance(value, list)
        found = [
            self._validate(_ITEMS["objective"], one, ("objective", index) if several else ("objective",), Objective)
            for index, one in enumerate(value if several else [value])
        ]
        wrong = list(objective_mistakes(found))
        self.tell(*wrong)
        if None in found or wrong:
            return
        self.sections["objective"] = tuple(found)
        if len(found) > _COSTLY_OBJECTIVES:
            message = f"{len(found)} objectives: nearly every trial will be on the front, and the hypervolume is slow"
            self.note(Mistake(("objective",), message, "combine figures that belong together"))
        if len(found) == 1 and found[0].reference is not None:
            place = ("objective", 0, "reference") if several else ("objective", "reference")
            self.note(Mistake(place, "has an effect only with several objectives"))

    def _check_section(self, key: str, value: Any) -> None:
        if key in _ITEMS and isinstance(value, list):
            # Item by item, so that a wrong item does not hide mistakes in others; it becomes None.
            self.sections[key] = [self._validate(_ITEMS[key], item, (key, i), None) for i, item in enumerate(value)]
            return
        section = self._validate(_ADAPTERS[key], value, (key,), _MODELS.get(key))
        if section is not None:
            self.sections[key] = section

    def _validate(
        self, adapter: TypeAdapter[Any], value: Any, path: FieldPath, model: type[BaseModel] | Mapping[str, Any] | None
    ) -> Any:
        """Returns the checked value, corrected where the intention is clear; else None. Records problems."""
        told: set[tuple[FieldPath, str]] = set()
        for _ in range(_ROUNDS):
            try:
                return adapter.validate_python(value)
            except ValidationError as error:
                mistakes = [
                    _with_example(mistake, model, value) for mistake in mistakes_of(error, value, model, ELSEWHERE)
                ]
            self.tell(*(m for m in mistakes if (m.path, m.message) not in told), under=path)
            told |= {(mistake.path, mistake.message) for mistake in mistakes}
            mended = copy.deepcopy(value)
            if not all(self._mend(mended, mistake, path) for mistake in mistakes):
                return None
            value = mended
        return None

    def _mend(self, value: Any, mistake: Mistake, under: FieldPath) -> bool:
        """Corrects `mistake` in `value`; returns False if the intention is not clear."""
        if not mistake.path:
            return False
        *way, last = mistake.path
        for part in way:
            value = value[part]
        if mistake.substitute:
            value[last] = mistake.substitute[0]
            return True
        if not mistake.unknown_key:
            return False
        meant = value.pop(last)
        if meant is None and isinstance(last, str) and ":" in last:  # {low:1} is {"low:1": null}
            text = last.partition(":")[2]
            meant = scalar_value(plain_tag(text), text)
        if mistake.rename is not None and mistake.rename not in value:
            value[mistake.rename] = meant
            self.document.rename((*under, *mistake.path), (*under, *way, mistake.rename))
        return True

    def _check_space(self, value: Any) -> None:
        """Checks the space, its constraints and the start points."""
        if not isinstance(value, Mapping) or not value:
            hint = "as in space: {learning_rate: {type: real, low: 1e-4, high: 0.1, scale: log}}"
            what = "is empty" if not value else f"must be a mapping of parameters, not {show(value)}"
            self.tell(Mistake(("space",), what, hint))
            return
        misnamed = name_mistakes(value)
        self.tell(*misnamed, under=("space",))
        sound: dict[str, Dimension] = {}
        for name, domain in value.items():
            dimension = self._validate(DIMENSION, domain, ("space", name), DIMENSION_TYPES)
            split = _split_tuples(dimension.choices) if isinstance(dimension, Categorical | Ordinal) else []
            self.tell(*split, under=("space", name, "choices"))
            if dimension is not None and not split:
                sound[name] = dimension
        faulty = value.keys() - sound.keys()
        wrong = list(condition_mistakes(sound, faulty))
        self.tell(*wrong, under=("space",))
        constraints = self.sections.get("constraints", ())
        broken = list(constraint_mistakes(constraints, sound, faulty))
        self.tell(*broken, under=("constraints",))
        usable = _usable(sound, {*faulty, *(str(mistake.path[0]) for mistake in [*misnamed, *wrong])})
        # Start points are not compared with wrong constraints, or with constraints on wrong parameters.
        complete = len(usable) == len(value) and not broken and None not in constraints
        if usable:
            space = SearchSpace(dimensions=usable, constraints=constraints if complete else ())
            self._check_start(space, value.keys() - usable.keys())
            if complete:
                self.sections["space"] = space

    def _check_start(self, space: SearchSpace, unusable: Collection[str]) -> None:
        """Checks the start points without their `unusable` parameters."""
        points = [
            None if point is None else {name: value for name, value in point.items() if name not in unusable}
            for point in self.sections.get("start", ())
        ]
        mistakes = start_mistakes(space, points)
        # Two points may differ in what was left out.
        self.tell(*(mistake for mistake in mistakes if not unusable or len(mistake.path) > 2))

    def _check_across(self) -> None:
        self.tell(*mistakes_across(self.sections))
        payload, space, segments = self.section(Payload), self.section(SearchSpace), self.sections.get("segments") or {}
        if payload is not None and space is not None:
            spaces = [segment.space or space.dimensions for segment in segments.values()] or [space.dimensions]
            levels = self.sections.get("fidelity") or {}
            told = dict.fromkeys(found for one in spaces for found in command_mistakes(payload, one, levels))
            for mistake, is_error in told:
                (self.tell if is_error else self.note)(mistake.under("payload"))
        budget, folds, resources = self.section(Budget), self.section(Folds), self.section(Resources)
        if resources is not None:
            self.tell(*rank_mistakes(resources), under=("resources",))
            if budget is not None and folds is not None:
                self.tell(*budget_mistakes(budget, resources, folds), under=("budget",))
                self.tell(*width_mistakes(budget, resources, folds))
        self.note(*_notes(self))


def _with_example(mistake: Mistake, model: object, value: object) -> Mistake:
    """Adds an example as the hint if a whole section or parameter is of a wrong type."""
    if mistake.path or "must be a mapping" not in mistake.message:
        return mistake
    if model is DIMENSION_TYPES:
        return replace(mistake, hint=_domain_hint(value) or mistake.hint)
    example = _EXAMPLES.get(model)
    return replace(mistake, hint=f"as in {example}") if example else mistake


def _domain_hint(value: object) -> str:
    """Returns the domain that a parameter's bare values stand for, as a hint; empty: not clear."""
    try:
        given = ast.literal_eval(value) if isinstance(value, str) else value  # (1, 2), as Python has it
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        given = value
    if isinstance(given, str) and given.startswith("("):  # YAML has split it at a comma
        return "write a tuple as a list, in brackets: [64, 32]"
    listed = list(given) if isinstance(given, list | tuple) else [given]
    values = [one for one in listed if isinstance(one, bool | int | float | str)]
    if not values or len(values) < len(listed):
        return ""
    shown = ", ".join(map(_in_yaml, values))
    numbers = [one for one in values if not isinstance(one, str) and is_number(one)]
    if len(numbers) < len(values):
        return f"as in {{type: categorical, choices: [{shown}]}}"
    choices = f"{{type: ordinal, choices: [{shown}]}}"
    if len(numbers) != 2 or not numbers[0] < numbers[1]:
        return f"as in {choices}"
    kind = "integer" if all(isinstance(one, int) for one in numbers) else "real"
    return f"as in {{type: {kind}, low: {show(numbers[0])}, high: {show(numbers[1])}}}, or {choices}"


def _in_yaml(value: Scalar) -> str:
    """Returns a value as it is written in a list; text in quotes where it would be something else without them."""
    if not isinstance(value, str):
        return show(value)
    return value if re.fullmatch(r"[A-Za-z_][\w. -]*", value) and plain_tag(value) == STR else repr(value)


def _split_tuples(choices: Collection[Scalar]) -> list[Mistake]:
    """Returns the mistake of tuples as in Python among the choices: YAML ends a text at each comma."""
    texts = [choice if isinstance(choice, str) else "" for choice in choices]
    opened = [index for index, text in enumerate(texts) if text.startswith("(") and ")" not in text]
    if not opened or not any(text.endswith(")") and "(" not in text for text in texts[opened[0] :]):
        return []
    hint = "put the whole value in quotes, as in '(64, 32)': the training gets this text"
    return [Mistake((opened[0],), f"{texts[opened[0]]!r} is only a part: YAML splits (64, 32) at the comma", hint)]


def _usable(sound: Mapping[str, Dimension], unusable: set[str]) -> dict[str, Dimension]:
    """Returns the dimensions whose parents, and theirs, are all usable."""
    usable = {name: dimension for name, dimension in sound.items() if name not in unusable}
    while hanging := [name for name, dimension in usable.items() if not dimension.when.keys() <= usable.keys()]:
        for name in hanging:
            del usable[name]
    return usable


def rank_mistakes(resources: Resources) -> Iterator[Mistake]:
    """Yields why the cores or GPUs of a node cannot be divided among its ranks; the path starts at a resource.

    Searches stored before ranks existed may have such resources, so the model accepts them.
    """
    ranks, gpus = resources.ranks, resources.whole_gpus
    if resources.gpu_share > 1 and (ranks > 1 or resources.nodes > 1):
        message = f"a share of a GPU is for one process on one node, not for {resources.nodes} x {max(1, ranks)}"
        yield Mistake(("gpus_per_node",), message, "use a whole number, or nodes: 1 and no ranks_per_node")
    elif gpus and ranks and gpus % ranks:
        fewer = max(count for count in range(1, ranks) if gpus % count == 0)
        message = f"{gpus} GPUs of a node cannot be shared out evenly over {ranks} ranks"
        yield Mistake(("ranks_per_node",), message, f"use {fewer}, or gpus_per_node: {ranks}")
    elif resources.cores < ranks:
        why = "" if resources.ranks_per_node is not None or not gpus else " (one for each GPU)"
        message = f"{ranks} ranks on a node{why} need a core each, and the job has {resources.cores} there"
        yield Mistake(("cores",), message, f"use {ranks} or more: cores are counted per node")


def _notes(file: SearchFile) -> Iterator[Mistake]:
    """Yields notes on settings that are allowed but perhaps not intended."""
    budget, resources, payload = file.section(Budget), file.section(Resources), file.section(Payload)
    yield from _slips(file)
    if budget is not None:
        yield from _size_notes(file.section(SearchSpace), file.sections.get("start", ()), budget.trials)
    if resources is not None and budget is not None and resources.trials_per_job > budget.parallel:
        message = f"a job gets at most {budget.parallel} trials, because no more run at once (budget.parallel)"
        hint = "raise budget.parallel to several times this number"
        yield Mistake(("resources", "trials_per_job"), message, hint)
    if resources is not None and payload is not None:
        yield from _launcher_notes(payload.command, resources)
    stopping, site = file.section(EarlyStopping), file.section(SiteChoice)
    if stopping is not None and stopping.is_on and site is not None and site.profile == "grid":
        message = "only hpo-pilot's own pilots report intermediate values: trials of other pilots are never stopped"
        hint = "start your own pilots there: hpo-pilot pilot --server URL --queue Q"
        yield Mistake(("early_stopping",), message, hint)


def _slips(file: SearchFile) -> Iterator[Mistake]:
    """Yields notes on defaults that few people want: a minimized accuracy, a linear scale over three decades."""
    objectives = file.sections.get("objective", ())
    for index, objective in enumerate(objectives):
        words = set(re.split("[^a-z0-9]+", objective.metric.lower()))
        if "goal" not in objective.model_fields_set and words & _LARGER_IS_BETTER and not words & _SMALLER_IS_BETTER:
            place: FieldPath = ("objective", index, "metric") if len(objectives) > 1 else ("objective", "metric")
            hint = "goal: maximize? `goal: minimize` confirms it"
            yield Mistake(place, f"the search looks for the smallest {objective.metric}", hint)
    space = file.section(SearchSpace)
    for path in sorted(path for path in file.document.spoken if path[:1] == ("space",) and path[2:3] == ("choices",)):
        hint = "write true or false for a boolean, or put the word in quotes"
        yield Mistake(path, "is text here; other readers of YAML make a boolean of it", hint)
    for name, domain in space.dimensions.items() if space is not None else ():
        if not isinstance(domain, Real | Integer) or "scale" in domain.model_fields_set or domain.step is not None:
            continue
        if 0 < _DECADES * domain.low <= domain.high:
            decade = f"nine of ten trials are above {domain.high / 10:g}"
            hint = "scale: log? `scale: linear` confirms it"
            yield Mistake(("space", name), f"{decade}, because its scale is linear", hint)
    budget, resources = file.section(Budget), file.section(Resources)
    if budget is not None and resources is not None and budget.hours is None:
        years = budget.trials * resources.minutes / budget.parallel / _YEAR_MINUTES
        if years > 1:
            at_most = f"at up to {resources.minutes:g} minutes each, {budget.parallel} at once"
            hint = "is the number right? budget.hours would end the search"
            yield Mistake(("budget", "trials"), f"{at_most}, they take {years:.3g} years", hint)


def _size_notes(space: SearchSpace | None, start: Collection[Any], trials: int) -> Iterator[Mistake]:
    """Yields notes on a space with fewer points than the budget has trials, and on too many start points."""
    if space is None:
        return
    countable = space.size <= _COUNTABLE
    if space.size < trials or countable:
        wanted = min(trials, _COUNTABLE + 1)
        points = sum(1 for _ in itertools.islice(space.all_points(), wanted)) if countable else int(space.size)
        if 0 < points < trials:  # no point at all is a mistake in the constraints
            have = f"{'' if countable else 'at most '}{points} point{'s' * (points != 1)}"
            message = f"the space has {have}, fewer than {trials} trials (budget.trials)"
            yield Mistake(("space",), message, "the search ends when all are tried")
    if len(start) > trials:
        message = f"there are {len(start)} start points, more than {trials} trials (budget.trials)"
        yield Mistake(("start",), message, "the last ones will not be tried")


def _launcher_notes(command: str, resources: Resources) -> Iterator[Mistake]:
    """Yields a note if the command starts ranks that the site's launcher starts too."""
    word = next((word for word in command.split() if "=" not in word), "").rsplit("/", 1)[-1]
    if resources.ranks and word in _LAUNCHERS:
        message = f"the site's launcher starts {resources.ranks} ranks on a node, and each of them would start {word}"
        yield Mistake(("payload", "command"), message, "write the command of one rank, as 'python train.py'")
