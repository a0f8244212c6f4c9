"""Trainings of any point to any step: recorded tables, MFHartmann, and made-up ones to develop on."""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

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
    """A table: a point trains as the weighted mean of the recorded ones that are nearest, with the mean over folds.

    The weights are those of Franke and Little, ((R - d) / (R d))^2 at the distance d, with the distance R of the fifth
    nearest: a recorded point trains as recorded, and no two points train alike. As the nearest recorded one alone would
    train, optimizers repeat the same training again and again: 65 trainings of `wine` were of 19 recorded points.

    Distance is that in the unit cube. Two values of a choice differ by 1, and so do a value and none by a half.
    """

    _NEAREST = 4

    def __init__(self, name: str) -> None:
        table = load(name)
        self.space = load_search(folder_of(name) / "search.yaml").space
        self.steps = table.steps
        sign = 1.0 if table.goal == "minimize" else -1.0
        self._places = np.array([self._place(point) for point in table.at])
        made, seconds = [], []
        for folds in table.points:
            curves = np.full((len(folds), table.steps), math.inf)
            for row, fold in zip(curves, folds, strict=True):
                row[: len(fold.curve)] = sign * np.array(fold.curve)
                row[-1] = math.inf if fold.final is None else sign * fold.final
            made.append(curves.mean(axis=0))
            seconds.append(sum(fold.seconds for fold in folds) / table.steps)
        self._curves, self._seconds = np.array(made), np.array(seconds)
        self.typical_seconds = statistics.median(seconds) * self.steps
        self._mixed: dict[tuple[Any, ...], tuple[Any, float]] = {}

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

    def _training(self, point: Mapping[str, Any]) -> tuple[Any, float]:
        """Returns the values after each step and the seconds of a step."""
        key = tuple(point.items())
        if key not in self._mixed:
            distances = np.sqrt(((self._places - self._place(point)) ** 2).sum(axis=1))
            rows = np.argsort(distances, kind="stable")[: self._NEAREST + 1]
            *near, radius = np.maximum(distances[rows], 1e-9)
            weights = (1 / np.array(near) - 1 / radius) ** 2 + 1e-12
            weights, rows = weights / weights.sum(), rows[:-1]
            self._mixed[key] = weights @ self._curves[rows], float(weights @ self._seconds[rows])
        return self._mixed[key]

    def value(self, point: Mapping[str, Any], step: int) -> float:
        return float(self._training(point)[0][step - 1])

    def seconds(self, point: Mapping[str, Any], step: int) -> float:
        return self._training(point)[1] * step


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
        self.space, self._names = _cube(dimensions)
        self.steps, self.typical_seconds = _STEPS, 1.0

    def value(self, point: Mapping[str, Any], step: int) -> float:
        x = np.array([point[name] for name in self._names])
        heights = self._ALPHA - 0.1 * (1 - step / self.steps)
        return float(-heights @ np.exp(-np.sum(self._a * (x - self._p) ** 2, axis=1)))

    def seconds(self, point: Mapping[str, Any], step: int) -> float:
        z = step / self.steps
        parts = (z, z * z, z**3) if len(self._names) == 3 else (z, z, z * z, z**3)
        return 0.1 + 0.9 * statistics.fmean(parts) if step else 0.0


class Developed(Trainings):
    """Made-up power laws, to develop on: recorded tables and MFHartmann are for the report.

    Their end is a rotated bowl with ripples. `same`: all curves have one shape, so ranks never change. `speed`: slow
    curves cross fast ones, by one parameter. `offset`: height and speed vary smoothly over the space. `random`: heights
    vary from point to point. `crossing`: heights vary so much that ranks agree as those of recorded tables do, by a
    correlation of 0.6 at 3 epochs, and hardly among the better half. `slow`: so that the best points learn most slowly.
    With `table` before it, a point trains as the nearest of 100. All but `same` are noisy.

    A step takes a second. With `dear` or `cheap` in front, two parameters make it up to five times as long each, with a
    noise of a tenth, so that the best points are among the dear or among the cheap ones.
    """

    NOISE: ClassVar[dict[str, float]] = {
        "same": 0.0,
        "speed": 0.005,
        "offset": 0.005,
        "random": 0.01,
        "crossing": 0.03,
        "slow": 0.03,
    }
    COSTS: ClassVar[dict[str, float]] = {"dear": 1.0, "cheap": -1.0}

    def __init__(self, kind: str, dimensions: int, instance: int) -> None:
        self.space, names = _cube(dimensions)
        costs, kind = next((cost, kind.removeprefix(cost)) for cost in (*self.COSTS, "") if kind.startswith(cost))
        self._names, self._kind = names, kind.removeprefix("table")
        self.steps, self.typical_seconds = _STEPS, float(_STEPS)
        rng = np.random.default_rng([instance, dimensions, sum(map(ord, kind))])
        self._best = 0.15 + 0.7 * rng.random(dimensions)
        rotation, _ = np.linalg.qr(rng.normal(size=(dimensions, dimensions)))
        self._axes = rotation * np.exp(rng.uniform(-1, 1, dimensions))[:, None]
        self._ripples, self._heights, self._speeds = (_waves(rng, dimensions, scale) for scale in (0.35, 0.6, 0.6))
        self._table = rng.random((100, dimensions)) if kind.startswith("table") else None
        self._noise = self.NOISE[self._kind]
        towards = np.sign(self._best[:2] - 0.5) * self.COSTS.get(costs, 0.0)
        self._dearer = math.log(5.0) * towards

    def _training(self, point: Mapping[str, Any]) -> tuple[Any, Any]:
        """Returns the place whose training is that of a point, and its random numbers."""
        x = np.array([point[name] for name in self._names])
        if self._table is not None:
            x = self._table[int(np.argmin(((self._table - x) ** 2).sum(axis=1)))]
        seed = np.frombuffer(hashlib.sha256(x.tobytes()).digest(), dtype=np.uint32)
        return x, np.random.default_rng(seed).normal(size=self.steps + 3)

    def value(self, point: Mapping[str, Any], step: int) -> float:
        x, chance = self._training(point)
        away = self._axes @ (x - self._best)
        height, speed = 1.0, 0.6
        if self._kind == "speed":
            height, speed = 1.2, 0.25 + 0.9 * float(x[0])
        elif self._kind == "offset":
            height, speed = 1.0 + 0.5 * self._heights(x), 0.6 + 0.2 * math.tanh(self._speeds(x))
        elif self._kind == "random":
            height = math.exp(0.35 * chance[0])
        end = 0.6 * math.log1p(4.0 * float(away @ away)) + 0.12 * self._ripples(x)
        if self._kind in ("crossing", "slow"):
            height, speed = 4.0 + 3.0 * self._heights(x), 0.3
            if self._kind == "slow":
                height -= 3.0 * (end - 0.8)
        noise = 3.0 * (1.0 - step / self.steps) * chance[step] + 0.3 * chance[self.steps + 1]
        return float(end + 0.35 * height * (step**-speed - self.steps**-speed) + self._noise * noise)

    def seconds(self, point: Mapping[str, Any], step: int) -> float:
        if not self._dearer.any():
            return float(step)
        x, chance = self._training(point)
        return float(step * math.exp(self._dearer @ (x[:2] - 0.5) + 0.1 * chance[-1]))


def _cube(dimensions: int) -> tuple[SearchSpace, list[str]]:
    names = [f"x{number}" for number in range(dimensions)]
    return SearchSpace.from_dict({name: {"type": "real", "low": 0.0, "high": 1.0} for name in names}), names


def _waves(rng: np.random.Generator, dimensions: int, scale: float) -> Callable[[Any], float]:
    """A smooth random function of variance 1, which varies over this distance."""
    waves, phases = rng.normal(size=(64, dimensions)) / scale, rng.uniform(0, 2 * np.pi, 64)
    sizes = rng.normal(size=64) * math.sqrt(2 / 64)
    return lambda x: float(sizes @ np.cos(waves @ x + phases))


#: Recorded tables first.
NAMES = (*(name for name in SETTINGS if (FOLDER / f"{name}.json.gz").exists()), "mfhartmann3", "mfhartmann6")


@cache
def trainings(name: str) -> Trainings:
    """The trainings of this name: of `NAMES`, or `dev:KIND:INSTANCE`, such as `dev:tableoffset:0`.

    Raises:
        ValueError: there are none.
    """
    dev, _, rest = name.partition(":")
    kind, _, instance = rest.partition(":")
    made = re.fullmatch(f"({'|'.join(Developed.COSTS)})?(table)?({'|'.join(Developed.NOISE)})", kind)
    if dev == "dev" and made and instance.isdecimal():
        return Developed(kind, 5 if made[2] else 4, int(instance))
    if name not in NAMES:
        raise ValueError(f"no trainings {name!r}; there are {', '.join(NAMES)} and dev:KIND:INSTANCE")
    return MfHartmann(int(name[-1])) if name.startswith("mfhartmann") else Recorded(name)
