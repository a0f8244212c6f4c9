"""What an export makes of a search, and what it leaves out."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.search import Search

#: A point and its figure of merit; None: not known yet.
Result = tuple[Mapping[str, Any], float | None]

#: Sections in which a value that stands for its default says nothing.
_DEFAULTS = Search.model_validate(
    {"search": "s", "space": {"x": {"type": "real", "low": 0, "high": 1}}, "payload": {"command": "c"}}
)


@dataclass
class Exported:
    """Another tool's file made of a search.

    Attributes:
        text: the file.
        companions: further files that it names, by name.
        warnings: what it does not say, each with its reason.
    """

    text: str = ""
    companions: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def warn(self, place: str, reason: str) -> None:
        """Notes what is not carried over."""
        self.warnings.append(f"{place}: {reason}")


@dataclass(frozen=True)
class ExportOptions:
    """What the user says beside the search.

    Attributes:
        stem: what companion files are called after.
        owner: the user's nickname, for names of data sets.
        steering_image: the steering container's image.
        results: what is known of points, beyond what the search says.
    """

    stem: str = "search"
    owner: str = "USER"
    steering_image: str = "hpo-pilot-steering:latest"
    results: Sequence[Result] = ()


def check_single(search: Search, tool: str) -> None:
    """Makes sure that a search has one objective.

    Raises:
        InputError: it has several, and `tool` has no way to say so.
    """
    if len(search.objectives) > 1:
        metrics = ", ".join(objective.metric for objective in search.objectives)
        raise InputError(f"{tool} takes one objective, and search {search.name!r} has {metrics}: export csv or json")


def warn_of_the_rest(exported: Exported, search: Search, tool: str, carried: Collection[str]) -> None:
    """Notes every key of the search that is not as it is by default and not among those carried over."""
    said, defaults = search.to_dict(), _DEFAULTS.to_dict()
    for section, value in said.items():
        default = defaults[section]
        if section in carried or value == default:
            continue
        if not isinstance(value, dict) or not isinstance(default, dict):
            exported.warn(section, f"{tool} has nothing like it")
            continue
        for key, item in value.items():
            place = f"{section}.{key}"
            if place not in carried and item != default.get(key):
                exported.warn(place, f"{tool} has nothing like it")


def json_text(value: Any) -> str:
    """A value as a JSON file."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
