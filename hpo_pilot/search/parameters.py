"""Hyper-parameters and their domains: real, integer, categorical and ordinal."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, field_validator

from hpo_pilot.search import limits
from hpo_pilot.search.fields import Amount, Scalar, Section, StrictFloat, StrictInt
from hpo_pilot.search.mistakes import Mistake, listing, refuse
from hpo_pilot.search.values import is_number, show, value_key


class Domain(Section, ABC):
    """Domain of a hyper-parameter.

    Optimizers work in the unit cube: `from_unit` maps a number in [0, 1] to a native Python value of the domain, and
    `to_unit` maps it back. Scales, steps and choices are handled only here.

    Attributes:
        when: conditions on other dimensions. The dimension is active only if each dimension named here is active and
            has the given value (or one of the values of a list). Empty: always active.
    """

    #: Whether neighbours in [0, 1] are similar values.
    is_ordered: ClassVar[bool] = True

    when: dict[str, Scalar | list[Scalar]] = Field(
        default_factory=dict,
        description="Active only where these other parameters have these values (one value, or a list).",
    )

    @abstractmethod
    def from_unit(self, u: float) -> Any:
        """Returns the value at `u`; `u` is clipped to [0, 1]. Discrete values have equal shares of [0, 1]."""

    @abstractmethod
    def to_unit(self, value: Any) -> float:
        """Returns the position of `value` in [0, 1]; for discrete values inside their share.

        A number outside the domain (from an earlier search) gives a result outside [0, 1].

        Raises:
            ValueError: the value is not a number, or not one of the choices.
        """

    @abstractmethod
    def canonical(self, value: Any) -> Any:
        """Returns `value` as the native Python type of the domain.

        Raises:
            ValueError: the value is not in the domain; callers put the parameter's name before the message.
        """

    @property
    @abstractmethod
    def size(self) -> float:
        """Number of values in the domain; `math.inf` if it is continuous."""

    @abstractmethod
    def grid(self, points: int) -> list[Any]:
        """Returns distinct values, evenly spread on the dimension's scale, both ends included.

        At most `points` values (1 or more); domains with choices return all choices.
        """

    @property
    def is_discrete(self) -> bool:
        """True if the domain is finite."""
        return math.isfinite(self.size)


#: Larger whole numbers are not all exact as floats, so the unit interval would lose some of them.
LARGEST_INTEGER = 2**53

_FAR = 1e15  # steps; more than any domain has

_Scale = Annotated[
    Literal["linear", "log"],
    Field(description="log spreads the search evenly over orders of magnitude and needs low above 0."),
]


def _bounds_mistakes(low: float, high: float, scale: str, step: float | None) -> Iterator[Mistake]:
    if low > high:
        yield Mistake(("low",), f"low ({show(low)}) must be below high ({show(high)})", "swap the two?")
    elif low == high:
        hint = "leave the parameter out, or use categorical with one choice"
        yield Mistake(("low",), f"low and high are both {show(low)}", hint)
    elif not math.isfinite(float(high) - float(low)):
        yield Mistake(("low",), "high - low is larger than the largest float")
    elif scale == "log" and low <= 0:
        hint = "use scale: linear, or a small positive low"
        yield Mistake(("low",), f"a log scale needs low above 0, not {show(low)}", hint)
    elif step is not None and scale == "log":
        yield Mistake(("step",), "cannot be combined with scale: log", "remove one of the two")
    elif step is not None and step > (high - low) * (1 + 1e-9):  # 0.7 - 0.2 is a little less than 0.5
        yield Mistake(("step",), f"{show(step)} is larger than high - low, which is {show(high - low)}")
    elif step is not None and step < 1e-9 * max(abs(low), abs(high)):
        yield Mistake(
            ("step",), f"{show(step)} is too small beside the bounds to tell the values apart", "leave it out"
        )


def _clip(u: float) -> float:
    return min(1.0, max(0.0, float(u)))


class Real(Domain):
    """A real number between `low` and `high`, both included.

    Attributes:
        scale: `log` spreads the search evenly over orders of magnitude.
        step: the values are low, low + step, …, up to high; linear scale only.
    """

    type: Literal["real"] = "real"
    low: StrictFloat = Field(allow_inf_nan=False, description="The smallest value.")
    high: StrictFloat = Field(allow_inf_nan=False, description="The largest value.")
    scale: _Scale = "linear"
    step: Amount | None = Field(None, description="Only low, low + step, … up to high; linear scale only.")

    def _mistakes(self) -> Iterator[Mistake]:
        return _bounds_mistakes(self.low, self.high, self.scale, self.step)

    @property
    def size(self) -> float:
        """Number of values in the domain; `math.inf` without a step."""
        if self.step is None:
            return math.inf
        return math.floor((self.high - self.low) / self.step + 1e-9) + 1

    @cached_property
    def _digits(self) -> int:
        # 13 significant digits of the larger bound: 0.05 * 3 is 0.15 and -0.3 + 3 * 0.1 is 0, so equal points have
        # equal keys.
        return 12 - math.floor(math.log10(max(abs(self.low), abs(self.high))))

    def _stepped(self, index: int) -> float:
        assert self.step is not None
        value = round(self.low + index * self.step, self._digits)
        return min(self.high, max(self.low, value)) + 0.0  # -0.0 becomes 0.0

    def from_unit(self, u: float) -> float:
        """Returns the value at `u`; the ends of [0, 1] are exactly `low` and `high`."""
        u = _clip(u)
        if self.step is not None:
            n = int(self.size)
            return self._stepped(min(n - 1, int(u * n)))
        if u in (0.0, 1.0):
            return self.high if u else self.low
        if self.scale == "log":
            value = math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + u * (self.high - self.low)
        return min(self.high, max(self.low, value)) + 0.0

    def to_unit(self, value: Any) -> float:
        """Returns the position of `value`; on a log scale numbers without a logarithm are at 0."""
        if not is_number(value):
            raise ValueError(f"must be a number, not {show(value)}")
        number = float(value)
        if self.step is not None:
            return (self._index(number, self.step) + 0.5) / self.size
        if self.scale == "log":
            if number <= 0:
                return 0.0
            return (math.log(number) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (number - self.low) / (self.high - self.low)

    def canonical(self, value: Any) -> float:
        """Returns `value` as a float."""
        if not is_number(value):
            raise ValueError(f"must be a number between {show(self.low)} and {show(self.high)}, not {show(value)}")
        number = float(value) + 0.0
        if self.step is None:
            if not self.low <= number <= self.high:
                raise self._outside(number)
            return number
        index = self._index(number, self.step)
        if not 0 <= index < self.size:
            raise self._outside(number)
        nearest = self._stepped(index)
        if abs(nearest - number) > 1e-6 * self.step:
            raise ValueError(
                f"must be {show(self.low)} plus a multiple of {show(self.step)}, not {show(number)}; "
                f"the nearest is {show(nearest)}"
            )
        return nearest

    def _index(self, number: float, step: float) -> int:
        """Returns the index of the nearest step, limited to `_FAR` so that it cannot overflow."""
        return round(min(_FAR, max(-_FAR, (number - self.low) / step)))

    def _outside(self, number: float) -> ValueError:
        return ValueError(f"must be between {show(self.low)} and {show(self.high)}, not {show(number)}")

    def grid(self, points: int) -> list[float]:
        """Returns evenly spread values, both ends included."""
        if self.step is not None:
            n = int(self.size)
            count = min(points, n)
            if count == 1:
                return [self._stepped(n // 2)]
            return [self._stepped(round(i * (n - 1) / (count - 1))) for i in range(count)]
        if points == 1:
            return [self.from_unit(0.5)]
        return list(dict.fromkeys(self.from_unit(i / (points - 1)) for i in range(points)))


class Integer(Domain):
    """A whole number between `low` and `high`, both included.

    Attributes:
        scale: `log` spreads the search evenly over orders of magnitude.
        step: the values are low, low + step, …, up to high; linear scale only.
    """

    type: Literal["integer"] = "integer"
    low: StrictInt = Field(description="The smallest value.")
    high: StrictInt = Field(description="The largest value.")
    scale: _Scale = "linear"
    step: StrictInt = Field(1, gt=0, description="Only low, low + step, … up to high; linear scale only.")

    def _mistakes(self) -> Iterator[Mistake]:
        for key, bound in (("low", self.low), ("high", self.high)):
            if abs(bound) > LARGEST_INTEGER:
                yield Mistake((key,), f"must be within ±2^53 ({LARGEST_INTEGER})", "use type: real for such numbers")
                return
        yield from _bounds_mistakes(self.low, self.high, self.scale, None if self.step == 1 else self.step)

    @property
    def size(self) -> float:
        """Number of values in the domain."""
        return (self.high - self.low) // self.step + 1

    @cached_property
    def _log_ends(self) -> tuple[float, float]:
        # Half a unit more at each end gives the end values their full share.
        return math.log(self.low - 0.5), math.log(self.high + 0.5)

    def from_unit(self, u: float) -> int:
        """Returns the value at `u`."""
        u = _clip(u)
        if self.scale == "log":
            low, high = self._log_ends
            return min(self.high, max(self.low, round(math.exp(low + u * (high - low)))))
        n = int(self.size)
        return self.low + self.step * min(n - 1, int(u * n))

    def to_unit(self, value: Any) -> float:
        """Returns the position of `value`; on a log scale numbers without a logarithm are at 0."""
        if not is_number(value):
            raise ValueError(f"must be a number, not {show(value)}")
        number = float(value)
        if self.scale == "log":
            low, high = self._log_ends
            return (math.log(number) - low) / (high - low) if number > 0 else 0.0
        return ((number - self.low) / self.step + 0.5) / self.size

    def canonical(self, value: Any) -> int:
        """Returns `value` as an int; 2.0 is 2."""
        if not is_number(value) or value != int(value):
            raise ValueError(f"must be a whole number between {self.low} and {self.high}, not {show(value)}")
        number = int(value)
        if not self.low <= number <= self.high:
            raise ValueError(f"must be between {self.low} and {self.high}, not {number}")
        if (number - self.low) % self.step:
            raise ValueError(f"must be {self.low} plus a multiple of {self.step}, not {number}")
        return number

    def grid(self, points: int) -> list[int]:
        """Returns evenly spread values, both ends included; all values if `points` is large enough."""
        n = int(self.size)
        if points >= n:
            return list(range(self.low, self.high + 1, self.step))
        if points == 1:
            return [self.from_unit(0.5)]
        if self.scale == "log":
            low, high = math.log(self.low), math.log(self.high)
            spread = [round(math.exp(low + i * (high - low) / (points - 1))) for i in range(points)]
            return list(dict.fromkeys(min(self.high, max(self.low, value)) for value in spread))
        return [self.low + self.step * round(i * (n - 1) / (points - 1)) for i in range(points)]


class _Choices(Domain):
    """A domain with a list of values."""

    choices: tuple[Scalar, ...] = Field(
        min_length=1,
        max_length=limits.MOST_CHOICES,
        description="The values: text, numbers, true, false or null; 1 and true are different values.",
    )

    @field_validator("choices")
    @classmethod
    def _check_choices(cls, choices: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        mistakes = []
        first: dict[str, int] = {}
        for index, choice in enumerate(choices):
            if isinstance(choice, float) and not math.isfinite(choice):
                mistakes.append(Mistake((index,), f"must be finite, not {choice}"))
            elif (key := value_key(choice)) in first:
                mistakes.append(Mistake((index,), f"{show(choice)} is listed twice", "remove one of the two"))
            else:
                first[key] = index
        refuse(mistakes)
        return choices

    @property
    def size(self) -> float:
        """Number of choices."""
        return len(self.choices)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {value_key(choice): index for index, choice in enumerate(self.choices)}

    def _index(self, value: Any) -> int:
        if getattr(value, "ndim", 1) == 0:
            value = value.item()  # a number of numpy
        if value is None or isinstance(value, bool | int | float | str):
            place = self._places.get(value_key(value))
            if place is not None:
                return place
            if is_number(value):
                # 32 means the choice 32.0, unless both 32 and 32.0 are choices: then the line above has found it.
                equal = [i for i, choice in enumerate(self.choices) if is_number(choice) and choice == value]
                if equal:
                    return equal[0]
        raise ValueError(f"must be {listing([show(c) for c in self.choices], 'or')}, not {show(value)}")

    def from_unit(self, u: float) -> Scalar:
        """Returns the choice at `u`; all choices have equal shares."""
        n = len(self.choices)
        return self.choices[min(n - 1, int(_clip(u) * n))]

    def to_unit(self, value: Any) -> float:
        """Returns the middle of the share of `value`."""
        return (self._index(value) + 0.5) / len(self.choices)

    def canonical(self, value: Any) -> Scalar:
        """Returns the choice equal to `value`."""
        return self.choices[self._index(value)]

    def grid(self, points: int) -> list[Any]:
        """Returns all choices, also if there are more than `points`."""
        return list(self.choices)


class Categorical(_Choices):
    """One of `choices`, without an order."""

    is_ordered: ClassVar[bool] = False
    type: Literal["categorical"] = "categorical"


class Ordinal(_Choices):
    """One of `choices`, in a meaningful order."""

    type: Literal["ordinal"] = "ordinal"


#: One hyper-parameter; `type` names the kind.
Dimension = Annotated[Real | Integer | Categorical | Ordinal, Field(discriminator="type")]

#: Reads one dimension from its mapping in a search file.
DIMENSION: TypeAdapter[Real | Integer | Categorical | Ordinal] = TypeAdapter(Dimension)

#: The kinds by `type`.
DIMENSION_TYPES: dict[str, type[Real | Integer | Categorical | Ordinal]] = {
    "real": Real,
    "integer": Integer,
    "categorical": Categorical,
    "ordinal": Ordinal,
}
