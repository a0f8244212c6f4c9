"""Types of fields and the base of the sections of a search file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, Strict, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from hpo_pilot.search.mistakes import Mistake, refuse

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

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse(self._mistakes())
        return self

    def _mistakes(self) -> Iterable[Mistake]:
        """Returns the mistakes between valid fields; paths start at a field."""
        return ()


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
