"""Reads YAML: native values, and line and column of each. All YAML files are read here.

PyYAML's safe composer makes the nodes with their marks. The values are built here, so that tags cannot construct
objects, keys are unique, and each value keeps its place.

Plain (unquoted) scalars follow the core schema of YAML 1.2. PyYAML follows YAML 1.1, where `1e-4` is text, `010` is
eight, `1:30` is ninety, `no` is false and `2024-01-01` a date. In a search file they are a number, ten, text, text and
text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from hpo_pilot.errors import Problem, SearchFileError
from hpo_pilot.files import MAX_SEARCH_FILE_BYTES, read_content
from hpo_pilot.search.mistakes import FieldPath, Mistake, mistakes_of, path_text

NULL = "tag:yaml.org,2002:null"
BOOL = "tag:yaml.org,2002:bool"
INT = "tag:yaml.org,2002:int"
FLOAT = "tag:yaml.org,2002:float"
STR = "tag:yaml.org,2002:str"
MERGE = "tag:yaml.org,2002:merge"

#: Largest number of digits; Python itself refuses more than 4300.
MAX_DIGITS = 300

_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_INT = re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")

_SPOKEN = frozenset({"yes", "no", "on", "off"})
_UNUSABLE = re.compile("[\\0\\ud800-\\udfff]")


def plain_tag(text: str) -> str:
    """Returns the tag of a plain scalar."""
    if _NULL.match(text):
        return NULL
    if _BOOL.match(text):
        return BOOL
    if _INT.match(text):
        return INT
    if _FLOAT.match(text) or _NOT_FINITE.match(text):
        return FLOAT
    return MERGE if text == "<<" else STR


def scalar_value(tag: str, text: str) -> bool | int | float | str | None:
    """Returns the native value of a scalar with a core tag.

    Raises:
        ValueError: the text does not fit the tag, or it is a number that no search can use.
    """
    if tag in (STR, MERGE):
        if _UNUSABLE.search(text):
            raise ValueError("has a null character or half a surrogate pair, which file names and stores cannot have")
        return text
    found = plain_tag(text)
    if tag == FLOAT and found in (INT, FLOAT):
        return _float(text)
    if found != tag:
        raise ValueError(f"{text!r} is not of the type that its tag names")
    if tag == NULL:
        return None
    if tag == BOOL:
        return text.lower() == "true"
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits is too long")
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


def _float(text: str) -> float:
    if _NOT_FINITE.match(text):
        raise ValueError(f"must be a finite number, not {text}")
    value = float(int(text, 0)) if text.startswith(("0o", "0x")) else float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is larger than the largest number, 1.8e308")
    return value


#: Largest number of levels of nesting.
MAX_DEPTH = 40

#: Largest number of values, with each use of an alias counted: this stops the attack "billion laughs".
MAX_VALUES = 100_000

_SCALAR_TAGS = frozenset({NULL, BOOL, INT, FLOAT, STR})
_MAP = "tag:yaml.org,2002:map"
_SEQ = "tag:yaml.org,2002:seq"

#: PyYAML's words for common mistakes, and the remedies.
_ADVICE = (
    ("'\\t'", "indent with blanks, never with tabs"),
    ("mapping values are not allowed", "is the indentation right? text with ': ' in it needs quotes"),
    ("could not find expected ':'", "is a ':' missing, or the indentation wrong?"),
    ("did not find expected key", "is the indentation right?"),
    ("expected <block end>", "is the indentation right?"),
    ("expected ',' or", "is a comma, bracket or brace missing?"),
    ("while scanning a quoted scalar", "is a closing quote missing?"),
    ("undefined alias", "text that starts with '*' needs quotes"),
    ("that cannot start any token", "text that starts with this character needs quotes"),
)


@dataclass(frozen=True)
class Mark:
    """A place in the file; line and column start at 1."""

    line: int
    column: int


@dataclass
class Document:
    """Content of a YAML file.

    Attributes:
        file: name of the file in messages.
        value: value in native Python types; None if nothing could be read.
        values: place of each value by path.
        keys: place of each key of a mapping by the path of its value.
        problems: mistakes in the YAML itself.
        faulty: paths of values that could not be read; they are None in `value`.
        spoken: paths of words without quotes that are text in YAML 1.2, and true or false in YAML 1.1.
    """

    file: str
    value: Any = None
    values: dict[FieldPath, Mark] = field(default_factory=dict)
    keys: dict[FieldPath, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    faulty: set[FieldPath] = field(default_factory=set)
    spoken: set[FieldPath] = field(default_factory=set)

    def place(self, path: FieldPath, *, at_key: bool = False) -> Mark:
        """Returns the place of `path` or, if it is missing, of the innermost value around it."""
        if not at_key and path in self.values:
            return self.values[path]
        while path:
            if path in self.keys:
                return self.keys[path]
            if path in self.values:
                return self.values[path]
            path = path[:-1]
        return self.values.get((), Mark(1, 1))

    def rename(self, old: FieldPath, new: FieldPath) -> None:
        """Makes the places below `old` known also below `new`."""
        for places in (self.values, self.keys):
            for path, mark in list(places.items()):
                if path[: len(old)] == old:
                    places[new + path[len(old) :]] = mark

    def problem(self, path: FieldPath, message: str, suggestion: str = "", *, at_key: bool = False) -> Problem:
        """Returns a problem at `path`."""
        mark = self.place(path, at_key=at_key)
        return Problem(self.file, mark.line, mark.column, path_text(path), message, suggestion)


class _Stop(Exception):
    """Reading cannot continue; carries the last problem."""

    def __init__(self, message: str, suggestion: str, mark: Any) -> None:
        super().__init__(message)
        self.message, self.suggestion, self.mark = message, suggestion, mark


class _Composer(yaml.SafeLoader):
    """PyYAML's safe loader, used only for its nodes, with the scalars of YAML 1.2 and limited depth."""

    depth = 0

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return plain_tag(value) if implicit[0] else STR
        return _SEQ if kind is yaml.SequenceNode else _MAP

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Stop(f"more than {MAX_DEPTH} levels of nesting", "is a bracket open?", self.get_mark())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_document(path: FilePath) -> Document:
    """Reads the YAML file at `path`.

    Returns:
        The document; its `problems` has all mistakes, also that the file cannot be read.
    """
    content = read_content(path, str(path))
    if isinstance(content, Problem):
        return Document(str(path), problems=[content])
    return decode_document(content, str(path))


_Model = TypeVar("_Model", bound=BaseModel)


def read_model(
    path: FilePath,
    model: type[_Model],
    refusal: type[SearchFileError],
    elsewhere: Mapping[str, str] | None = None,
    check: Callable[[Any], Iterable[Mistake]] = lambda value: (),
) -> _Model:
    """Reads the model in the YAML file at `path`.

    Args:
        path: the file.
        model: the model.
        refusal: the error, if there are mistakes.
        elsewhere: as for `mistakes_of`.
        check: returns further mistakes in the file's value.

    Raises:
        SearchFileError: the file cannot be read or has mistakes; `problems` has all of them with their places.
    """
    document = read_document(path)
    if document.problems:
        raise refusal(document.problems)
    found = list(check(document.value))
    try:
        made = model.model_validate(document.value)
    except ValidationError as error:
        found += mistakes_of(error, document.value, model, elsewhere)
    if found:
        raise refusal([document.problem(one.path, one.message, one.hint, at_key=one.at_key) for one in found])
    return made


def decode_document(content: bytes, file: str) -> Document:
    """Reads the bytes of a YAML file; `file` is the name in messages."""
    document = Document(file)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        message = f"is not UTF-8 text: the byte 0x{content[error.start]:02x} here makes no character"
        document.problems.append(_at_end_of(before, document.file, message, "save the file as UTF-8"))
        return document
    return parse_document(text, document.file)


def parse_document(text: str, file: str) -> Document:
    """Reads YAML text; `file` is the name in messages."""
    document = Document(file)
    try:
        if len(text) > MAX_SEARCH_FILE_BYTES:
            raise _Stop("is larger than any search file", "", None)
        loader = _Composer(text)
        node = loader.get_single_node()
        if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
            raise _Stop("the file is empty", "start with search:, space: and payload:", None)
        document.value = _Builder(document).build(node, (), None)
    except yaml.reader.ReaderError as error:
        character = error.character if isinstance(error.character, int) else ord(error.character)
        message = f"the character U+{character:04X} is not allowed in YAML"
        document.problems.append(_at_end_of(text[: error.position], file, message, "remove it"))
    except yaml.MarkedYAMLError as error:
        document.problems.append(_syntax_problem(error, file))
    except _Stop as stop:
        line, column = (stop.mark.line + 1, stop.mark.column + 1) if stop.mark else (1, 1)
        document.problems.append(Problem(file, line, column, "", stop.message, stop.suggestion))
    if document.problems and () not in document.values:
        document.value = None
    return document


def _at_end_of(before: str, file: str, message: str, suggestion: str) -> Problem:
    lines = before.replace("\r\n", "\n").split("\n")
    return Problem(file, len(lines), len(lines[-1]) + 1, "", message, suggestion)


def _syntax_problem(error: yaml.MarkedYAMLError, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    text = " ".join(part for part in (error.context, error.problem) if part)
    advice = next((advice for words, advice in _ADVICE if words in text), "")
    if "expected a single document" in text:
        text, advice = "a second document starts here", "one file has one search: remove '---' and what follows"
    else:
        text = f"is not YAML: {text}; nothing after this was read"
    return Problem(file, mark.line + 1 if mark else 1, mark.column + 1 if mark else 1, "", text, advice)


class _Builder:
    """Builds native values from nodes."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._count = 0
        self._open: list[yaml.Node] = []

    def build(self, node: yaml.Node, path: FieldPath, key: yaml.Node | None) -> Any:
        """Returns the value of `node`, which is at `path`."""
        self._tally(node)
        if key is not None:
            self._document.keys[path] = _mark(key)
        self._document.values[path] = _mark(node)
        if any(node is outer for outer in self._open):
            return self._refuse(path, "an alias cannot contain itself")
        if len(path) > MAX_DEPTH:
            return self._refuse(path, f"more than {MAX_DEPTH} levels of nesting")
        self._open.append(node)
        try:
            return self._value(node, path)
        finally:
            self._open.pop()

    def _tally(self, node: yaml.Node) -> None:
        self._count += 1
        if self._count > MAX_VALUES:
            raise _Stop(f"has more than {MAX_VALUES} values, aliases counted", "use fewer aliases", node.start_mark)

    def _value(self, node: yaml.Node, path: FieldPath) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALAR_TAGS | {MERGE}:
            if node.style is None and node.value.casefold() in _SPOKEN:
                self._document.spoken.add(path)
            try:
                return scalar_value(node.tag, node.value)
            except ValueError as error:
                return self._refuse(path, str(error))
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
            return [self.build(item, (*path, index), None) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            entries = self._entries(node, path, [])
            return {name: self.build(value, (*path, name), key) for name, (key, value) in entries.items()}
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        return self._refuse(path, f"the tag {tag} is not allowed", "remove it: values here need no tags")

    def _entries(
        self, node: yaml.MappingNode, path: FieldPath, outer: list[yaml.Node]
    ) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Returns the entries of a mapping; its own keys take precedence over merged ones (`<<`)."""
        entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag == MERGE:
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            name = self._name(key, value, path)
            if name is None:
                continue
            if name in entries:
                first = _mark(entries[name][0])
                message = f"is given twice; the first is at {first.line}:{first.column}"
                self._problem(key, (*path, name), message, "remove one of the two")
            else:
                entries[name] = (key, value)
        for source in merged:
            self._tally(source)
            if not isinstance(source, yaml.MappingNode) or any(source is other for other in [*outer, *self._open]):
                self._problem(source, path, "<< needs the alias of another mapping, or a list of them", "")
                continue
            for name, entry in self._entries(source, path, [*outer, node]).items():
                entries.setdefault(name, entry)
        return entries

    def _name(self, key: yaml.Node, value: yaml.Node, path: FieldPath) -> str | None:
        if not isinstance(key, yaml.ScalarNode):
            self._problem(key, path, "a key must be text, not a list or mapping", "text that starts so needs quotes")
            return None
        try:
            name = str(scalar_value(STR, key.value))
        except ValueError as error:
            self._problem(key, path, f"the key {error}", "")
            return None
        if key.tag == NULL and not name:
            self._problem(key, path, "a key is missing before ':'", "")
            return None
        if key.tag != STR:
            hint = f'put it in quotes: "{name}"'
            if key.tag == INT and value.tag == NULL:  # {minutes: 1,5}
                hint = "is it a decimal comma? write a point"
            if key.tag not in _SCALAR_TAGS | {MERGE}:
                hint = "remove its tag"
            self._problem(key, (*path, name), f"a key must be text, and {name} is not", hint)
            self._document.faulty.add((*path, name))
        return name

    def _refuse(self, path: FieldPath, message: str, suggestion: str = "") -> None:
        self._document.problems.append(self._document.problem(path, message, suggestion))
        self._document.faulty.add(path)

    def _problem(self, node: yaml.Node, path: FieldPath, message: str, suggestion: str) -> None:
        mark = _mark(node)
        problem = Problem(self._document.file, mark.line, mark.column, path_text(path), message, suggestion)
        # An alias repeats the same place: it is one mistake.
        if all((p.line, p.column) != (mark.line, mark.column) for p in self._document.problems):
            self._document.problems.append(problem)


def _mark(node: yaml.Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)
