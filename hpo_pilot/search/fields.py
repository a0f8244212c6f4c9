"""Types of fields and the base of the sections of a search file; reads stored models."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, Strict, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

StrictInt = Annotated[int, Strict()]
StrictFloat = Annotated[float, Strict()]
StrictStr = Annotated[str, Strict()]
StrictBool = Annotated[bool, Strict()]

#: Value of a hyper-parameter. Strict types keep `1`, `1.0` and `true` apart.
Scalar = StrictBool | StrictInt | StrictFloat | StrictStr | None

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


_Model = TypeVar("_Model", bound=BaseModel)


def read_stored(model: type[_Model], data: Mapping[str, Any]) -> _Model:
    """Reads a stored `model`, which an earlier version without limits may have written: larger counts are kept.

    Raises:
        ValidationError: it has another mistake.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        document = copy.deepcopy(dict(data))
        mistakes = error.errors(include_url=False)
        beyond = {_place(data, one["loc"]): one for one in mistakes if one["type"] == "less_than_equal"}
        for place, mistake in beyond.items():
            reduce(getitem, place[:-1], document)[place[-1]] = mistake["ctx"]["le"]
        found = model.model_validate(document)
        for place, mistake in beyond.items():
            found = _with(found, place, mistake["input"])
        return found


def _place(document: Any, location: Sequence[int | str]) -> tuple[str, ...]:
    """Returns the keys in pydantic's location, without the names of members of unions."""
    place: list[str] = []
    for part in location:
        if isinstance(document, Mapping) and part in document:
            place.append(str(part))
            document = document[part]
    return tuple(place)


def _with(model: _Model, place: Sequence[str], value: Any) -> _Model:
    """Returns `model` with an unchecked value at `place`."""
    inner = value if len(place) == 1 else _with(getattr(model, place[0]), place[1:], value)
    return model.model_copy(update={place[0]: inner})
