"""What every kind of hyper-parameter offers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from hpo_pilot.search.point import Scalar


class Domain(BaseModel, ABC):
    """A hyper-parameter's domain.

    Every optimizer works in the unit cube: `from_unit` turns a number in [0, 1] into a native Python value of the
    domain, `to_unit` goes back. Scales, steps and choices are settled in the domains and nowhere else.

    Attributes:
        when: conditions on other dimensions; the dimension is active only where each named dimension is active and
            has the value given (or one of the values, if a list is given). Empty: always active.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    when: dict[str, Scalar | list[Scalar]] = Field(
        default_factory=dict,
        description="Active only where these other parameters have these values (one value, or a list).",
    )

    @abstractmethod
    def from_unit(self, u: float) -> Any:
        """The value at `u` in [0, 1]; numbers outside are clipped. Equal shares of [0, 1] for discrete values."""

    @abstractmethod
    def to_unit(self, value: Any) -> float:
        """The place of `value` in [0, 1]: inside its share where the domain is discrete.

        `value` may lie outside the domain of numbers (a point of an older search): the result is then outside [0, 1].

        Raises:
            ValueError: the value is no number, or none of the choices.
        """

    @abstractmethod
    def canonical(self, value: Any) -> Any:
        """`value` as the native Python type of the domain.

        Raises:
            ValueError: the value is not in the domain; the message says what is, to be read after the name.
        """

    @property
    @abstractmethod
    def size(self) -> float:
        """How many values the domain has; `math.inf` where it is continuous."""

    @abstractmethod
    def grid(self, points: int) -> list[Any]:
        """Distinct values, evenly spread on the dimension's scale, both ends included.

        At most `points` of them (1 or more), except that choices are always all there; all values of a discrete
        domain where `points` is its size or more.
        """

    @property
    def is_discrete(self) -> bool:
        """True where the domain is finite."""
        return math.isfinite(self.size)

    @property
    def is_ordered(self) -> bool:
        """True where values near in [0, 1] are alike; False for categorical."""
        return True
