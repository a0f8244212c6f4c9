"""A hyper-parameter of any kind: the names under which the rest of the product knows them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, TypeAdapter

from hpo_pilot.search.choice import Categorical, Ordinal
from hpo_pilot.search.number import Integer, Real
from hpo_pilot.search.point import Point, Scalar, point_key, value_key

__all__ = [
    "DIMENSION",
    "DIMENSION_TYPES",
    "Categorical",
    "Dimension",
    "Integer",
    "Ordinal",
    "Point",
    "Real",
    "Scalar",
    "point_key",
    "value_key",
]

#: One hyper-parameter; its `type` says which kind.
Dimension = Annotated[Real | Integer | Categorical | Ordinal, Field(discriminator="type")]

#: Reads one dimension from the mapping that a search file has for it.
DIMENSION: TypeAdapter[Real | Integer | Categorical | Ordinal] = TypeAdapter(Dimension)

#: The kinds by the `type` that names them.
DIMENSION_TYPES: dict[str, type[Real | Integer | Categorical | Ordinal]] = {
    "real": Real,
    "integer": Integer,
    "categorical": Categorical,
    "ordinal": Ordinal,
}
