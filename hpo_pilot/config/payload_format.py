"""What a payload reads and writes: the contract that phpo, iDDS and hpogrid payloads keep too.

These models are the source of `schemas/payload_input.json` and `schemas/payload_output.json`; the runner, which is
shipped alone, keeps to them without importing them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, RootModel

from hpo_pilot.search import Scalar


class PayloadInput(RootModel[dict[str, Scalar]]):
    """input.json: the hyper-parameter point, each active parameter by its name."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"learning_rate": 0.001, "layers": 2, "solver": "adam"}]})


class PayloadOutput(BaseModel):
    """output.json: the figure of merit, under the name that the search's objective.metric gives it, here loss."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"examples": [{"status": 0, "loss": 0.123, "message": ""}]}
    )

    status: int = Field(0, description="0: good; anything else: the payload failed, and message says why.")
    loss: float | None = Field(
        None,
        description="The figure of merit: a finite number, unless status is not 0 or objective.metric names another.",
    )
    message: str = Field("", description="For people; shown with a failed trial.")
    metrics: dict[str, Any] = Field(default_factory=dict, description="More figures, kept and shown beside the first.")
