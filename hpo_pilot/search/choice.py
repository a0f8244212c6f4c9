"""Hyper-parameters that are one of a list: categorical and ordinal."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, field_validator

from hpo_pilot.search import limits
from hpo_pilot.search.domain import Domain
from hpo_pilot.search.misfit import Misfit, MisfitError, listing
from hpo_pilot.search.point import Scalar, is_number, show, value_key


class _Choices(Domain):
    """A domain that lists its values."""

    choices: tuple[Scalar, ...] = Field(
        min_length=1,
        max_length=limits.MOST_CHOICES,
        description="The values: text, numbers, true, false or null; 1 and true are different values.",
    )

    @field_validator("choices")
    @classmethod
    def _check_choices(cls, choices: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        misfits = []
        first: dict[str, int] = {}
        for index, choice in enumerate(choices):
            if isinstance(choice, float) and not math.isfinite(choice):
                misfits.append(Misfit((index,), f"must be finite, not {choice}"))
            elif (key := value_key(choice)) in first:
                misfits.append(Misfit((index,), f"{show(choice)} is listed twice", "remove one of the two"))
            else:
                first[key] = index
        if misfits:
            raise MisfitError(misfits)
        return choices

    @property
    def size(self) -> float:
        """How many choices there are."""
        return len(self.choices)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {value_key(choice): index for index, choice in enumerate(self.choices)}

    def _index(self, value: Any) -> int:
        if value is None or isinstance(value, bool | int | float | str):
            place = self._places.get(value_key(value))
            if place is not None:
                return place
            if is_number(value):
                # 32 for the choice 32.0: meant, unless both 32 and 32.0 are choices, which the line above settles.
                equal = [i for i, choice in enumerate(self.choices) if is_number(choice) and choice == value]
                if equal:
                    return equal[0]
        raise ValueError(f"must be {listing([show(c) for c in self.choices], 'or')}, not {show(value)}")

    def from_unit(self, u: float) -> Scalar:
        """The choice at `u`: each has an equal share."""
        n = len(self.choices)
        return self.choices[min(n - 1, int(max(0.0, min(1.0, float(u))) * n))]

    def to_unit(self, value: Any) -> float:
        """The middle of the share of `value`."""
        return (self._index(value) + 0.5) / len(self.choices)

    def canonical(self, value: Any) -> Scalar:
        """The choice that `value` is."""
        return self.choices[self._index(value)]

    def grid(self, points: int) -> list[Any]:
        """All choices, however few `points` are asked for."""
        return list(self.choices)


class Categorical(_Choices):
    """One of `choices`, none nearer to another."""

    type: Literal["categorical"] = "categorical"

    @property
    def is_ordered(self) -> bool:
        """False: no choice is nearer to another."""
        return False


class Ordinal(_Choices):
    """One of `choices`, in an order that means something."""

    type: Literal["ordinal"] = "ordinal"
