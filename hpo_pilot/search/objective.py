"""What is optimised: one of the payload's figures, or several, of which none may get better at another's cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from hpo_pilot.search import limits
from hpo_pilot.search.misfit import Misfit
from hpo_pilot.search.point import StrictFloat, StrictStr
from hpo_pilot.search.section import Section


class Objective(Section):
    """Which of the payload's figures is optimised."""

    metric: Annotated[StrictStr, Field(min_length=1)] = Field(
        "loss", description="The key in output.json whose value is the figure of merit."
    )
    goal: Literal["minimize", "maximize"] = Field("minimize", description="Which way is better.")
    reference: Annotated[StrictFloat, Field(allow_inf_nan=False)] | None = Field(
        None,
        description="Of several objectives: the figure beyond which a trial adds nothing to the hypervolume. "
        "Default: found from the first trials.",
    )

    @property
    def sign(self) -> int:
        """+1 to minimise, -1 to maximise: figure x sign is what optimizers minimise."""
        return 1 if self.goal == "minimize" else -1

    def to_dict(self) -> dict[str, Any]:
        """As a search file has it; without a reference where there is none."""
        own: dict[str, Any] = {"metric": self.metric, "goal": self.goal}
        return own if self.reference is None else {**own, "reference": self.reference}


class _OneOrMore:
    """The JSON Schema of a list whose only item may stand alone."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        several = handler(schema)
        text = "Several: a search for the Pareto front."
        return {"anyOf": [several["items"], {**several, "minItems": 1, "description": text}]}


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


#: One objective or several, as a tuple; a search file may give a single one without a list.
Objectives = Annotated[
    tuple[Objective, ...], Field(max_length=limits.MOST_OBJECTIVES), BeforeValidator(_listed), _OneOrMore()
]


def objective_misfits(objectives: Sequence[Objective | None]) -> list[Misfit]:
    """What is wrong with several objectives together; paths are those of a search file. None: what is not even one."""
    misfits: list[Misfit] = []
    if not objectives:
        misfits.append(Misfit(("objective",), "is empty", "give it a value, or leave the key out"))
    first: dict[str, int] = {}
    for index, objective in enumerate(objectives):
        if objective is None:
            continue
        same = first.setdefault(objective.metric, index)
        if same != index:
            message = f"{objective.metric} is the metric of objective[{same}] too"
            misfits.append(
                Misfit(("objective", index, "metric"), message, "name another figure, or remove one of them")
            )
    return misfits


def known_value_misfits(count: int, values: Sequence[float | Sequence[float] | None]) -> list[Misfit]:
    """Whether known results have a figure for each of `count` objectives; paths are those of a search file."""
    wanted = "one number" if count == 1 else f"a list of {count} numbers, one for each objective"
    wrong = [
        index
        for index, value in enumerate(values)
        if value is not None and (len(value) != count or count == 1 if isinstance(value, Sequence) else count > 1)
    ]
    return [Misfit(("known", index, "value"), f"must be {wanted}; null: it failed") for index in wrong]


def costs(objectives: Sequence[Objective], figures: Sequence[float]) -> tuple[float, ...]:
    """Figures of merit as optimizers take them: lower is better in each."""
    return tuple(objective.sign * figure for objective, figure in zip(objectives, figures, strict=True))
