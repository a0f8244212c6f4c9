"""A search file while it is made of another tool's file: values, with a comment on where each comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpo_pilot.config.foreign.foreign_space import ForeignSpace
from hpo_pilot.config.foreign.yaml_text import flow
from hpo_pilot.config.problem import Problem
from hpo_pilot.search import Search

#: The sections in the order in which people read them.
_ORDER = [field.alias or name for name, field in Search.model_fields.items()]

#: Sections whose members stand on lines of their own.
_LISTS = ("start", "known", "constraints")


class Draft:
    """The sections of a search file, and comments to them."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._comments: dict[tuple[str, ...], str] = {}

    def put(self, section: str, *key_and_value: Any, origin: str = "") -> None:
        """Sets `section` to a value, or one key of it: ``put("seed", 7)``, ``put("budget", "trials", 20)``."""
        *keys, value = key_and_value
        place = (section, *keys)
        if keys:
            self.values.setdefault(section, {})[keys[0]] = value
        else:
            self.values[section] = value
        if origin:
            self._comments[place] = origin

    def put_space(self, space: ForeignSpace) -> None:
        """Sets the space, and what the payload's points have beyond it."""
        for name, dimension in space.dimensions.items():
            self.put("space", name, dimension, origin=space.origins[name])
        shape = {"fixed": space.fixed, "arrays": space.arrays, "values": space.values}
        if any(shape.values()):
            given = {key: value for key, value in shape.items() if value}
            self.put("payload", "point", given, origin="what the payload's points have beyond the parameters by name")

    def text(self, head: Sequence[str], warnings: Sequence[Problem]) -> str:
        """The file's text.

        Args:
            head: the comment that it begins with, line by line.
            warnings: what was not carried over; it is listed below the head.
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
            return [head, *(self._line(f"  {flow(k)}: {flow(v)}", (section, k)) for k, v in value.items())]
        if section in _LISTS and value:
            return [self._line(f"{section}:", (section,)), *(f"  - {flow(item)}" for item in value)]
        return [self._line(f"{section}: {flow(value)}", (section,))]

    def _line(self, text: str, place: tuple[str, ...]) -> str:
        comment = self._comments.get(place)
        return f"{text}  # {_one_line(comment)}" if comment else text


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
