"""Hyper-parameter values and points, and field types for the sections of a search file."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, Strict, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

StrictInt = Annotated[int, Strict()]
StrictFloat = Annotated[float, Strict()]
StrictStr = Annotated[str, Strict()]
StrictBool = Annotated[bool, Strict()]

#: Value of a hyper-parameter. Strict types keep `1`, `1.0` and `true` apart.
Scalar = StrictBool | StrictInt | StrictFloat | StrictStr | None

#: A hyper-parameter point: the active dimensions only, as native Python values.
Point = dict[str, Any]


def value_key(value: Any) -> str:
    """Returns the identity of a value: `1`, `1.0`, `True` and `"1"` all differ."""
    return json.dumps(value)


def point_key(point: Mapping[str, Any]) -> str:
    """Returns the identity of a point, which does not depend on the order of the names."""
    return json.dumps(point, sort_keys=True)


def is_number(value: Any) -> bool:
    """Returns whether `value` is a finite number, numpy's included; False for booleans."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the floats
        return False


def show(value: Any) -> str:
    """Returns `value` for a message, written as in a search file and short enough for a line."""
    if value is None:
        return "empty (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:56]}…{text[-1]}"


Text = Annotated[StrictStr, Field(min_length=1)]
Count = Annotated[StrictInt, Field(ge=1)]
Amount = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of the sections of a search file: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ShortSection(Section):
    """A section that may be given as the value of its main key alone: `folds: 5` is `folds: {k: 5}`."""

    #: The main key, the type of its value, and the JSON Schema of the value alone.
    short: ClassVar[tuple[str, type, JsonSchemaValue]]

    @model_validator(mode="before")
    @classmethod
    def _of_value_alone(cls, value: Any) -> Any:
        key, kind, _ = cls.short
        return {key: value} if type(value) is kind else value  # True is no int here

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [cls.short[2], handler(schema)]}
