"""Reads and checks search files: returns the search, or all mistakes with line and column.

Each section is checked by its own model, and each parameter of the space too, so that a wrong section does not hide
mistakes in the others. Where it is clear what a wrong key or value should be, the check continues with that. Checks
across sections use all valid parts.
"""

from __future__ import annotations

import copy
import itertools
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from pathlib import Path as FilePath
from typing import Annotated, Any, cast

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from hpo_pilot.errors import Problem, SearchFileError
from hpo_pilot.files import folder_mistake, missing_programs, python_word
from hpo_pilot.search import (
    Budget,
    Confirm,
    EarlyStopping,
    Folds,
    Objective,
    OptimizerChoice,
    Payload,
    Resources,
    Search,
    SearchSpace,
    SiteChoice,
)
from hpo_pilot.search.mistakes import FieldPath, Mistake, keys_of, mistakes_of, unknown_key
from hpo_pilot.search.parameters import DIMENSION, DIMENSION_TYPES, Dimension
from hpo_pilot.search.payload import input_mistakes, missing_paths
from hpo_pilot.search.search import confirm_mistakes, known_mistakes, start_mistakes
from hpo_pilot.search.sections import early_stopping_mistakes, known_value_mistakes, objective_mistakes
from hpo_pilot.search.space import condition_mistakes, constraint_mistakes, name_mistakes
from hpo_pilot.search.trials import budget_mistakes, width_mistakes
from hpo_pilot.search.values import Scalar, StrictStr, show
from hpo_pilot.search.yaml_document import (
    Document,
    decode_document,
    parse_document,
    plain_tag,
    read_document,
    scalar_value,
)
from hpo_pilot.steering.checks import (
    check_optimizer,
    check_site,
    infeasible_mistakes,
    launcher_notes,
    local_mistakes,
    this_machine,
)


@dataclass(frozen=True)
class Examination:
    """Result of the check of a search file.

    Attributes:
        search: the search; None if there are problems.
        problems: all mistakes, in the order of the file.
        notes: settings that are allowed but perhaps not intended, in the order of the file.
        named_files: files that the search file names; None if its payload section is wrong.
        earlier: earlier searches (`warm_start`), each with its place as a problem without a message.
    """

    search: Search | None
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]
    named_files: NamedFiles | None = None
    earlier: tuple[tuple[str, Problem], ...] = ()


@dataclass(frozen=True)
class NamedFiles:
    """Files that a search file names, for a check on the machine that has them.

    Attributes:
        files: `payload.files` as written; None: none.
        command: `payload.command`.
        files_place: place of `files`, as a problem without a message.
        command_place: place of `command`, as a problem without a message.
    """

    files: str | None
    command: str
    files_place: Problem
    command_place: Problem


def examine(path: str | Path) -> Examination:
    """Reads and checks the search file at `path`; does not raise for mistakes in it."""
    path = Path(path)
    return _examine(read_document(path), path.parent)


def examine_content(content: bytes, file: str) -> Examination:
    """Checks the bytes of a search file of another machine; does not check the files that it names.

    Args:
        content: content of the file.
        file: name of the file in messages.
    """
    return _examine(decode_document(content, file), None)


def load_search(path: str | Path) -> Search:
    """Returns the search of the file at `path`.

    Raises:
        SearchFileError: the file cannot be read or is wrong; `problems` has all mistakes with their places.
    """
    return _search(examine(path))


def load_search_for(path: str | Path, site: str) -> Search:
    """Returns the search of the file at `path`, with another site profile.

    Raises:
        SearchFileError: as `load_search`; also if a job does not fit that site.
    """
    document = read_document(Path(path))
    whole = document.value
    section = whole.get("site") if isinstance(whole, dict) else None
    if isinstance(whole, dict) and (section is None or isinstance(section, dict)):
        whole["site"] = {**(section or {}), "profile": site}
    return _search(_examine(document, Path(path).parent))


def parse_search(text: str, source: str) -> Search:
    """Returns the search of a YAML text. Paths in it are not checked, because they are relative to a file.

    Args:
        text: YAML.
        source: name of the text in messages.

    Raises:
        SearchFileError: the text is wrong; `problems` has all mistakes with their places.
    """
    return _search(_examine(parse_document(text, source), None))


def payload_folder(search: Search, search_file: str | Path) -> Path | None:
    """Returns the payload's folder as an absolute path; None if the search has none.

    Args:
        search: the search, with `payload.files` as written in the file.
        search_file: the search file; `payload.files` is relative to its folder.
    """
    if search.payload.files is None:
        return None
    return (Path(search_file).parent / Path(search.payload.files).expanduser()).resolve()


def _examine(document: Document, folder: Path | None) -> Examination:
    check = SearchCheck(document, folder)
    search = check.run()
    named = None
    if check.payload is not None:
        places = (document.problem(("payload", key), "") for key in ("files", "command"))
        named = NamedFiles(check.payload.files, check.payload.command, *places)
    earlier = tuple(
        (source, document.problem(("warm_start", index), ""))
        for index, source in enumerate(search.warm_start if search is not None else ())
    )
    return Examination(search, in_order(check.problems), in_order(check.notes), named, earlier)


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Returns problems in the order of the file."""
    return tuple(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0)))


def _search(examination: Examination) -> Search:
    if examination.search is None:
        raise SearchFileError(examination.problems)
    return examination.search


#: Number of checks of one section: a wrong key may hide a wrong value, which may hide wrong bounds.
_ROUNDS = 4

#: Finite spaces up to this size are counted, to compare them with the budget.
_COUNTABLE = 20_000

_FIELDS = {field.alias or name: field for name, field in Search.model_fields.items()}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    key: TypeAdapter(cast(Any, Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation))
    for key, field in _FIELDS.items()
    if key != "space"
}
_MODELS: dict[str, type[BaseModel]] = {
    key: field.annotation
    for key, field in _FIELDS.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
_MODELS["objective"] = Objective
_OBJECTIVE: TypeAdapter[Any] = TypeAdapter(Objective)

#: Examples of sections, for hints.
_USUAL_FORMS: dict[object, str] = {
    Objective: "objective: {metric: loss, goal: minimize}",
    OptimizerChoice: "optimizer: bayesian, or optimizer: {name: evolutionary, population: 24}",
}

#: With more objectives than this, a front does not help to choose a trial.
_COSTLY_OBJECTIVES = 4

#: Sections that are lists, and the type of one item.
_ITEMS: dict[str, TypeAdapter[Any]] = {
    "constraints": TypeAdapter(Annotated[StrictStr, Field(min_length=1)]),
    "start": TypeAdapter(dict[str, Scalar]),
}

#: The right place of keys given in a wrong place; keys of several sections are left out.
_ELSEWHERE = {
    **{
        key: f"under {section}"
        for section, model in _MODELS.items()
        for key in keys_of(model)
        if sum(key in keys_of(other) for other in _MODELS.values()) == 1
    },
    **dict.fromkeys(_FIELDS, "at the top level"),
}


class SearchCheck:
    """The check of one file; call `run` once.

    Attributes:
        problems: mistakes in the file.
        notes: settings that are allowed but perhaps not intended.
    """

    def __init__(self, document: Document, folder: FilePath | None) -> None:
        """Prepares the check of `document`; its paths are relative to `folder`, None: paths are not checked."""
        self.problems: list[Problem] = list(document.problems)
        self.notes: list[Problem] = []
        self._document = document
        self._folder = folder
        self._parts: dict[str, Any] = {}

    def run(self) -> Search | None:
        """Returns the search; None if there are problems."""
        data = self._document.value
        if not isinstance(data, Mapping):
            if not self.problems:
                self._tell(
                    Mistake((), "must be a mapping of search, space, payload and so on, not a list or single value")
                )
            return None
        data = self._top_level(dict(data))
        self._objective(data)
        for key in _ADAPTERS:
            if key == "objective":
                continue
            if key in data:
                self._section(key, data[key])
            elif not _FIELDS[key].is_required():
                self._parts[key] = _FIELDS[key].get_default(call_default_factory=True)
        space = self._space(data.get("space")) if "space" in data else None
        if space is not None:
            self._notes_on_size(space)
        self._across()
        if self.problems:
            return None
        try:
            return Search.model_validate(data)
        except ValidationError as error:
            self._tell(*mistakes_of(error, data, Search))
            return None

    @property
    def payload(self) -> Payload | None:
        """The payload section if it is valid; use it after `run`."""
        payload = self._parts.get("payload")
        return payload if isinstance(payload, Payload) else None

    def _tell(self, *mistakes: Mistake, under: FieldPath = ()) -> None:
        for mistake in mistakes:
            path = under + mistake.path
            if path not in self._document.faulty:
                self.problems.append(self._document.problem(path, mistake.message, mistake.hint, at_key=mistake.at_key))

    def _tell_and_note(self, found: tuple[list[Mistake], list[Mistake]]) -> None:
        wrong, notes = found
        self._tell(*wrong)
        for note in notes:
            self._note(note.path, note.message, note.hint)

    def _note(self, path: FieldPath, message: str, suggestion: str = "") -> None:
        self.notes.append(self._document.problem(path, message, suggestion))

    def _top_level(self, data: dict[str, Any]) -> dict[str, Any]:
        """Returns `data` without unknown keys; a misspelt key gets its right name if that is clear."""
        for key in [key for key in data if key not in _FIELDS]:
            mistake = unknown_key(key, list(_FIELDS), data, _ELSEWHERE)
            self._tell(mistake)
            value = data.pop(key)
            if mistake.rename is not None:
                self._document.rename((key,), (mistake.rename,))
                data[mistake.rename] = value
        for key, field in _FIELDS.items():
            if field.is_required() and key not in data:
                self._tell(Mistake((key,), "is missing"))
        return data

    def _objective(self, data: Mapping[str, Any]) -> None:
        value = data.get("objective", {})
        several = isinstance(value, list)
        places: list[FieldPath] = [("objective", index) for index in range(len(value))] if several else [("objective",)]
        found = [
            self._validate(_OBJECTIVE, one, place, Objective)
            for one, place in zip(value if several else [value], places, strict=True)
        ]
        wrong = objective_mistakes(found)
        self._tell(*wrong)
        if None in found or wrong:
            return
        self._parts["objective"] = tuple(found)
        if len(found) > _COSTLY_OBJECTIVES:
            message = (
                f"{len(found)} objectives: nearly every trial is on the front then, and the hypervolume gets costly"
            )
            self._note(("objective",), message, "bring those together that belong together")
        if len(found) == 1 and found[0].reference is not None:
            self._note((*places[0], "reference"), "counts only where there are several objectives")

    def _section(self, key: str, value: Any) -> None:
        if key in _ITEMS and isinstance(value, list):
            # Item by item, so that a wrong item does not hide mistakes in others; it becomes None.
            self._parts[key] = [self._validate(_ITEMS[key], item, (key, i), None) for i, item in enumerate(value)]
            return
        part = self._validate(_ADAPTERS[key], value, (key,), _MODELS.get(key))
        if part is not None:
            self._parts[key] = part

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
                    _with_usual_form(mistake, model) for mistake in mistakes_of(error, value, model, _ELSEWHERE)
                ]
            self._tell(*(m for m in mistakes if (m.path, m.message) not in told), under=path)
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
            self._document.rename((*under, *mistake.path), (*under, *way, mistake.rename))
        return True

    def _space(self, value: Any) -> SearchSpace | None:
        """Checks the space and all sections that name its parameters; returns the space if it is valid."""
        if not isinstance(value, Mapping) or not value:
            hint = "as in space: {learning_rate: {type: real, low: 1e-4, high: 0.1, scale: log}}"
            what = "is empty" if not value else f"must be a mapping of parameters, not {show(value)}"
            self._tell(Mistake(("space",), what, hint))
            return None
        before = len(self.problems)
        misnamed = name_mistakes(value)
        self._tell(*misnamed, under=("space",))
        sound: dict[str, Dimension] = {}
        for name, domain in value.items():
            dimension = self._validate(DIMENSION, domain, ("space", name), DIMENSION_TYPES)
            if dimension is not None:
                sound[name] = dimension
        faulty = value.keys() - sound.keys()
        wrong = condition_mistakes(sound, faulty)
        self._tell(*wrong, under=("space",))
        constraints = self._parts.get("constraints", ())
        broken = constraint_mistakes(constraints, sound, faulty)
        self._tell(*broken, under=("constraints",))
        usable = _usable(sound, {*faulty, *(str(mistake.path[0]) for mistake in [*misnamed, *wrong])})
        # Start points are not compared with wrong constraints, or with constraints on wrong parameters.
        complete = len(usable) == len(value) and not broken and None not in constraints
        if not usable:
            return None
        space = SearchSpace(dimensions=usable, constraints=constraints if complete else ())
        self._start(space, value.keys() - usable.keys())
        if not complete:
            return None
        self._depending(space)
        self._tell(*infeasible_mistakes(space))
        return space if len(self.problems) == before else None

    def _start(self, space: SearchSpace, unusable: Collection[str]) -> None:
        points = [
            None if point is None else {name: value for name, value in point.items() if name not in unusable}
            for point in self._parts.get("start", ())
        ]
        mistakes = start_mistakes(space, points)
        if unusable:  # two points may differ in what was left out
            mistakes = [mistake for mistake in mistakes if len(mistake.path) > 2]
        self._tell(*mistakes)

    def _depending(self, space: SearchSpace) -> None:
        """Checks other sections against the parameters of a valid space."""
        self._tell(*known_mistakes(space, [known.point for known in self._parts.get("known", ())]))
        payload = self._parts.get("payload")
        if isinstance(payload, Payload):
            self._tell(*payload.point.mistakes(space.dimensions), under=("payload", "point"))

    def _across(self) -> None:
        """Checks across sections, and checks that need more than the file."""
        confirm, budget = self._parts.get("confirm"), self._parts.get("budget")
        if isinstance(confirm, Confirm) and isinstance(budget, Budget):
            self._tell(*confirm_mistakes(confirm, budget))
        objectives = len(self._parts.get("objective", ()))
        if objectives:
            self._of_objectives(objectives)
        optimizer = self._parts.get("optimizer")
        if isinstance(optimizer, OptimizerChoice):
            short = ("optimizer", "name") not in self._document.values
            place: FieldPath = ("optimizer",) if short else ("optimizer", "name")
            warm = bool(self._parts.get("warm_start"))
            self._tell_and_note(check_optimizer(optimizer, place, objectives, warm=warm, elsewhere=_ELSEWHERE))
        site, resources = self._parts.get("site"), self._parts.get("resources")
        if isinstance(site, SiteChoice):
            self._tell_and_note(check_site(site.profile, resources if isinstance(resources, Resources) else None))
            if isinstance(resources, Resources) and site.profile == "local":
                self._tell(*local_mistakes(resources, this_machine()), under=("resources",))
        if self.payload is not None and self._folder is not None:
            self._files(self.payload, self._folder)
        if self.payload is not None:
            is_local = isinstance(site, SiteChoice) and site.profile == "local"
            self._inputs(self.payload, is_local=is_local)
            self._python(self.payload, is_local=is_local)
        if isinstance(resources, Resources) and isinstance(budget, Budget):
            self._notes_on_jobs(resources, budget)
            if isinstance(folds := self._parts.get("folds"), Folds):
                self._tell(*budget_mistakes(budget, resources, folds), under=("budget",))
                self._tell(*width_mistakes(budget, resources, folds))
        if isinstance(resources, Resources) and self.payload is not None:
            self._tell_and_note(([], launcher_notes(self.payload.command, resources)))
        self._tell_and_note(check_early_stopping(self._parts))

    def _of_objectives(self, count: int) -> None:
        """Checks other sections against the number of objectives."""
        self._tell(*known_value_mistakes(count, [known.value for known in self._parts.get("known", ())]))

    def _files(self, payload: Payload, base: FilePath) -> None:
        if payload.files is None:
            return
        mistake = folder_mistake(payload.files, base)
        if mistake is not None:
            self._tell(Mistake(("payload", "files"), *mistake))
            return
        for word in missing_programs(payload.files, payload.command, base):
            self._note(("payload", "command"), f"{word} is not in {payload.files}", "is the name right?")

    def _inputs(self, payload: Payload, *, is_local: bool) -> None:
        """Reports missing inputs: as mistakes if the jobs run on this machine, else as notes."""
        places: dict[FieldPath, tuple[str, ...]] = {("payload", "inputs"): payload.inputs}
        for name, segment in (self._parts.get("segments") or {}).items():
            if segment.inputs is not None:
                places["segments", name, "inputs"] = segment.inputs
        for place, inputs in places.items():
            self._tell(*input_mistakes(inputs, payload, self._folder), under=place)
            for index, message in missing_paths(inputs, self._folder) if self._folder is not None else ():
                if is_local:
                    self._tell(Mistake((*place, index), message, "a relative path starts at this file"))
                else:
                    self._note((*place, index), f"{message} on this machine", "it must be there where the jobs run")

    def _python(self, payload: Payload, *, is_local: bool) -> None:
        """Reports a missing Python for jobs that run on this machine without a container."""
        word = python_word(payload.command, payload.python)
        if self._folder is None or not is_local or payload.container or word is None or shutil.which(word):
            return
        if "/" in word and not word.startswith("/"):
            return  # it comes with the payload
        if word == payload.python and word.startswith("/"):
            hint = "name a Python that is there, or leave payload.python out: then it is the one in PATH"
            self._tell(Mistake(("payload", "python"), f"there is no program {word} on this machine", hint))
            return
        place = "python" if word == payload.python else "command"
        hint = "activate the environment that has it before you submit, or name the Python's path in payload.python"
        self._note(("payload", place), f"there is no {word} in PATH on this machine", hint)

    def _notes_on_jobs(self, resources: Resources, budget: Budget) -> None:
        if resources.trials_per_job > budget.parallel:
            message = (
                f"no job will have more than {budget.parallel} points, for so many are out at once (budget.parallel)"
            )
            self._note(("resources", "trials_per_job"), message, "raise budget.parallel to a few times this")

    def _notes_on_size(self, space: SearchSpace) -> None:
        budget = self._parts.get("budget")
        if not isinstance(budget, Budget):
            return
        if space.size < budget.trials or space.size <= _COUNTABLE:
            countable = space.size <= _COUNTABLE
            wanted = min(budget.trials, _COUNTABLE + 1)
            points = sum(1 for _ in itertools.islice(space.all_points(), wanted)) if countable else int(space.size)
            if points < budget.trials:
                have = f"{'' if countable else 'at most '}{points} point{'s' * (points != 1)}"
                message = f"the space has {have}, fewer than {budget.trials} trials (budget.trials)"
                self._note(("space",), message, "the search ends when all are tried")
        start = self._parts.get("start", ())
        if len(start) > budget.trials:
            message = f"there are {len(start)} start points, more than {budget.trials} trials (budget.trials)"
            self._note(("start",), message, "the last ones will not be tried")


def _with_usual_form(mistake: Mistake, model: object) -> Mistake:
    """Adds an example as the hint if a whole section is of a wrong type."""
    whole = isinstance(model, type) and not mistake.path and "must be a mapping" in mistake.message
    form = _USUAL_FORMS.get(model) if whole else None
    return replace(mistake, hint=f"as in {form}") if form else mistake


def _usable(sound: Mapping[str, Dimension], unusable: set[str]) -> dict[str, Dimension]:
    """Returns the dimensions whose parents, and theirs, are all usable."""
    usable = {name: dimension for name, dimension in sound.items() if name not in unusable}
    while hanging := [name for name, dimension in usable.items() if not dimension.when.keys() <= usable.keys()]:
        for name in hanging:
            del usable[name]
    return usable


def check_early_stopping(parts: Mapping[str, Any]) -> tuple[list[Mistake], list[Mistake]]:
    """Returns mistakes in `early_stopping`, and notes on settings that are perhaps not intended.

    Args:
        parts: the valid sections of the file by name.
    """
    stopping, site, resources, folds = (parts.get(key) for key in ("early_stopping", "site", "resources", "folds"))
    if not isinstance(stopping, EarlyStopping):
        return [], []
    wrong = early_stopping_mistakes(
        stopping,
        trials_per_job=resources.trials_per_job if isinstance(resources, Resources) else 1,
        folds=folds.k if isinstance(folds, Folds) else stopping.folds or 1,
        metrics=[one.metric for one in parts.get("objective", ()) if isinstance(one, Objective)],
    )
    notes = []
    if stopping.is_on and isinstance(site, SiteChoice) and site.profile == "grid":
        message = "pilots that are not hpo-pilot's ship no intermediate values: trials that they run are never stopped"
        notes.append(
            Mistake(
                ("early_stopping",), message, "start pilots of your own there: hpo-pilot pilot --server URL --queue Q"
            )
        )
    return wrong, notes
