"""Trainings of any point to any step: recorded tables, and MFHartmann."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from hpo_pilot.search import Categorical, SearchSpace
from hpo_pilot.steering.search_file import load_search
from tests.performance.learning_curves import FOLDER, load
from tests.performance.learning_curves.record import SETTINGS, folder_of

#: Of MFHartmann the steps of a whole training.
_STEPS = 81


class Trainings(ABC):
    """A space, and how each of its points trains.

    Attributes:
        steps: of a whole training.
        typical_seconds: of a whole training.
    """

    space: SearchSpace
    steps: int
    typical_seconds: float

    @abstractmethod
    def value(self, point: Mapping[str, Any], step: int) -> float:
        """The cost after a step; infinite where the training failed by then."""

    @abstractmethod
    def seconds(self, point: Mapping[str, Any], step: int) -> float:
        """Of the training up to a step."""


class Recorded(Trainings):
    """A table: a point trains as the recorded one that is nearest, and its value is the mean over the folds.

    Distance is that in the unit cube. Two values of a choice differ by 1, and so do a value and none by a half.
    """

    def __init__(self, name: str) -> None:
        table = load(name)
        self.space = load_search(folder_of(name) / "search.yaml").space
        self.steps = table.steps
        sign = 1.0 if table.goal == "minimize" else -1.0
        self._places = np.array([self._place(point) for point in table.at])
        self._curves, self._seconds = [], []
        for folds in table.points:
            curves = np.full((len(folds), table.steps), math.inf)
            for row, fold in zip(curves, folds, strict=True):
                row[: len(fold.curve)] = sign * np.array(fold.curve)
                row[-1] = math.inf if fold.final is None else sign * fold.final
            self._curves.append(curves.mean(axis=0))
            self._seconds.append(sum(fold.seconds for fold in folds) / table.steps)
        self.typical_seconds = statistics.median(self._seconds) * self.steps
        self._rows: dict[tuple[Any, ...], int] = {}

    def _place(self, point: Mapping[str, Any]) -> list[float]:
        place = []
        for name, dimension in self.space.dimensions.items():
            if isinstance(dimension, Categorical):
                place += [math.sqrt(0.5) * (point.get(name) == choice) for choice in dimension.choices]
            else:
                place.append(dimension.to_unit(point[name]) if name in point else 0.5)
                if dimension.when:
                    place.append(0.0 if name in point else 0.5)
        return place

    def _row(self, point: Mapping[str, Any]) -> int:
        key = tuple(point.items())
        if key not in self._rows:
            self._rows[key] = int(np.argmin(((self._places - self._place(point)) ** 2).sum(axis=1)))
        return self._rows[key]

    def value(self, point: Mapping[str, Any], step: int) -> float:
        return float(self._curves[self._row(point)][step - 1])

    def seconds(self, point: Mapping[str, Any], step: int) -> float:
        return self._seconds[self._row(point)] * step


class MfHartmann(Trainings):
    """Hartmann's function whose heights are off by 0.1 (1 - z) at fidelity z, a step's share of a whole training.

    Of 3 and of 6 dimensions; Kandasamy, Dasarathy, Schneider, Póczos, ICML 2017, https://arxiv.org/abs/1703.06240, with
    the cost functions of their library Dragonfly, `hartmann3_2_mf` and `hartmann6_4_mf`; its four fidelities are one.
    """

    _ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
    _A3 = np.array([[3.0, 10, 30], [0.1, 10, 35], [3.0, 10, 30], [0.1, 10, 35]])
    _P3 = 1e-4 * np.array([[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]])

    def __init__(self, dimensions: int) -> None:
        from tests.performance.optimizers.problems import _A, _P

        self._a, self._p = (self._A3, self._P3) if dimensions == 3 else (_A, _P)
        self._names = [f"x{number}" for number in range(dimensions)]
        self.space = SearchSpace.from_dict({n: {"type": "real", "low": 0.0, "high": 1.0} for n in self._names})
        self.steps, self.typical_seconds = _STEPS, 1.0

    def value(self, point: Mapping[str, Any], step: int) -> float:
        x = np.array([point[name] for name in self._names])
        heights = self._ALPHA - 0.1 * (1 - step / self.steps)
        return float(-heights @ np.exp(-np.sum(self._a * (x - self._p) ** 2, axis=1)))

    def seconds(self, point: Mapping[str, Any], step: int) -> float:
        z = step / self.steps
        parts = (z, z * z, z**3) if len(self._names) == 3 else (z, z, z * z, z**3)
        return 0.1 + 0.9 * statistics.fmean(parts) if step else 0.0


#: Recorded tables first.
NAMES = (*(name for name in SETTINGS if (FOLDER / f"{name}.json.gz").exists()), "mfhartmann3", "mfhartmann6")


@cache
def trainings(name: str) -> Trainings:
    """The trainings of this name.

    Raises:
        ValueError: there are none.
    """
    if name not in NAMES:
        raise ValueError(f"no trainings {name!r}; there are {', '.join(NAMES)}")
    return MfHartmann(int(name[-1])) if name.startswith("mfhartmann") else Recorded(name)
