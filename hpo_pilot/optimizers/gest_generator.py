"""Our optimizers as generators of the standard of Xopt, optimas and libEnsemble (gest-api 0.2); needs the extra `gest`.

Source: https://generator-standard.readthedocs.io
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gest_api.generator import Generator
from gest_api.vocs import VOCS, BaseVariable, DiscreteVariable, MaximizeObjective, MinimizeObjective

from hpo_pilot.errors import ExhaustedError, InputError
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.search import SearchSpace
from hpo_pilot.search.values import is_number


class HpoPilotGenerator(Generator):  # type: ignore[misc]  # it ships no types
    """Suggests points by one of our optimizers.

    An evaluation without a finite number for each objective has failed, and so has one that violates a constraint: the
    optimizer avoids their surroundings. Points that were suggested and not ingested count as running.
    """

    returns_id = False

    def __init__(
        self,
        vocs: VOCS,
        *,
        optimizer: str = "auto",
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
        trials: int | None = None,
    ) -> None:
        """Makes a generator without results.

        Args:
            vocs: variables, objectives, constraints and constants.
            optimizer: the name of an optimizer, as in a search file.
            seed: the same seed and the same results give the same points.
            settings: the settings beside the name in a search file.
            trials: the planned number of points, for schedules; None: unknown.

        Raises:
            ValueError: the optimizer or its settings are wrong, or it cannot take these variables or objectives.
        """
        super().__init__(vocs)
        self.vocs = vocs
        try:
            self._optimizer = create_optimizer(
                optimizer, _space(vocs), seed=seed, settings=settings, trials=trials, objectives=vocs.n_objectives
            )
        except InputError as error:
            raise ValueError(str(error)) from error

    def _validate_vocs(self, vocs: VOCS) -> None:
        _space(vocs)
        wrong = [
            name for name, one in vocs.objectives.items() if not isinstance(one, MinimizeObjective | MaximizeObjective)
        ]
        if wrong or not vocs.objectives:
            raise ValueError(
                f"objectives must be one or more of MINIMIZE and MAXIMIZE; remove {', '.join(wrong) or '{}'}"
            )

    def suggest(self, num_points: int | None = None) -> list[dict[str, Any]]:
        """Returns new points with the constants; one, if no number is given.

        Raises:
            ValueError: fewer points are left in the space; none was suggested.
        """
        wanted = 1 if num_points is None else num_points
        before = dict(self._optimizer._asked)
        try:
            points = self._optimizer.ask(wanted) if wanted else []
        except ExhaustedError as error:
            raise ValueError(str(error)) from error
        if len(points) < wanted:
            self._optimizer._asked = before
            raise ValueError(f"only {len(points)} points are left in the space: ask for these")
        constants = {name: constant.value for name, constant in self.vocs.constants.items()}
        return [{**constants, **point} for point in points]

    def ingest(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Takes evaluated points, also of other sources; keys beyond the VOCS have no effect.

        Raises:
            ValueError: a variable is missing, or a value is no number. No result of the call was taken.
        """
        signs = [-1 if isinstance(one, MaximizeObjective) else 1 for one in self.vocs.objectives.values()]
        told: list[tuple[dict[str, Any], list[Any] | None]] = []
        for row in results:
            point = {name: row[name] for name in self.vocs.variables if name in row}
            valid = (is_number(row.get(name)) and one.check(row[name]) for name, one in self.vocs.constraints.items())
            values: Any = [row.get(name) for name in self.vocs.objectives]
            is_complete = all(valid) and None not in values
            told.append((point, [s * v for s, v in zip(signs, values, strict=True)] if is_complete else None))
        try:
            self._optimizer.tell(told)
        except InputError as error:
            raise ValueError(str(error)) from error


def _space(vocs: VOCS) -> SearchSpace:
    try:
        return SearchSpace.from_dict({name: _dimension(name, variable) for name, variable in vocs.variables.items()})
    except InputError as error:
        raise ValueError(str(error)) from error


def _dimension(name: str, variable: BaseVariable) -> dict[str, Any]:
    """Returns the domain of a variable, as in a search file; sets of numbers have an order."""
    if isinstance(variable, DiscreteVariable):
        are_numbers = all(map(is_number, variable.values))
        choices = sorted(variable.values, key=None if are_numbers else repr)
        return {"type": "ordinal" if are_numbers else "categorical", "choices": choices}
    kind = np.dtype(variable.dtype).kind
    if kind not in "iuf":
        raise ValueError(f"variable {name} must be a number or a set of values, not {variable.dtype}")
    low, high = variable.domain
    whole = kind != "f"
    return {
        "type": "integer" if whole else "real",
        "low": int(low) if whole else low,
        "high": int(high) if whole else high,
    }
