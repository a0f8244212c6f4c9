"""Finds every mistake of a search file.

Each section is checked by its own model, each parameter of the space too, so that one wrong section hides nothing in
the others. Where it is clear what a wrong key or value was meant to be, the check goes on as if it stood there. What
spans sections is checked with whatever parts are sound.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Annotated, Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from hpo_pilot.config.machine import local_misfits, this_machine
from hpo_pilot.config.problem import Problem
from hpo_pilot.config.yaml_document import Document
from hpo_pilot.search import Budget, Confirm, OptimizerChoice, Payload, Resources, Search, SearchSpace, SiteChoice
from hpo_pilot.search.consistency import condition_misfits, constraint_misfits, name_misfits
from hpo_pilot.search.dimension import DIMENSION, DIMENSION_TYPES, Dimension
from hpo_pilot.search.feasibility import feasibility_misfits
from hpo_pilot.search.misfit import Misfit, Path, did_you_mean
from hpo_pilot.search.search import confirm_misfits, start_misfits
from hpo_pilot.search.wording import keys_of, misfits_of, unknown_key

#: A wrong key may hide a wrong value, which may hide wrong bounds: so many looks at one section.
_ROUNDS = 4

_FIELDS = {field.alias or name: field for name, field in Search.model_fields.items()}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    key: TypeAdapter(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)
    for key, field in _FIELDS.items()
    if key != "space"
}
_MODELS: dict[str, type[BaseModel]] = {
    key: field.annotation
    for key, field in _FIELDS.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
#: For keys that stand in the wrong place: the sections that know them.
_SECTIONS_OF: dict[str, list[str]] = {}
for _section, _model in _MODELS.items():
    for _key in keys_of(_model):
        _SECTIONS_OF.setdefault(_key, []).append(_section)


class SearchCheck:
    """One file's check; `run` once.

    Attributes:
        problems: what is wrong with the file.
        notes: what is allowed but perhaps not meant.
    """

    def __init__(self, document: Document, folder: FilePath | None) -> None:
        """Prepares the check of `document`; `folder` is where its relative paths start, None to leave them alone."""
        self.problems: list[Problem] = list(document.problems)
        self.notes: list[Problem] = []
        self._document = document
        self._folder = folder
        self._parts: dict[str, Any] = {}

    def run(self) -> Search | None:
        """The search; None where there are problems."""
        data = self._document.value
        if not isinstance(data, Mapping):
            if not self.problems:
                self._tell(Misfit((), "must be a mapping of search, space, payload and so on, not a list or single value"))
            return None
        data = self._top_level(dict(data))
        self._objective(data)
        for key in _ADAPTERS:
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
            self._tell(*misfits_of(error, data, Search))
            return None

    def _tell(self, *misfits: Misfit, under: Path = ()) -> None:
        for misfit in misfits:
            path = under + misfit.path
            if path not in self._document.faulty:
                self.problems.append(
                    self._document.problem(path, misfit.message, misfit.hint, at_key=misfit.at_key)
                )

    def _note(self, path: Path, message: str, suggestion: str = "") -> None:
        self.notes.append(self._document.problem(path, message, suggestion))

    def _top_level(self, data: dict[str, Any]) -> dict[str, Any]:
        """`data` without unknown keys, those renamed whose meaning is clear."""
        for key in [key for key in data if key not in _FIELDS]:
            misfit = self._unknown(key, list(_FIELDS), data)
            self._tell(misfit)
            value = data.pop(key)
            if misfit.rename is not None:
                self._document.rename((key,), (misfit.rename,))
                data[misfit.rename] = value
        for key, field in _FIELDS.items():
            if field.is_required() and key not in data:
                self._tell(Misfit((key,), "is missing"))
        return data

    def _unknown(self, key: str, known: list[str], present: Mapping[str, Any]) -> Misfit:
        sections = _SECTIONS_OF.get(key, [])
        if len(sections) == 1 and sections[0] not in present.get(key, {} if present else {}):
            return Misfit((key,), "is not a key that is known here", f"it belongs under {sections[0]}", at_key=True)
        return unknown_key(key, known, present)

    def _objective(self, data: dict[str, Any]) -> None:
        if isinstance(data.get("objective"), list):
            message = "several objectives (a Pareto search) are not supported yet"
            self._tell(Misfit(("objective",), message, "give one: {metric: loss, goal: minimize}"))
            del data["objective"]

    def _section(self, key: str, value: Any) -> None:
        part = self._validate(_ADAPTERS[key], value, (key,), _MODELS.get(key))
        if part is not None:
            self._parts[key] = part

    def _validate(
        self, adapter: TypeAdapter[Any], value: Any, path: Path, model: type[BaseModel] | Mapping[str, Any] | None
    ) -> Any:
        """The checked value, or what it was probably meant to be; None where that is not clear. Problems are told."""
        told: set[tuple[Path, str]] = set()
        for _ in range(_ROUNDS):
            try:
                return adapter.validate_python(value)
            except ValidationError as error:
                misfits = misfits_of(error, value, model)
            misfits = [self._misplaced(misfit) for misfit in misfits]
            self._tell(*(m for m in misfits if (m.path, m.message) not in told), under=path)
            told |= {(misfit.path, misfit.message) for misfit in misfits}
            if not all(misfit.substitute or _is_unknown_key(misfit) for misfit in misfits):
                return None
            for misfit in misfits:
                value = self._mend(value, misfit, path)
        return None
