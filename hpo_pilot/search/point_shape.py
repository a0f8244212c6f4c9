"""How the payload's input file is made of a point, where it is more than the parameters by name.

A payload written for another tool may expect a list of numbers, a nested object or a constant. The search has plain
parameters; their shape in the payload's file is described here, and undone for points that come from such files.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from hpo_pilot.search.dimension import Dimension
from hpo_pilot.search.misfit import Misfit, did_you_mean
from hpo_pilot.search.point import Point, show
from hpo_pilot.search.section import Section


class PointShape(Section):
    """The shape of a point in the payload's input file.

    Attributes:
        fixed: what stands in every point beside the parameters.
        arrays: lists, nested ones too, whose members are names of parameters: these stand there and not by name.
        values: for parameters with choices, what a choice that is text stands for; other choices stand for themselves.
    """

    fixed: dict[str, Any] = Field(default_factory=dict, description="What stands in every point as it is.")
    arrays: dict[str, list[Any]] = Field(
        default_factory=dict, description="Lists of parameters' names, also nested: they become one list of values."
    )
    values: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="By parameter, what its text choices stand for: lists, mappings, anything."
    )

    @property
    def is_plain(self) -> bool:
        """True where the payload gets the parameters by name and nothing else."""
        return not (self.fixed or self.arrays or self.values)

    def payload_point(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """What the payload's input file holds for `point`."""
        if self.is_plain:
            return dict(point)
        plain = {name: self._meant(name, value) for name, value in point.items()}
        within = {name for array in self.arrays.values() for name in _names(array)}
        return {
            **{name: value for name, value in plain.items() if name not in within},
            **{key: _filled(array, plain) for key, array in self.arrays.items()},
            **copy.deepcopy(self.fixed),
        }

    def search_point(self, payload_point: Mapping[str, Any]) -> Point:
        """The point whose `payload_point` this is. Whether it is in the space is not looked at.

        Raises:
            ValueError: it has another shape; the message says where.
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

    def misfits(self, dimensions: Mapping[str, Dimension]) -> list[Misfit]:
        """What does not fit the parameters of a space; the paths start at a key of the shape."""
        misfits = []
        for key, array in self.arrays.items():
            for name in _names(array):
                place = ("arrays", key)
                if not isinstance(name, str) or name not in dimensions:
                    hint = did_you_mean(str(name), dimensions)
                    misfits.append(Misfit(place, f"{show(name)} is not a parameter of the space", hint))
                elif dimensions[name].when:
                    misfits.append(Misfit(place, f"{name} is not in every point (when), so it cannot be in a list"))
        within = {name for array in self.arrays.values() for name in _names(array) if isinstance(name, str)}
        taken = dimensions.keys() - within
        for section, keys in (("fixed", self.fixed), ("arrays", self.arrays)):
            misfits += [
                Misfit((section, key), "there is a parameter of that name", "rename one of the two", at_key=True)
                for key in keys
                if key in taken or (section == "fixed" and key in self.arrays)
            ]
        for name, meanings in self.values.items():
            choices = getattr(dimensions.get(name), "choices", None)
            if choices is None:
                hint = did_you_mean(name, [n for n, d in dimensions.items() if hasattr(d, "choices")])
                misfits.append(Misfit(("values", name), "is not a parameter with choices", hint, at_key=True))
                continue
            misfits += [
                Misfit(("values", name, label), f"is not one of the choices of {name}", at_key=True)
                for label in meanings
                if label not in [choice for choice in choices if isinstance(choice, str)]
            ]
        return misfits

    def _meant(self, name: str, value: Any) -> Any:
        meanings = self.values.get(name)
        return copy.deepcopy(meanings[value]) if meanings and isinstance(value, str) and value in meanings else value

    def _label(self, name: str, value: Any) -> Any:
        for label, meaning in self.values.get(name, {}).items():
            if _same(meaning, value):
                return label
        return value


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same; the order of a mapping's keys says nothing, and true is not 1."""
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
