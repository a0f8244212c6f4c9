"""What the sections of a site profile have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, StringConstraints

Text = Annotated[StrictStr, Field(min_length=1)]
Name = Annotated[StrictStr, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$")]
Variable = Annotated[StrictStr, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Line = Annotated[StrictStr, StringConstraints(min_length=1, pattern=r"^[^\r\n]*$")]
Folder = Annotated[StrictStr, StringConstraints(pattern=r"^[/$]")]
Count = Annotated[StrictInt, Field(ge=1, lt=2**31)]
Watts = Annotated[StrictFloat, Field(ge=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
