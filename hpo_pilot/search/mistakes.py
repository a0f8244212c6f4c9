"""Mistakes in a document with their places, and pydantic's errors in plain words.

All validation errors that a user sees come from `mistakes_of`.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hpo_pilot.search.values import is_number, show

#: Path from the top of a document to a value: keys of mappings, indices of lists.
FieldPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Mistake:
    """One mistake in a document.

    Attributes:
        path: place from the top of the checked document; it may be a place where a value is missing.
        message: the mistake in words that follow the path: "must be above 0, not -3".
        hint: the probable intention, or the remedy; may be empty.
        at_key: True if the key is wrong, not its value.
        missing: True if a required value is missing at `path`.
        unknown_key: True if the last part of `path` is an unknown key.
        rename: the key that was meant, if it is clear; the check then continues with that key.
        substitute: a tuple with the value that was meant, if it is clear, used in the same way; else empty.
    """

    path: FieldPath
    message: str
    hint: str = ""
    at_key: bool = False
    missing: bool = False
    unknown_key: bool = False
    rename: str | None = None
    substitute: tuple[Any, ...] = ()

    def __str__(self) -> str:
        text = f"{path_text(self.path)}: {self.message}" if self.path else self.message
        return f"{text} — {self.hint}" if self.hint else text

    def under(self, *prefix: str | int) -> Mistake:
        """Returns the mistake with `prefix` before its path, for a larger document."""
        return replace(self, path=prefix + self.path)


class MistakeError(ValueError):
    """A value cannot be made, because its parts do not fit; `mistakes` has every mistake."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("; ".join(str(mistake) for mistake in mistakes))
        self.mistakes = tuple(mistakes)


def refuse(mistakes: Iterable[Mistake]) -> None:
    """Raises a `MistakeError` if there are mistakes."""
    if found := list(mistakes):
        raise MistakeError(found)


def path_text(path: FieldPath) -> str:
    """Returns the path as text: `space.learning_rate.choices[2]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def closest(word: str, options: Iterable[str]) -> str | None:
    """Returns the option most similar to `word`; None if no option is similar."""
    by_folded = {option.casefold(): option for option in options}
    found = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Returns a hint for a misspelt word: the most similar option, or all options if none is similar."""
    listed = list(options)
    found = closest(word, listed)
    if found is not None:
        return f"did you mean {found}?"
    return f"there is {listing(listed)}" if listed else ""


def listing(words: Sequence[str], last: str = "and") -> str:
    """Returns `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


#: Patterns of the search file, and their meaning in words.
NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_-]{0,49}$"
QUEUE_PATTERN = r"^[A-Za-z0-9_.-]+$"
QUEUES_PATTERN = r"^[A-Za-z0-9_.-]+(,[A-Za-z0-9_.-]+)*$"
FILE_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
_DOTTED = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
FUNCTION_PATTERN = rf"^({_DOTTED}:{_DOTTED}|[A-Za-z_][A-Za-z0-9_]*\.pkl)$"  # in a module, or a file with a pickled one
PYTHON_PATTERN = r"^(/[^\x00-\x1f\x7f]*[^/\x00-\x1f\x7f]|[A-Za-z0-9._+-]+)$"
#: A semicolon separates the hint.
_PATTERNS = {
    NAME_PATTERN: "must start with a letter and go on with letters, digits, '_' or '-', at most 50 in all",
    FILE_PATTERN: "must be a plain file name: letters, digits, '_', '.' and '-', and no folder",
    "^/": "must be a full path, from / on",
    "^[/$]": "must be a full path, from / or a variable on",
    "^[A-Za-z_][A-Za-z0-9_]*$": "must be a variable's name: letters, digits and '_'",
    r"^[^\r\n]*$": "must be a single line",
    FUNCTION_PATTERN: "must name a module and a function; as in train:objective: `def objective(point)` in train.py",
    PYTHON_PATTERN: "must be an absolute path or a name in PATH; as in /opt/conda/envs/torch/bin/python, or python3.12",
    QUEUE_PATTERN: "must consist of letters, digits, '_', '.' and '-'",
    QUEUES_PATTERN: "must consist of letters, digits, '_', '.' and '-'; a comma without blanks separates queues",
}

#: Type of value that a pydantic error type expected: `must be …`.
_EXPECTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    "string_type": "text",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "none_required": "null",
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), "a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a mapping"),
}

#: Messages for a value of the right type, made from the context of the pydantic error.
_LIMITS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda ctx: f"must be above {show(ctx['gt'])}",
    "greater_than_equal": lambda ctx: f"must be {show(ctx['ge'])} or more",
    "less_than": lambda ctx: f"must be below {show(ctx['lt'])}",
    "less_than_equal": lambda ctx: f"must be {show(ctx['le'])} or less",
    "multiple_of": lambda ctx: f"must be a multiple of {show(ctx['multiple_of'])}",
    "string_pattern_mismatch": lambda ctx: _PATTERNS.get(ctx["pattern"], f"must match {ctx['pattern']}"),
    "string_too_long": lambda ctx: f"must have at most {ctx['max_length']} characters",
    "too_long": lambda ctx: f"must have at most {ctx['max_length']} entries",
}

_ANY_SCALAR = ("true or false", "a whole number", "a number", "text")


def others_than_default(
    section: BaseModel, message: str, *, only: Sequence[str] = (), leave: Sequence[str] = ()
) -> Iterator[Mistake]:
    """Yields a mistake for each key of a section whose value is not the default.

    Args:
        section: the section; paths start at its keys.
        message: the mistake.
        only: the keys to look at; none: all.
        leave: keys to leave out.
    """
    for key, field in type(section).model_fields.items():
        if key not in leave and (not only or key in only) and getattr(section, key) != field.default:
            yield Mistake((key,), message, "remove it", at_key=True)


def mistakes_of(
    error: ValidationError,
    data: Any,
    model: type[BaseModel] | Mapping[str, type[BaseModel]] | None = None,
    elsewhere: Mapping[str, str] | None = None,
) -> list[Mistake]:
    """Returns the mistakes in a validation error, one for each place.

    Args:
        error: pydantic's error.
        data: the validated data; the paths lead into it.
        model: the model that `data` should match, or several models by the value of `type` that selects one.
        elsewhere: as for `unknown_key`.
    """
    if isinstance(model, Mapping):
        tag = data.get("type") if isinstance(data, Mapping) else None
        model = model.get(tag) if isinstance(tag, str) else None
    else:
        tag = None
    places: dict[FieldPath, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        location = details["loc"]
        if tag is not None and location and location[0] == tag:
            location = location[1:]
        places.setdefault(_path(location, data, details["type"] == "missing"), []).append(details)
    known = keys_of(model) if model is not None else []
    mistakes: list[Mistake] = []
    for path, group in places.items():
        if group[0]["type"] == "extra_forbidden" and len(path) == 1 and model is not None:
            mistakes.append(unknown_key(str(path[0]), known, data, elsewhere))
        elif group[0]["type"] == "extra_forbidden" and (inner := model_at(model, path[:-1])) is not None:
            beside = functools.reduce(lambda within, part: within[part], path[:-1], data)
            mistakes.append(unknown_key(str(path[-1]), keys_of(inner), beside).under(*path[:-1]))
        elif group[0]["type"] == "model_type" and not path and known:
            mistakes.append(Mistake((), f"must be a mapping, not {show(data)}", f"its keys are {listing(known)}"))
        else:
            mistakes += _mistakes_at(path, group)
    # A misspelt required key is one mistake, not two.
    meant = {(*mistake.path[:-1], mistake.rename) for mistake in mistakes if mistake.unknown_key}
    return [mistake for mistake in mistakes if not (mistake.missing and mistake.path in meant)]


def keys_of(model: type[BaseModel]) -> list[str]:
    """Returns the keys of a model in a search file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def model_at(kind: Any, way: FieldPath) -> type[BaseModel] | None:
    """Returns the model at path `way` in a value of type `kind`; None if there is not exactly one."""
    kind = _bare(kind)
    for part in way:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
            kind = _bare(fields.get(str(part)))
        else:  # of a list its items, of a mapping its values
            members = [member for member in get_args(kind) if member is not Ellipsis]
            kind = _bare(members[-1]) if members else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _bare(kind: Any) -> Any:
    """Returns a type without annotations and without `| None`."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not NoneType]
        return _bare(members[0]) if len(members) == 1 else None
    return kind


def unknown_key(
    key: str, known: Sequence[str], present: Collection[str], elsewhere: Mapping[str, str] | None = None
) -> Mistake:
    """Returns the mistake of an unknown key.

    Args:
        key: the key.
        known: the keys allowed in this place.
        present: the keys given in this place; the key that was meant is not one of them.
        elsewhere: for keys of other places in the file, their place: "under budget".
    """
    free = [name for name in known if name not in present]
    synonyms = [name for name in KEY_SYNONYMS.get(key.casefold(), ()) if name in free]
    place = (elsewhere or {}).get(key)
    before_colon = key.partition(":")[0]
    meant = None
    if before_colon != key and before_colon in free:
        meant, hint = before_colon, "put a blank after the colon"
    elif synonyms:
        meant, hint = synonyms[0], f"did you mean {synonyms[0]}?"
    elif place is not None:
        hint = f"it belongs {place}"
    elif (near := closest(key, free)) is not None:
        meant, hint = near, f"did you mean {near}?"
    elif key in ("log", "logarithmic") and "scale" in known:
        hint = "did you mean scale: log?"
    elif (given := closest(key, known)) is not None:
        hint = f"did you mean {given}? it is given too"
    else:
        hint = f"there is {listing(known)}" if known else "there is none"
    return Mistake((key,), "is not a key that is known here", hint, at_key=True, unknown_key=True, rename=meant)


def _path(location: tuple[int | str, ...], data: Any, is_missing: bool) -> FieldPath:
    """Returns the path through the data in pydantic's location, without the names of members of unions."""
    path: list[int | str] = []
    for index, part in enumerate(location):
        in_mapping = isinstance(data, Mapping) and part in data
        if in_mapping or (isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)):
            data = data[part]
        elif not (is_missing and index == len(location) - 1):
            continue
        path.append(part)
    return tuple(path)


def _mistakes_at(path: FieldPath, group: list[ErrorDetails]) -> list[Mistake]:
    """Returns the mistakes at one place; several errors there come from a union without a matching member."""
    for details in group:
        cause = details.get("ctx", {}).get("error")
        if isinstance(cause, MistakeError):
            return [mistake.under(*path) for mistake in cause.mistakes]
        if cause is not None:
            return [Mistake(path, str(cause))]
        if details["type"] == "missing":
            return [Mistake(path, "is missing", at_key=True, missing=True)]
        if details["type"] == "extra_forbidden":
            return [Mistake(path, "is not a key that is known here", at_key=True)]
        if details["type"] in ("union_tag_invalid", "union_tag_not_found"):
            return [_of_tag(path, details)]
    value = group[0]["input"]
    for details in group:
        if details["type"] in _LIMITS:
            message, _, hint = _LIMITS[details["type"]](details.get("ctx", {})).partition("; ")
            return [Mistake(path, f"{message}, not {show(value)}", hint)]
        if details["type"] == "too_short" and value:
            return []  # all its entries are wrong, and each is a mistake of its own
        if details["type"] in ("string_too_short", "too_short"):
            return [Mistake(path, "is empty", "give it a value, or leave the key out")]
    expected = _expected(group)
    if not expected:
        return [Mistake(path, group[0]["msg"][:1].lower() + group[0]["msg"][1:])]
    return [_wrong_kind(path, expected, value)]


def _expected(group: Sequence[ErrorDetails]) -> list[str]:
    expected: list[str] = []
    for details in group:
        if details["type"] == "literal_error":
            expected += [word.strip("'") for word in re.split(", | or ", details["ctx"]["expected"])]
        elif details["type"] in _EXPECTED:
            expected.append(_EXPECTED[details["type"]])
    if all(kind in expected for kind in _ANY_SCALAR):
        expected = ["a single value", *(kind for kind in expected if kind not in _ANY_SCALAR)]
    return list(dict.fromkeys(expected))


def _wrong_kind(path: FieldPath, expected: list[str], value: Any) -> Mistake:
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    given = repr(value) if isinstance(value, float) else show(value)
    message = f"must be {listing(expected, 'or')}, not {given}"
    meant = VALUE_SYNONYMS.get(key, {}).get(value.casefold()) if isinstance(value, str) else None
    if meant is None and isinstance(value, str):
        meant = closest(value, [word for word in expected if " " not in word])
    if meant in expected:
        return Mistake(path, message, f"did you mean {meant}?", substitute=(meant,))
    return Mistake(path, message, _kind_hint(key, expected, value))


def _kind_hint(key: str, expected: Sequence[str], value: Any) -> str:
    """Returns a hint for the value of `key`, which has a wrong type."""
    numeric = any("number" in kind for kind in expected)
    if value is None:
        return "give it a value, or leave the key out"
    if isinstance(value, str) and numeric:
        return _number_hint(key, value, "a whole number" in expected and "a number" not in expected)
    if numeric and is_number(value) and value == int(value) and abs(value) < 1e15:
        return f"write {int(value)}"
    if isinstance(value, str) and "true or false" in expected:
        spoken = {"yes": "true", "on": "true", "y": "true", "true": "true"}
        spoken |= {"no": "false", "off": "false", "n": "false", "false": "false"}
        return f"did you mean {spoken[value.casefold()]}?" if value.casefold() in spoken else ""
    if "text" in expected and isinstance(value, bool | int | float):
        return f"put it in quotes: '{show(value)}'"
    if "a single value" in expected and isinstance(value, list | tuple):
        return "write it as text in quotes, as in '64 32', and let the training split it"
    if "a list" in expected and not isinstance(value, list | tuple):
        return "put it in brackets: [ ]" if isinstance(value, Mapping) else f"put it in brackets: [{show(value)}]"
    return ""


#: Units of values, by the ends of their keys.
_KEY_UNITS = {"mb": "MB", "seconds": "seconds", "minutes": "minutes", "hours": "hours"}


def _number_hint(key: str, text: str, whole: bool) -> str:
    bare = text.strip().replace("_", "").replace(",", ".")
    try:
        number = float(bare)
    except ValueError:
        if re.fullmatch(r"[-+.\de]+\s*[A-Za-z%]+", text.strip()) is None:
            return ""
        unit = _KEY_UNITS.get(key.rpartition("_")[2])
        return f"give the number alone; the unit is {unit}" if unit else "leave the unit out"
    if not is_number(number) or (whole and number != int(number)):
        return ""
    if bare == text.strip():
        return f"remove the quotes: {int(number) if whole else bare}"
    return f"write {int(number) if whole else bare}"


def _of_tag(path: FieldPath, details: ErrorDetails) -> Mistake:
    """Returns the mistake of a dimension whose `type` is missing or unknown."""
    given = details["input"]
    kinds = ["real", "integer", "categorical", "ordinal"]
    if details["type"] == "union_tag_not_found":
        guess = _guess_type(given)
        hint = f"did you mean type: {guess}?" if guess else f"there is {listing(kinds)}"
        return Mistake((*path, "type"), "is missing", hint, at_key=True, substitute=(guess,) if guess else ())
    tag = given["type"] if isinstance(given, Mapping) else given
    word = str(tag).casefold()
    meant = VALUE_SYNONYMS["type"].get(word) or closest(word, kinds)
    hint = f"did you mean {meant}?" if meant else ""
    message = f"must be {listing(kinds, 'or')}, not {show(tag)}"
    return Mistake((*path, "type"), message, hint, substitute=(meant,) if meant else ())


def _guess_type(given: Any) -> str | None:
    if not isinstance(given, Mapping):
        return None
    if any(key in given for key in ("choices", "values", "options")):
        return "categorical"
    bounds = [given[key] for key in ("low", "high", "min", "max") if key in given]
    if len(bounds) != 2 or not all(is_number(bound) for bound in bounds):
        return None
    return "integer" if all(isinstance(bound, int) for bound in bounds) else "real"


#: Keys of other tools and our names for them; the first name known in that place counts.
KEY_SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("min", "minimum", "lower", "lower_bound", "from", "start"), ("low",)),
    **dict.fromkeys(("max", "maximum", "upper", "upper_bound", "to", "stop", "end"), ("high",)),
    **dict.fromkeys(("values", "options", "categories", "items"), ("choices",)),
    **dict.fromkeys(("distribution", "prior", "spacing"), ("scale",)),
    **dict.fromkeys(("kind", "method"), ("type", "name")),
    **dict.fromkeys(("if", "condition", "conditions", "active"), ("when",)),
    **dict.fromkeys(("q", "increment", "resolution"), ("step",)),
    **dict.fromkeys(("direction", "mode", "sense"), ("goal",)),
    **dict.fromkeys(("target", "loss", "score"), ("metric",)),
    **dict.fromkeys(("max_trials", "num_trials", "n_trials", "points", "evaluations", "max_points"), ("trials",)),
    **dict.fromkeys(("concurrent", "max_concurrent", "workers", "jobs", "n_jobs"), ("parallel",)),
    **dict.fromkeys(("k_folds", "kfold", "kfolds", "n_folds", "n_splits", "number", "splits"), ("k", "folds")),
    **dict.fromkeys(("walltime", "time", "duration", "timeout"), ("minutes", "hours")),
    **dict.fromkeys(("memory", "mem", "ram"), ("memory_mb",)),
    **dict.fromkeys(("cpus", "cpu", "ncores", "cores_per_node"), ("cores",)),
    **dict.fromkeys(("gpus", "gpu", "ngpus"), ("gpus_per_node",)),
    **dict.fromkeys(("ranks", "ntasks_per_node", "tasks_per_node", "ppn", "np"), ("ranks_per_node",)),
    **dict.fromkeys(("processes_per_node", "procs_per_node", "slots_per_node"), ("ranks_per_node",)),
    **dict.fromkeys(("num_nodes", "n_nodes", "nnodes", "node_count", "hosts"), ("nodes",)),
    **dict.fromkeys(("parameters", "params", "search_space", "hyperparameters", "dimensions"), ("space",)),
    **dict.fromkeys(("algorithm", "algo", "sampler", "strategy"), ("optimizer", "name")),
    **dict.fromkeys(("initial_points", "initial", "warm_start", "start_points"), ("start",)),
    **dict.fromkeys(("random_state", "random_seed"), ("seed",)),
    **dict.fromkeys(("project", "project_name", "title", "name"), ("search", "name")),
    **dict.fromkeys(("exec", "cmd", "run", "script"), ("command",)),
    **dict.fromkeys(("image", "sif"), ("container",)),
    **dict.fromkeys(("folder", "directory", "dir", "path", "code"), ("files",)),
    "stopping": ("budget",),
}

#: Values of other tools and our names for them, by key.
VALUE_SYNONYMS: dict[str, dict[str, str]] = {
    "type": {
        **dict.fromkeys(("float", "double", "number", "uniform", "loguniform", "continuous", "scalar"), "real"),
        **dict.fromkeys(("int", "uniformint", "whole", "discrete", "randint", "long"), "integer"),
        **dict.fromkeys(
            ("choice", "cat", "category", "choices", "enum", "str", "string", "bool", "boolean"), "categorical"
        ),
        **dict.fromkeys(("ordered", "ord", "levels"), "ordinal"),
    },
    "goal": {
        **dict.fromkeys(("min", "minimise", "minimum", "lower", "smallest", "down"), "minimize"),
        **dict.fromkeys(("max", "maximise", "maximum", "higher", "largest", "up"), "maximize"),
    },
    "scale": {
        **dict.fromkeys(("logarithmic", "log10", "ln", "log2", "exp", "exponential", "geometric", "loguniform"), "log"),
        **dict.fromkeys(("lin", "uniform", "none", "normal", "flat", "arithmetic"), "linear"),
    },
}
