"""What the sections of a search file have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from hpo_pilot.search.point import StrictFloat, StrictInt, StrictStr

Text = Annotated[StrictStr, Field(min_length=1)]
Count = Annotated[StrictInt, Field(ge=1)]
Amount = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
