"""Builds a search file from values of another tool, with a comment on the origin of each."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpo_pilot.errors import Problem
from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.migrate.spaces import ForeignSpace
from hpo_pilot.optimizers import optimizer_names
from hpo_pilot.search import Search
from hpo_pilot.search.mistakes import QUEUE_PATTERN, FieldPath
from hpo_pilot.search.sections import LONGEST_NAME
from hpo_pilot.search.yaml_document import STR, plain_tag


@dataclass(frozen=True)
class ImportOptions:
    """The user's settings, which take precedence over the file.

    Attributes:
        output_folder: folder of the search file; paths in the file are relative to it.
        name: name of the search; None: from the file.
        command: payload.command; None: from the file.
        payload: folder of the payload; None: from the file.
    """

    output_folder: Path
    name: str | None = None
    command: str | None = None
    payload: Path | None = None

    def relative(self, folder: Path) -> str:
        """Returns the path of `folder` relative to the search file."""
        return os.path.relpath(folder.resolve(), self.output_folder.resolve())


@dataclass(frozen=True)
class ImportedSearch:
    """A search file made of another tool's file.

    Attributes:
        text: content of the search file.
        search: the checked search.
        warnings: settings that were dropped or changed, each with the reason.
    """

    text: str
    search: Search
    warnings: tuple[Problem, ...]


#: Order of the sections in the search file.
_ORDER = [field.alias or name for name, field in Search.model_fields.items()]

#: Sections with one member a line.
_LISTS = ("start", "known", "constraints")


class Draft:
    """A search file under construction: its sections and their comments."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._comments: dict[tuple[str, ...], str] = {}

    def put(self, section: str, *key_and_value: Any, origin: str = "") -> None:
        """Sets a section or one key of it: ``put("seed", 7)``, ``put("budget", "trials", 20)``."""
        *keys, value = key_and_value
        place = (section, *keys)
        if keys:
            self.values.setdefault(section, {})[keys[0]] = value
        else:
            self.values[section] = value
        if origin:
            self._comments[place] = origin

    def put_space(self, space: ForeignSpace) -> None:
        """Sets the space and `payload.point`, the shape of the points in the payload's input file."""
        for name, dimension in space.dimensions.items():
            self.put("space", name, dimension, origin=space.origins[name])
        shape = {"fixed": space.fixed, "arrays": space.arrays, "values": space.values}
        if any(shape.values()):
            given = {key: value for key, value in shape.items() if value}
            self.put("payload", "point", given, origin="constants, arrays and nested choices of the payload's points")

    def text(self, head: Sequence[str], warnings: Sequence[Problem]) -> str:
        """Returns the text of the file.

        Args:
            head: lines of the comment at the start.
            warnings: settings that were dropped or changed; they are listed below the head.
        """
        lines = [f"# {line}".rstrip() for line in head]
        if warnings:
            lines += ["#", "# Not carried over, or not as it was:"]
            lines += [f"# - {_one_line(str(warning))}" for warning in warnings]
        for section in sorted(self.values, key=_ORDER.index):
            lines += self._section(section, self.values[section])
        return "\n".join(lines) + "\n"

    def _section(self, section: str, value: Any) -> list[str]:
        if isinstance(value, dict) and value:
            head = self._line(f"{section}:", (section,))
            return [head, *(self._line(f"  {flow_yaml(k)}: {flow_yaml(v)}", (section, k)) for k, v in value.items())]
        if section in _LISTS and value:
            return [self._line(f"{section}:", (section,)), *(f"  - {flow_yaml(item)}" for item in value)]
        return [self._line(f"{section}: {flow_yaml(value)}", (section,))]

    def _line(self, text: str, place: tuple[str, ...]) -> str:
        comment = self._comments.get(place)
        return f"{text}  # {_one_line(comment)}" if comment else text


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def put_name(draft: Draft, file: ForeignFile, path: FieldPath, text: str, fallback: str) -> None:
    """Sets the search's name to the valid name that is closest to `text`."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")
    if not name[:1].isalpha():
        name = f"{fallback}-{name}".strip("-")
    name = name[:LONGEST_NAME].rstrip("-_")
    draft.put("search", name)
    if name != text:
        file.warn(path, f"the search is called {name}: a search's name has letters, digits, '_' and '-' only")


def rucio_name(dataset: str) -> str:
    """Returns `scope:name`, with the scope given or the scope that PanDA's tools derive from the name."""
    name = dataset.rstrip("/")
    if ":" in name:
        return name
    parts = name.split(".")
    scope = ".".join(parts[:2]) if parts[0] in ("user", "group") else parts[0]
    return f"{scope}:{name}"


def put_sites(draft: Draft, file: ForeignFile, path: FieldPath, sites: list[str], origin: str) -> None:
    """Sets the queue if exactly one is named."""
    named = [site for site in sites if site and site.upper() != "ANY"]
    if not named:
        return
    draft.put("site", "profile", "grid")
    if len(named) > 1:
        file.warn(path, f"several queues are not carried over: PanDA chooses among all, not only {', '.join(named)}")
    elif re.match(QUEUE_PATTERN, named[0]):
        draft.put("site", "queue", named[0], origin=origin)
    else:
        file.wrong(path, f"{named[0]!r} is not the name of a queue")


#: Algorithms of hpogrid, most of them libraries, and our optimizers.
HPOGRID = {
    "ax": "bayesian",
    "bayesian": "bayesian",
    "bohb": "bayesian",
    "grid": "grid",
    "hyperopt": "bayesian",
    "optuna": "bayesian",
    "random": "random",
    "skopt": "bayesian",
    "tune": "random",
}

#: Parts of the names of nevergrad's optimizers; the first match counts.
_NEVERGRAD = (
    ("CMA", "cma"),
    ("BO", "bayesian"),
    ("Random", "random"),
    ("Scr", "random"),
    ("Halton", "random"),
    ("Hammersley", "random"),
    ("LHS", "random"),
)

_LIBRARY = re.compile(r"(?:--lib|-l)(?:\s+|=)[\"']?(\w+)")
_METHOD = re.compile(r"--method(?:\s+|=)[\"']?(\w+)")
_OWN = re.compile(rf"--optimizer(?:\s+|=)[\"']?({'|'.join(optimizer_names())})\b")
_MODE = re.compile(r"--(?:mode|goal)(?:\s+|=)[\"']?(max|min)")


def for_hpogrid(algorithm: str, method: str | None) -> str:
    """Returns the optimizer for an algorithm of hpogrid; `method` is nevergrad's, by default random search."""
    if algorithm == "nevergrad":
        return for_nevergrad(method or "RandomSearch")
    return HPOGRID[algorithm]


def for_nevergrad(method: str) -> str:
    """Returns the optimizer for an optimizer of nevergrad; most of those are evolutionary."""
    return next((optimizer for part, optimizer in _NEVERGRAD if part in method), "evolutionary")


def library_of_steering(command: str) -> str | None:
    """Returns hpogrid's name of the library of a steering container's command; None where the command has none."""
    found = _LIBRARY.search(command)
    return found[1] if found and found[1] in {*HPOGRID, "nevergrad"} else None


def for_steering(command: str) -> str | None:
    """Returns the optimizer closest to a steering container's command; None where the command does not name one."""
    if found := _OWN.search(command):
        return found[1]
    method = _METHOD.search(command)
    if library := library_of_steering(command):
        return for_hpogrid(library, method[1] if method else None)
    if "nevergrad" in command:
        return for_nevergrad(method[1]) if method else "evolutionary"
    return "bayesian" if "bayesian" in command or "skopt" in command else None


def goal_of_steering(command: str) -> str | None:
    """Returns the goal that a steering container's command names; None where it names none."""
    found = _MODE.search(command)
    return None if found is None else "maximize" if found[1] == "max" else "minimize"


class _Dumper(yaml.SafeDumper):
    """Writes a text in double quotes if a search file would read the plain text as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # The rules of search files differ from PyYAML's: `1e-4` is a number there.
    plain = _PLAIN.match(text) and plain_tag(text) == STR and yaml.safe_load(text) == text
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)
_PLAIN = re.compile(r"[A-Za-z0-9_./](?:[A-Za-z0-9_./ -]*[A-Za-z0-9_./-])?\Z")


def flow_yaml(value: Any) -> str:
    """Returns a value of plain Python types in YAML's flow style, on one line."""
    options: dict[str, Any] = {"default_flow_style": True, "allow_unicode": True, "sort_keys": False}
    listed: str = yaml.dump([value], Dumper=_Dumper, width=math.inf, **options)
    return listed.strip().removeprefix("[").removesuffix("]")
