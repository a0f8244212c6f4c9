"""Generators of other packages as optimizers, by the standard of Xopt, optimas and libEnsemble (gest-api).

Each `ask` makes a new generator and ingests the told results in their order, so that the points depend on nothing else.
A generator keeps the rest of the contract only if all its randomness comes from its seed or from the global streams of
Python, numpy and torch, and if its state is made of what it ingested.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from hpo_pilot.errors import InputError
from hpo_pilot.optimizers.base import BaseSettings, Optimizer, foreign_class, global_randomness, one_thread, stream
from hpo_pilot.optimizers.proposals import unit_vector
from hpo_pilot.search import Mistake, MistakeError, Point, SearchSpace, point_key

#: Names of a constructor's argument for the seed.
_SEEDS = ("seed", "random_seed", "random_state")

#: Larger values are told as this: their squares would overflow.
_LARGEST = 1e100

#: For each wanted point, the number of repeated and of unusable points that a generator may suggest in an `ask`, before
#: the missing points are drawn at random.
_PATIENCE, _DRAWS_PER_POINT = 4, 40


class GestSettings(BaseSettings):
    """The class of the generator and its arguments besides the VOCS."""

    generator: str = Field(pattern=r"^[\w.]+:\w+$")
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> GestSettings:
        try:
            from gest_api.generator import Generator  # noqa: PLC0415 - an extra
        except ImportError as error:
            message = "needs gest-api, which is not installed"
            raise MistakeError([Mistake((), message, "pip install 'hpo-pilot[gest]'")]) from error
        foreign_class("generator", self.generator, Generator)
        space = SearchSpace.from_dict({n: {"type": "real", "low": 0.0, "high": 1.0} for n in "xy"})
        try:
            self.made(space, 1, 0).finalize()
        except Exception as error:
            message = f"{self.generator} refuses these options: {type(error).__name__}: {error}"
            raise MistakeError([Mistake(("options",), message)]) from error
        return self

    def made(self, space: SearchSpace, objectives: int, seed: int) -> Any:
        """Returns the generator; each parameter is a variable from 0 to 1, also scales and choices."""
        from gest_api.generator import Generator  # noqa: PLC0415 - an extra
        from gest_api.vocs import VOCS  # noqa: PLC0415 - as above

        cls = foreign_class("generator", self.generator, Generator)
        known = inspect.signature(cls.__init__).parameters
        seeds = {key: seed for key in _SEEDS if key in known and key not in self.options}
        variables = {name: [0.0, 1.0] for name in space.names}
        vocs = VOCS(variables=variables, objectives=dict.fromkeys(_names(objectives), "MINIMIZE"))
        return cls(vocs, **seeds, **self.options)


def _names(objectives: int) -> list[str]:
    return [f"objective_{number}" for number in range(1, objectives + 1)]


class GestOptimizer(Optimizer):
    """`{name: gest, generator: "package.module:Class", options: {…}}`.

    It learns from finished trials, and counts pending points with the mean of the told values (a constant liar:
    Ginsbourger et al., 2010); failed trials and points outside the space are not told.
    """

    Settings = GestSettings
    settings: GestSettings
    several_objectives = True
    learns_from_earlier = False

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        rng = stream(self.seed, "gest", proposals.known)
        try:
            with global_randomness(rng), one_thread():
                generator = self.settings.made(self.space, self.objectives, rng.getrandbits(31))
                try:
                    if rows := self._rows(pending):
                        generator.ingest(rows)
                    seen: set[str] = set()
                    repeated = 0
                    # A stream of points may begin with all known ones.
                    most = proposals.known + _DRAWS_PER_POINT * n
                    while proposals.missing and repeated < _PATIENCE * n and len(seen) < most:
                        for row in _suggested(generator, proposals.missing):
                            point = self.space.decode(
                                [min(1.0, max(0.0, np.asarray(row[name]).item())) for name in self.space.names]
                            )
                            proposals.offer_point(point)
                            repeated += (key := point_key(point)) in seen
                            seen.add(key)
                finally:
                    generator.finalize()
        except Exception as error:
            message = f"optimizer gest: {self.settings.generator} failed: {type(error).__name__}: {error}"
            raise InputError(message) from error
        return proposals.complete(rng, self._known_points(pending))

    def _rows(self, pending: list[Point]) -> list[dict[str, Any]]:
        told = [(o.unit, o.values) for o in self.history if o.unit and o.values and o.is_within_bounds]
        if told:
            columns = zip(*(values for _, values in told), strict=True)
            mean = tuple(float(np.mean(np.clip(column, -_LARGEST, _LARGEST))) for column in columns)
            told += [(unit, mean) for point in pending if (unit := unit_vector(self.space, point))]
        return [
            dict(zip(self.space.names, unit, strict=True))
            | {
                name: min(_LARGEST, max(-_LARGEST, value))
                for name, value in zip(_names(self.objectives), values, strict=True)
            }
            for unit, values in told
        ]


def _suggested(generator: Any, count: int) -> list[dict[str, Any]]:
    """Returns suggested points; a generator that cannot make this number decides itself."""
    try:
        rows = generator.suggest(count)
    except ValueError:
        rows = generator.suggest(None)
    if not rows:
        raise ValueError("it suggests no point")
    return list(rows)
