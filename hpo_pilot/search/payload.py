"""The payload of a search: its command, its input and output files, and the shape of its input."""

from __future__ import annotations

import copy
import glob
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from hpo_pilot.errors import InputError
from hpo_pilot.files import FUNCTION_COMMAND
from hpo_pilot.search import limits
from hpo_pilot.search.fields import Section, StrictStr, Text
from hpo_pilot.search.mistakes import (
    FILE_PATTERN,
    FUNCTION_PATTERN,
    PYTHON_PATTERN,
    FieldPath,
    Mistake,
    MistakeError,
    did_you_mean,
    refuse,
)
from hpo_pilot.search.parameters import Dimension
from hpo_pilot.search.values import Point, show
from hpo_pilot.transformation.stage_in import InputKind, InputSource, parse_source


class PointShape(Section):
    """The shape of a point in the payload's input file.

    A payload written for another tool may expect a list of numbers, a nested object or a constant. The search has plain
    parameters. `payload_point` makes the payload's form, and `search_point` undoes it.

    Attributes:
        fixed: constants in every point.
        arrays: lists, also nested, of names of parameters; these parameters are written only inside the list.
        values: for parameters with choices, the values of text choices; other choices are written as they are.
    """

    fixed: dict[str, Any] = Field(default_factory=dict, description="Constants in every point.")
    arrays: dict[str, list[Any]] = Field(
        default_factory=dict, description="Lists of names of parameters, also nested; each becomes a list of values."
    )
    values: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="For each parameter, the values of its text choices: lists, mappings or any other value.",
    )

    def payload_point(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the content of the payload's input file for `point`."""
        if not (self.fixed or self.arrays or self.values):
            return dict(point)
        plain = {name: self._meant(name, value) for name, value in point.items()}
        within = {name for array in self.arrays.values() for name in _names(array)}
        return {
            **{name: value for name, value in plain.items() if name not in within},
            **{key: _filled(array, plain) for key, array in self.arrays.items()},
            **copy.deepcopy(self.fixed),
        }

    def search_point(self, payload_point: Mapping[str, Any]) -> Point:
        """Returns the point of the search for a payload's point; does not check that it is in the space.

        Raises:
            ValueError: the payload's point has another shape; the message says where.
        """
        rest = dict(payload_point)
        point: Point = {}
        for key, value in self.fixed.items():
            if key in rest and not _same(found := rest.pop(key), value):
                raise ValueError(f"{key} is {show(value)} in every point, not {show(found)}")
        for key, array in self.arrays.items():
            if key not in rest:
                raise ValueError(f"{key} is missing")
            point.update(_taken(key, array, rest.pop(key)))
        point.update(rest)
        return {name: self._label(name, value) for name, value in point.items()}

    def mistakes(self, dimensions: Mapping[str, Dimension]) -> Iterator[Mistake]:
        """Yields the mistakes of the shape for the parameters of a space; the paths start at a key of the shape."""
        for key, array in self.arrays.items():
            for name in _names(array):
                if not isinstance(name, str) or name not in dimensions:
                    hint = did_you_mean(str(name), dimensions)
                    yield Mistake(("arrays", key), f"{show(name)} is not a parameter of the space", hint)
                elif dimensions[name].when:
                    yield Mistake(("arrays", key), f"{name} is not in every point (when), so it cannot be in a list")
        within = {name for array in self.arrays.values() for name in _names(array) if isinstance(name, str)}
        taken = dimensions.keys() - within
        for section, keys, clashes in (
            ("fixed", self.fixed, taken | self.arrays.keys()),
            ("arrays", self.arrays, taken),
        ):
            for key in (key for key in keys if key in clashes):
                yield Mistake((section, key), "there is a parameter of that name", "rename one of the two", at_key=True)
        for name, meanings in self.values.items():
            choices = getattr(dimensions.get(name), "choices", None)
            if choices is None:
                hint = did_you_mean(name, [n for n, d in dimensions.items() if hasattr(d, "choices")])
                yield Mistake(("values", name), "is not a parameter with choices", hint, at_key=True)
            else:
                texts = {choice for choice in choices if isinstance(choice, str)}
                for label in (label for label in meanings if label not in texts):
                    yield Mistake(("values", name, label), f"is not one of the choices of {name}", at_key=True)

    def _meant(self, name: str, value: Any) -> Any:
        meanings = self.values.get(name)
        return copy.deepcopy(meanings[value]) if meanings and isinstance(value, str) and value in meanings else value

    def _label(self, name: str, value: Any) -> Any:
        for label, meaning in self.values.get(name, {}).items():
            if _same(meaning, value):
                return label
        return value


def _same(one: Any, other: Any) -> bool:
    """Returns whether two JSON values are equal, ignoring the order of keys; true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _names(array: list[Any]) -> Iterator[Any]:
    for item in array:
        if isinstance(item, list):
            yield from _names(item)
        else:
            yield item


def _filled(array: list[Any], values: Mapping[str, Any]) -> list[Any]:
    return [_filled(item, values) if isinstance(item, list) else values[item] for item in array]


def _taken(key: str, array: list[Any], values: Any) -> Point:
    if not isinstance(values, list | tuple) or len(values) != len(array):
        raise ValueError(f"{key} must be a list of {len(array)} members, not {show(values)}")
    point: Point = {}
    for item, value in zip(array, values, strict=True):
        point.update(_taken(key, item, value) if isinstance(item, list) else {item: value})
    return point


_STDOUT = (
    "A regular expression, searched in each line of the training's output, standard error included. Its group is the "
    "value, or the groups with the names step and value."
)


def _outside(place: FieldPath, name: str) -> Iterator[Mistake]:
    if name.startswith(("/", "~")) or ".." in name.split("/"):
        message = f"must be a path inside the job's folder, not {name!r}"
        yield Mistake(place, message, "no '/' at the start, no '..'")


_FileName = Annotated[StrictStr, Field(pattern=FILE_PATTERN)]

#: Files that the payload runner and the pilots write into a job's folder, also all that start with `OUR_PREFIX`.
OUR_FILES = frozenset(
    {"job.json", "progress.jsonl", "outputs.tar.gz", "payload.log", "runner.log", "userJobMetadata.json"}
)
OUR_PREFIX = "hpo_pilot_"


class FileNames(Section):
    """The payload's names for its files, for payloads written for other tools."""

    point: _FileName = Field("input.json", description="The point, written before the payload runs.")
    result: _FileName = Field("output.json", description="The figure of merit, written by the payload.")
    inputs: _FileName = Field("input_ds.json", description="The list of input files, written before the payload runs.")
    metadata: _FileName | None = Field(
        None, description="A JSON file that the payload writes; it is stored with the trial's metadata. null: none."
    )
    progress: _FileName = Field(
        "progress.jsonl", description="Intermediate values: the payload appends a line with step and figure for each."
    )
    metrics: _FileName | None = Field(
        None, description="A file that the payload writes; it is kept like an output. null: none."
    )

    def _mistakes(self) -> Iterator[Mistake]:
        first: dict[str, str] = {}
        for key, name in self.named().items():
            # The payload's own userJobMetadata.json is read before ours replaces it.
            ours = OUR_FILES - ({"userJobMetadata.json"} if key == "metadata" else set())
            ours -= {"progress.jsonl"} if key == "progress" else set()
            if name in ours or name.startswith(OUR_PREFIX):
                yield Mistake((key,), f"{name} is a file of hpo-pilot's own", "give it another name")
            elif first.setdefault(name, key) != key:
                message = f"{name} is the {first[name]} file already"
                yield Mistake((key,), message, "give each of the payload's files another name")

    def named(self) -> dict[str, str]:
        """Returns the given names by key."""
        return self.model_dump(exclude_none=True)


class _Source(Section):
    """A place where the training itself writes a value: a file below the job's folder, or its output."""

    file: Text | None = Field(None, description="A file that the training writes, below the job's folder.")
    column: Text | None = Field(None, description="Column of the value in a CSV file with a header.")
    stdout: Text | None = Field(None, description=_STDOUT)

    #: The keys that select a value in a file, how many of them it needs, in words, and an example.
    selectors: ClassVar[tuple[tuple[str, ...], int, str, str]]
    #: Names of the groups of a pattern, the groups in words, and an example.
    groups: ClassVar[tuple[set[str], str, str]]

    @model_validator(mode="before")
    @classmethod
    def _mapping(cls, given: Any) -> Any:
        if not isinstance(given, Mapping | cls):
            raise MistakeError([Mistake((), f"must be a mapping, not {show(given)}", f"as in {cls.selectors[3]}")])
        return given

    def _mistakes(self) -> Iterator[Mistake]:
        (keys, count, needs, example), (names, groups, pattern) = self.selectors, self.groups
        given = [key for key in keys if getattr(self, key) is not None]
        if (self.file is None) == (self.stdout is None):
            yield Mistake((), "needs a file or stdout, one of the two", f"as in {example}")
        elif self.file is not None:
            yield from _outside(("file",), self.file)
            if len(given) != count:
                yield Mistake(("file",), f"needs {needs}", f"as in {example}")
        elif self.stdout is not None:
            yield from (Mistake((key,), "is for a file, not for stdout", "remove it") for key in given)
            try:
                found = re.compile(self.stdout)
                if not names <= found.groupindex.keys() and not found.groups == count == 1:
                    yield Mistake(("stdout",), f"needs {groups}", f"as in {pattern}")
            except (re.error, OverflowError, RecursionError) as error:
                hint = "a special character as itself: \\("
                yield Mistake(("stdout",), f"is not a regular expression: {error}", hint)


class ResultSource(_Source):
    """The place of the figure of merit, if the training does not write output.json."""

    key: Text | None = Field(None, description="Key of the value in a JSON file, with dots for keys inside: val.loss.")

    selectors = ("key", "column"), 1, "a key (JSON) or a column (CSV)", "{file: metrics.json, key: val.loss}"
    groups = {"value"}, "one group, in parentheses, or one with the name value", "loss=([^ ]+)"


class ProgressSource(_Source):
    """The place of the intermediate values, if the training does not write progress.jsonl."""

    step: Text | None = Field(None, description="Column of the step in the CSV file.")

    selectors = ("step", "column"), 2, "step and column", "{file: log.csv, step: epoch, column: val_loss}"
    groups = {"step", "value"}, "groups with the names step and value", "(?P<step>[0-9]+).*loss=(?P<value>[^ ]+)"


class Payload(Section):
    """The command and the files of each fold of each trial."""

    files: Text | None = Field(None, description="A folder that goes to the jobs, relative to the search file.")
    command: Text = Field(
        description="Shell command that trains and writes output.json. {name} is the value of a parameter, "
        "{--flag:name} a flag with its value, {hydra} all parameters as overrides of Hydra."
    )
    function: Annotated[StrictStr, Field(min_length=1, pattern=FUNCTION_PATTERN)] | None = Field(
        None,
        description="Instead of a command: a Python function, as `train:objective` for `objective` in train.py. It "
        "gets the point as a mapping and returns the figure of merit. Its module is imported once for many points.",
    )
    python: Annotated[StrictStr, Field(min_length=1, pattern=PYTHON_PATTERN)] | None = Field(
        None,
        description="Program for `python` and `python3` in the command: an absolute path or a name in PATH. Default: "
        "for jobs on this machine the Python of the environment active at the submission, elsewhere the job's.",
    )
    container: Text | None = Field(
        None, description="Container: an image, a .sif or .sqfs file, or an unpacked root folder; null: none."
    )
    inputs: tuple[Text, ...] = Field(
        (),
        max_length=limits.MOST_INPUTS,
        description="Input files: paths (also patterns), web or root URLs, or Rucio datasets (scope:name). They are "
        "copied into the job's folder, and input_ds.json lists their names.",
    )
    outputs: tuple[Text, ...] = Field(
        (),
        max_length=limits.MOST_NAMES,
        description="Files kept for the best trials; `hpo-pilot fetch best` gets them.",
    )
    checkpoint: tuple[Text, ...] = Field(
        (),
        max_length=limits.MOST_NAMES,
        description="Files and folders kept from one attempt of a fold to the next. So a training may be longer than a "
        "batch allocation: it runs across several.",
    )
    result: ResultSource | None = Field(
        None,
        description="Place of the figure of merit in the training's own output; the last value counts. null: it writes "
        "output.json.",
    )
    progress: ProgressSource | None = Field(
        None,
        description="Place of the intermediate values in the training's own output. null: it writes progress.jsonl.",
    )
    file_names: FileNames = Field(FileNames(), description="The payload's names for its files.")
    point: PointShape = Field(
        PointShape(), description="Shape of the point's file, if it is not the parameters by name."
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        found = handler.resolve_ref_schema(handler(schema))
        found["required"] = [name for name in found["required"] if name != "command"]
        found["anyOf"] = [{"required": ["command"]}, {"required": ["function"]}]
        return found

    @property
    def kept_files(self) -> tuple[str, ...]:
        """Files kept for the best trials: the outputs and the metrics file."""
        return self.outputs + ((self.file_names.metrics,) if self.file_names.metrics else ())

    @model_validator(mode="before")
    @classmethod
    def _command_of_function(cls, given: Any) -> Any:
        """Adds the command that calls the function, so that it runs everywhere."""
        if not isinstance(given, Mapping) or not isinstance(given.get("function"), str):
            return given
        command = f"{FUNCTION_COMMAND} {given['function']}"
        if given.get("command", command) != command:
            message = "a payload has either a function or a command"
            raise MistakeError([Mistake(("function",), message, "remove one of the two")])
        return {**given, "command": command}

    def _mistakes(self) -> Iterator[Mistake]:
        names, own = self.file_names, FileNames()
        ours = OUR_FILES | {names.point, names.inputs, names.progress}
        for key in ("result", "progress"):
            source: _Source | None = getattr(self, key)
            file = Path(source.file or "").as_posix() if source else ""
            if source and self.function:
                yield Mistake((key,), "is for a command: a function returns its value", "remove it")
            elif source and getattr(names, key) != getattr(own, key):
                yield Mistake((key,), f"the value is in file_names.{key} already", "remove one of the two")
            elif file in ours or file.startswith(OUR_PREFIX):
                yield Mistake((key, "file"), f"{file} is a file of hpo-pilot's own", "give it another name")

    @field_validator("outputs", "checkpoint")
    @classmethod
    def _inside(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        refuse(wrong for index, name in enumerate(names) for wrong in _outside((index,), name))
        return names


def input_mistakes(inputs: Sequence[str], payload: Payload, base: Path | None) -> Iterator[Mistake]:
    """Yields mistakes in inputs and clashes between their names; paths are indices.

    Args:
        inputs: the inputs in the search file.
        payload: the payload with these inputs.
        base: the search file's folder; None: the payload's folder is not read.
    """
    first: dict[str, int] = {}
    own = dict.fromkeys(payload.file_names.named().values(), "is the payload's own file")
    own |= dict.fromkeys(OUR_FILES, "is a file of hpo-pilot's own")
    if base is not None and payload.files is not None:
        folder = base / Path(payload.files).expanduser()
        if folder.is_dir():
            own = {path.name: f"is in {payload.files} too" for path in folder.iterdir()} | own
    rename = "all go into one folder: rename one of the two"
    for index, text in enumerate(inputs):
        try:
            name = parse_source(text).name
        except ValueError as error:
            message, _, hint = str(error).partition(": ")
            yield Mistake((index,), message, hint)
            continue
        if name is None:
            continue
        if name in own or name.startswith(OUR_PREFIX):
            yield Mistake((index,), f"{name} {own.get(name, 'has a name like those of hpo-pilot')}", rename)
        elif (same := first.setdefault(name, index)) != index:
            yield Mistake((index,), f"has the name of inputs[{same}]: {name}", rename)


def missing_paths(inputs: Sequence[str], base: Path) -> Iterator[tuple[int, str]]:
    """Yields index and message of each path or pattern that matches no file."""
    for index, text in enumerate(inputs):
        source = _understood(text)
        if source is None or source.kind is not InputKind.PATH:
            continue
        try:
            where = _absolute(source.where, base)
            if source.name is None and not glob.glob(where):  # noqa: PTH207  a pattern of any path, absolute ones too
                yield index, f"no file matches {where}"
            elif source.name is not None and not Path(where).exists():
                yield index, f"there is no such file: {where}"
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no such user's home
            yield index, f"{text} cannot be read: {error}"


def absolute_inputs(inputs: Sequence[str], base: Path | None) -> list[str]:
    """Returns the inputs with absolute paths, for workers, which do not have the search file's folder.

    Args:
        inputs: the inputs in the search file.
        base: the search file's folder; None: it is on another machine.

    Raises:
        InputError: a path is relative, and the search file's folder is not known.
    """
    found = []
    for text in inputs:
        source = _understood(text)
        if source is None or source.kind is not InputKind.PATH:
            found.append(text)
        elif base is not None:
            found.append(_absolute(source.where, base))
        elif source.where.startswith("/"):
            found.append(source.where)
        else:
            raise InputError(
                f"payload.inputs: {text} is a relative path, and the search file's folder is not known here: give "
                "the absolute path on the workers"
            )
    return found


def _understood(text: str) -> InputSource | None:
    try:
        return parse_source(text)
    except ValueError:
        return None


def _absolute(path: str, base: Path) -> str:
    return str(base.absolute() / Path(path).expanduser())
