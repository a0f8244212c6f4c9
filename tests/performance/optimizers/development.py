"""Random problems to develop on, so that nobody tunes to those of the table: kinds by name, instances by number."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpo_pilot.search import Point, SearchSpace
from tests.performance.optimizers.problem import Problem

# Shapes to search: functions of the distance to the best point, 0 there and 0 or more everywhere.
#
# A shape takes offsets from the best point in the unit cube, shape (n_dims,), each within [-1, 1].

Array: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = Callable[[Array], float]


def rotation(n: int, rng: np.random.Generator) -> Array:
    """A random orthogonal matrix, shape (n, n)."""
    q, r = np.linalg.qr(rng.standard_normal((n, n)))
    return np.asarray(q * np.sign(np.diag(r)))


def quadratic(n: int, rng: np.random.Generator, *, decades: float = 1.5, rotated: bool = True) -> Shape:
    """A bowl whose axes differ by up to `decades` powers of ten in steepness."""
    turn = rotation(n, rng) if rotated else np.eye(n)
    steepness = 10 ** rng.uniform(-decades, 0.0, n)
    return lambda z: float(np.sum(steepness * (turn @ z) ** 2))


def rastrigin(n: int, rng: np.random.Generator) -> Shape:
    """A bowl with ripples, along axes that are turned or not."""
    bowl, turn = quadratic(n, rng, decades=0.5), rotation(n, rng) if rng.random() < 0.5 else np.eye(n)
    height, waves = 10 ** rng.uniform(-2.0, -0.7), rng.uniform(2.0, 6.0)
    return lambda z: bowl(z) + height * float(np.mean(1 - np.cos(2 * math.pi * waves * (turn @ z))))


def levy(n: int, rng: np.random.Generator) -> Shape:
    """Lévy's function, turned and stretched."""
    turn, stretch = rotation(n, rng), rng.uniform(3.0, 8.0)

    def value(z: Array) -> float:
        w = 1 + stretch * (turn @ z) / 2
        inner = (w[:-1] - 1) ** 2 * (1 + 10 * np.sin(math.pi * w[:-1] + 1) ** 2)
        last = (w[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * w[-1]) ** 2)
        return float(math.sin(math.pi * w[0]) ** 2 + inner.sum() + last)

    return value


def valley(n: int, rng: np.random.Generator) -> Shape:
    """A bent valley as Rosenbrock's, turned a little, its floor sloping gently."""
    order, stretch, walls = rng.permutation(n), rng.uniform(2.0, 3.5), 10 ** rng.uniform(1.0, 2.0)

    def value(z: Array) -> float:
        x = 1 + stretch * z[order]
        return float(np.sum(walls * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))

    return value


def funnel(n: int, rng: np.random.Generator) -> Shape:
    """Ackley's: flat far out, rippled, steep at the bottom."""
    turn, stretch, depth = rotation(n, rng), rng.uniform(4.0, 20.0), rng.uniform(0.1, 0.3)

    def value(z: Array) -> float:
        x = stretch * (turn @ z)
        waves = math.exp(float(np.mean(np.cos(2 * math.pi * x))))
        return 20 - 20 * math.exp(-depth * math.sqrt(float(np.mean(x * x)))) + math.e - waves

    return value


def ridge(n: int, rng: np.random.Generator) -> Shape:
    """A kink instead of a smooth bottom: distance, not its square, steeper across than along."""
    turn, steepness = rotation(n, rng), 10 ** rng.uniform(-1.0, 0.5, n)
    return lambda z: float(np.sum(steepness * np.abs(turn @ z)))


def plateaus(n: int, rng: np.random.Generator) -> Shape:
    """A bowl in steps: most moves change nothing."""
    bowl, steps = quadratic(n, rng, decades=1.0), rng.uniform(6.0, 25.0)
    return lambda z: math.floor(steps * math.sqrt(bowl(z))) / steps


def two_basins(n: int, rng: np.random.Generator) -> Shape:
    """A wide basin that is good, and a narrower one elsewhere that is better."""
    aside = rng.choice([-1.0, 1.0], n) * rng.uniform(0.25, 0.45, n)
    sharpness, gap = rng.uniform(2.0, 6.0), rng.uniform(0.05, 0.2)

    def value(z: Array) -> float:
        return min(sharpness * float(np.mean(z * z)), gap + 0.5 * float(np.mean((z - aside) ** 2)))

    return value


def few_matter(n: int, rng: np.random.Generator) -> Shape:
    """Many dimensions, of which three or four decide nearly everything."""
    some = rng.permutation(n)[: rng.integers(3, 5)]
    inner = valley(len(some), rng) if rng.random() < 0.5 else rastrigin(len(some), rng)
    return lambda z: inner(z[some]) + 1e-3 * float(np.mean(z * z))


def steep(n: int, rng: np.random.Generator) -> Shape:
    """A narrow turned valley, straight or bent, with values over four to seven powers of ten."""
    turn = rotation(n, rng)
    if rng.random() < 0.5:
        bent, stretch = valley(n, rng), rng.uniform(2.0, 4.0)
        return lambda z: bent(stretch * (turn @ z))
    steepness = 10 ** (rng.uniform(4.0, 7.0) * rng.permutation(np.linspace(0.0, 1.0, n)))
    return lambda z: float(np.sum(steepness * (turn @ z) ** 2))


SMOOTH: tuple[Callable[[int, np.random.Generator], Shape], ...] = (quadratic, valley, levy, ridge)


# Kinds of random problems: a space, a best point in it, and a shape around that point.

Kind: TypeAlias = Callable[[str, np.random.Generator], Problem]
_Maker: TypeAlias = Callable[[int, np.random.Generator], Shape]


def _real(rng: np.random.Generator, log: bool = False) -> dict[str, Any]:
    if log:
        low = 10.0 ** float(rng.integers(-7, -1))
        return {"type": "real", "low": low, "high": low * 10.0 ** float(rng.integers(2, 6)), "scale": "log"}
    low = float(np.round(rng.uniform(-5, 5), 2))
    return {"type": "real", "low": low, "high": low + float(np.round(10 ** rng.uniform(-1, 2), 2)) + 0.01}


def _integer(rng: np.random.Generator) -> dict[str, Any]:
    if rng.random() < 0.4:
        return {"type": "integer", "low": 8, "high": int(2 ** rng.integers(7, 11)), "scale": "log"}
    low = int(rng.integers(0, 4))
    return {"type": "integer", "low": low, "high": low + int(rng.integers(3, 20))}


def _ordinal(rng: np.random.Generator) -> dict[str, Any]:
    return {"type": "ordinal", "choices": [2**k for k in range(int(rng.integers(3, 8)))]}


def _categorical(rng: np.random.Generator) -> dict[str, Any]:
    return {"type": "categorical", "choices": list("abcdefgh")[: rng.integers(2, 7)]}


def _best(space: SearchSpace, rng: np.random.Generator) -> Point:
    """A random point that is not at a bound of anything continuous."""
    return space.decode(rng.uniform(0.1, 0.9, len(space.names)).tolist())


def _scaled(rng: np.random.Generator) -> tuple[Callable[[float], float], float]:
    """A rising transform of a value (0 stays 0) with an offset: losses come in all scales, and may be negative."""
    offset = float(rng.choice([0.0, 100.0, -3.0, 0.7]))
    scale = 10 ** rng.uniform(-2, 2)
    bend = rng.choice(["none", "root", "log"], p=[0.5, 0.25, 0.25])
    forms: dict[str, Callable[[float], float]] = {
        "none": lambda v: v,
        "root": math.sqrt,
        "log": lambda v: math.log1p(30 * v) / 3,
    }
    form = forms[str(bend)]
    return (lambda v: offset + scale * form(max(0.0, v))), offset


def _edge(name: str, rng: np.random.Generator) -> Problem:
    """A smooth shape whose best point is in a corner of half of the dimensions."""
    inner = _continuous(_any_smooth, 3, 8)(name, rng)
    ends = [rng.choice([0.0, 1.0]) if rng.random() < 0.5 else None for _ in inner.space.names]
    at = inner.space.encode(inner.best)

    def value(point: Mapping[str, Any]) -> Any:
        moved = [
            place if end is None else a + abs(place - end) * (1 - a if a < 0.5 else -a)
            for place, end, a in zip(inner.space.encode(point), ends, at, strict=True)
        ]
        return inner.function(inner.space.decode(moved))

    best = inner.space.decode([a if end is None else end for end, a in zip(ends, at, strict=True)])
    return replace(inner, function=value, best=best)


def _centred(name: str, space: SearchSpace, make: _Maker, rng: np.random.Generator, noise: float = 0.0) -> Problem:
    """`make`'s shape over the ordered dimensions, none of them conditional, and effects of the choices.

    A choice that is not the best one costs something of its own, and moves the best place of the others.
    """
    best = _best(space, rng)
    at = np.array(space.encode(best))
    ordered = np.array([d.is_ordered for d in space.dimensions.values()])
    names = [n for n, d in space.dimensions.items() if not d.is_ordered]
    shape = make(int(ordered.sum()), rng)
    costs: dict[str, dict[Any, float]] = {}
    moves: dict[str, dict[Any, Array]] = {}
    for n in names:
        choices = space.dimensions[n].grid(100)
        costs[n] = {c: 0.0 if c == best[n] else 0.15 * float(rng.exponential()) + 0.01 for c in choices}
        drawn = {c: 0.25 * rng.standard_normal(int(ordered.sum())) * (rng.random() < 0.6) for c in choices}
        moves[n] = {c: np.zeros(int(ordered.sum())) if c == best[n] else drawn[c] for c in choices}
    out, minimum = _scaled(rng)

    def value(point: Mapping[str, Any]) -> float:
        z = (np.array(space.encode(point)) - at)[ordered]
        for n in names:
            z = z + moves[n][point[n]]
        return out(shape(z) + sum(costs[n][point[n]] for n in names))

    spread = abs(out(0.2) - out(0.0))
    return Problem(name, space, value, minimum, best, noise=noise * spread)


def _continuous(make: _Maker, low: int, high: int, log_share: float = 0.0, noise: float = 0.0) -> Kind:
    def kind(name: str, rng: np.random.Generator) -> Problem:
        n = int(rng.integers(low, high + 1))
        space = SearchSpace.from_dict({f"x{i}": _real(rng, bool(rng.random() < log_share)) for i in range(n)})
        return _centred(name, space, make, rng, noise)

    return kind


def _any_smooth(n: int, rng: np.random.Generator) -> Shape:
    return SMOOTH[rng.integers(len(SMOOTH))](n, rng)


def _mixed(make: _Maker, noise: float = 0.0) -> Kind:
    def kind(name: str, rng: np.random.Generator) -> Problem:
        dimensions = {f"x{i}": _real(rng, bool(rng.random() < 0.5)) for i in range(rng.integers(2, 5))}
        dimensions |= {f"i{i}": _integer(rng) for i in range(rng.integers(1, 4))}
        dimensions |= {f"o{i}": _ordinal(rng) for i in range(rng.integers(0, 2))}
        dimensions |= {f"c{i}": _categorical(rng) for i in range(rng.integers(1, 4))}
        return _centred(name, SearchSpace.from_dict(dimensions), make, rng, noise)

    return kind


def _choices(name: str, rng: np.random.Generator) -> Problem:
    """Choices only, and what pairs of them cost together: 0 for the best point, 0 or more for every other."""
    space = SearchSpace.from_dict({f"c{i}": _categorical(rng) for i in range(rng.integers(5, 10))})
    best = _best(space, rng)
    alone = {(n, c): 0.1 * float(rng.exponential()) for n, d in space.dimensions.items() for c in d.grid(100)}
    pairs = {
        (a, x, b, y): 0.1 * float(rng.exponential()) * (rng.random() < 0.3)
        for a, b in itertools.combinations(space.names, 2)
        for x in space.dimensions[a].grid(100)
        for y in space.dimensions[b].grid(100)
    }
    out, minimum = _scaled(rng)

    def value(point: Mapping[str, Any]) -> float:
        cost = sum(alone[n, c] for n, c in point.items() if c != best[n])
        for a, b in itertools.combinations(space.names, 2):
            if point[a] != best[a] or point[b] != best[b]:
                cost += pairs[a, point[a], b, point[b]]
        return out(cost)

    return Problem(name, space, value, minimum, best)


def _tree(name: str, rng: np.random.Generator) -> Problem:
    """Branches with dimensions of their own, one branch with a further fork, and shared dimensions."""
    branches = list("pqrs")[: rng.integers(2, 5)]
    dimensions: dict[str, Any] = {"branch": {"type": "categorical", "choices": branches}}
    dimensions |= {f"shared{i}": _real(rng, bool(i)) for i in range(rng.integers(1, 3))}
    for branch in branches:
        for i in range(rng.integers(1, 5)):
            inner = _integer(rng) if rng.random() < 0.3 else _real(rng, bool(rng.random() < 0.5))
            dimensions[f"{branch}{i}"] = {**inner, "when": {"branch": branch}}
    dimensions["fork"] = {"type": "categorical", "choices": ["on", "off"], "when": {"branch": branches[0]}}
    dimensions["depth"] = {**_real(rng), "when": {"fork": "on"}}
    space = SearchSpace.from_dict(dimensions)
    best = _best(space, rng)
    # The same place for every dimension, whichever branch it is on; the best point is there too.
    at = {n: d.to_unit(d.from_unit(rng.uniform(0.1, 0.9))) for n, d in space.dimensions.items()}
    at |= {n: space.dimensions[n].to_unit(v) for n, v in best.items()}
    weights = {n: 10 ** rng.uniform(-1, 0.3) for n in space.names}
    costs = {b: 0.0 if b == best["branch"] else 0.02 + 0.1 * float(rng.exponential()) for b in branches}
    costs |= {f: 0.0 if f == best.get("fork", f) else 0.05 for f in ("on", "off")}
    out, minimum = _scaled(rng)

    def value(point: Mapping[str, Any]) -> float:
        places = {n: space.dimensions[n].to_unit(v) - at[n] for n, v in point.items() if n not in ("branch", "fork")}
        total = sum(weights[n] * z * z for n, z in places.items())
        own = [z for n, z in places.items() if not n.startswith("shared")]
        total += 0.5 * sum(own) ** 2  # the dimensions of a branch act together
        return out(total + costs[point["branch"]] + costs[point.get("fork", best.get("fork", "on"))])

    return Problem(name, space, value, minimum, best)


def _algorithms(name: str, rng: np.random.Generator) -> Problem:
    """Three to five algorithms with rugged responses of their own; the best one is seldom the best on average."""
    branches = list("pqrst")[: rng.integers(3, 6)]
    dimensions: dict[str, Any] = {"algorithm": {"type": "categorical", "choices": branches}}
    own: dict[str, list[str]] = {}
    for branch in branches:
        kinds = [_integer(rng) if rng.random() < 0.25 else _real(rng, bool(rng.random() < 0.5)) for _ in range(5)]
        own[branch] = [f"{branch}{i}" for i in range(rng.integers(2, 6))]
        dimensions |= {n: {**kind, "when": {"algorithm": branch}} for n, kind in zip(own[branch], kinds, strict=False)}
    dimensions["shared"] = _real(rng, log=True)
    space = SearchSpace.from_dict(dimensions)
    best = _best(space, rng)
    at = {n: d.to_unit(d.from_unit(rng.uniform(0.1, 0.9))) for n, d in space.dimensions.items()}
    at |= {n: space.dimensions[n].to_unit(v) for n, v in best.items()}
    shapes = {b: rastrigin(len(own[b]) + 1, rng) for b in branches}
    floors = {b: 0.0 if b == best["algorithm"] else rng.uniform(0.02, 0.1) for b in branches}
    widths = {b: rng.uniform(1.5, 3.5) if b == best["algorithm"] else rng.uniform(0.3, 1.0) for b in branches}
    out, minimum = _scaled(rng)

    def value(point: Mapping[str, Any]) -> float:
        branch = point["algorithm"]
        z = np.array([space.dimensions[n].to_unit(point[n]) - at[n] for n in (*own[branch], "shared")])
        return out(floors[branch] + shapes[branch](widths[branch] * z))

    return Problem(name, space, value, minimum, best)


def _table(name: str, rng: np.random.Generator) -> Problem:
    """A grid of a few thousand points with a smooth random value each, as tables of trained networks have."""
    sizes = rng.integers(3, 7, int(rng.integers(5, 7)))
    space = SearchSpace.from_dict(
        {f"o{i}": {"type": "ordinal", "choices": list(range(size))} for i, size in enumerate(sizes)}
    )
    waves = rng.standard_normal((40, len(sizes))) * rng.uniform(1.0, 3.0, len(sizes))
    phases, heights = rng.uniform(0, 2 * math.pi, 40), rng.standard_normal(40)

    def value(point: Mapping[str, Any]) -> float:
        return float(heights @ np.cos(waves @ np.array(space.encode(point)) + phases))

    best = min(space.all_points(), key=value)
    return Problem(name, space, value, value(best), best)


def _failing(name: str, rng: np.random.Generator) -> Problem:
    """Learning rates beyond an edge fail, and the best point is near it."""
    inner = _continuous(_any_smooth, 3, 8, log_share=0.5)(name, rng)
    at = np.array(inner.space.encode(inner.best))
    anywhere = rng.random((200, len(at)))
    while True:
        towards = rng.standard_normal(len(at))
        towards /= np.linalg.norm(towards)
        edge = rng.uniform(0.02, 0.15)
        if 0.1 <= np.mean((anywhere - at) @ towards > edge) <= 0.6:
            break

    def value(point: Mapping[str, Any]) -> float | None:
        beyond = float(towards @ (np.array(inner.space.encode(point)) - at)) > edge
        return None if beyond else inner.function(point)

    return Problem(name, inner.space, value, inner.minimum, inner.best)


def _steps(name: str, rng: np.random.Generator) -> Problem:
    """Values as coarse as the accuracy of a few test samples."""
    inner = (_mixed(rastrigin), _continuous(levy, 3, 8), _continuous(rastrigin, 3, 8), _tree)[rng.integers(4)](
        name, rng
    )
    some = [inner.function(inner.space.decode(unit)) for unit in rng.random((200, len(inner.space.names))).tolist()]
    step = (float(np.median(some)) - inner.minimum) / 20

    def value(point: Mapping[str, Any]) -> Any:
        return inner.minimum + step * math.floor((inner.function(point) - inner.minimum) / step)

    return replace(inner, function=value)


def _penalised(name: str, rng: np.random.Generator) -> Problem:
    """As `_failing`, but a failure is told as a number that no training returns."""
    inner = _failing(name, rng)
    return replace(inner, function=lambda point: 1e4 if (value := inner.function(point)) is None else value)


def _tiny(name: str, rng: np.random.Generator) -> Problem:
    """Only a box of a thousandth to a millionth of the space is allowed."""
    n = int(rng.integers(3, 6))
    best, width = np.round(rng.uniform(0.2, 0.8, n), 3), np.round(rng.uniform(0.03, 0.1, n), 3)
    low = np.round(best - width * rng.uniform(0.0, 1.0, n), 3)
    names = [f"x{i}" for i in range(n)]
    space = SearchSpace.from_dict(
        {x: {"type": "real", "low": 0.0, "high": 1.0} for x in names},
        [f"{x} >= {a!r} and {x} <= {a + w!r}" for x, a, w in zip(names, low.tolist(), width.tolist(), strict=True)],
    )
    shape = _any_smooth(n, rng)
    out, minimum = _scaled(rng)

    def value(point: Mapping[str, Any]) -> float:
        return out(shape((np.array([point[x] for x in names]) - best) / width))

    return Problem(name, space, value, minimum, dict(zip(names, best.tolist(), strict=True)))


def _constrained(name: str, rng: np.random.Generator) -> Problem:
    """A shell and a slab of the box: between a hundredth and a thousandth of it, and the best point on the edge."""
    n = int(rng.integers(3, 7))
    names = [f"x{i}" for i in range(n)]
    best_place = np.round(rng.uniform(0.3, 0.7, n), 3)
    tilt = np.round(rng.uniform(0.5, 2.0, n) * rng.choice([-1, 1], n), 2)
    level = float(tilt @ best_place)
    width = float(np.round(10 ** rng.uniform(-2.0, -1.3), 4))
    radius = 0.45
    terms = " + ".join(f"{t} * {x}" for t, x in zip(tilt, names, strict=True))
    squares = " + ".join(f"({x} - {p}) ** 2" for x, p in zip(names, best_place, strict=True))
    space = SearchSpace.from_dict(
        {x: {"type": "real", "low": 0.0, "high": 1.0} for x in names},
        [f"{terms} >= {level!r}", f"{terms} <= {level + width!r}", f"{squares} <= {radius**2!r}"],
    )
    shape = quadratic(n, rng, decades=1.0)
    out, minimum = _scaled(rng)

    def place(point: Mapping[str, Any]) -> Array:
        return np.array([point[x] for x in names])

    def value(point: Mapping[str, Any]) -> float:
        return out(shape(place(point) - best_place))

    def violations(point: Mapping[str, Any]) -> tuple[float, ...]:
        # As the expressions have it, in the same order of additions, so that both draw one line.
        along = sum(t * x for t, x in zip(tilt.tolist(), place(point).tolist(), strict=True))
        distance = sum((x - p) ** 2 for x, p in zip(place(point).tolist(), best_place.tolist(), strict=True))
        return (level - along, along - (level + width), distance - radius**2)

    inside = best_place + tilt / (tilt @ tilt) * 1e-9  # rounding may not put it on the wrong side
    best = dict(zip(names, inside.tolist(), strict=True))
    return Problem(name, space, value, minimum, best, violations)


#: By name; each takes the problem's name and its dice.
KINDS: dict[str, Kind] = {
    "quadratic": _continuous(quadratic, 2, 12),
    "rastrigin": _continuous(rastrigin, 2, 10),
    "levy": _continuous(levy, 3, 10),
    "valley": _continuous(valley, 2, 8),
    "funnel": _continuous(funnel, 4, 12),
    "ridge": _continuous(ridge, 3, 10),
    "steep": _continuous(steep, 3, 8),
    "plateaus": _continuous(plateaus, 2, 8),
    "two-basins": _continuous(two_basins, 2, 8),
    "log-scales": _continuous(_any_smooth, 4, 9, log_share=0.8),
    "wide": _continuous(few_matter, 14, 20, log_share=0.3),
    "noisy": _continuous(_any_smooth, 3, 8, noise=0.3),
    "mixed": _mixed(_any_smooth),
    "mixed-rippled": _mixed(rastrigin),
    "mixed-noisy": _mixed(quadratic, noise=0.2),
    "choices": _choices,
    "tree": _tree,
    "algorithms": _algorithms,
    "table": _table,
    "many": _continuous(_any_smooth, 55, 75),
    "edge": _edge,
    "steps": _steps,
    "failing": _failing,
    "penalised": _penalised,
    "constrained": _constrained,
    "tiny": _tiny,
}


def _spread(one: Problem) -> float:
    """How far values of good random points are above the minimum."""
    dice = random.Random(one.name)
    values = (one.function(one.space.decode([dice.random() for _ in one.space.names])) for _ in range(50))
    found = sorted(float(value) - one.minimum for value in values if value is not None)  # type: ignore[arg-type]
    return found[len(found) // 5]


def _relative(one: Problem) -> Problem:
    def measured(_: Any, true: float, dice: random.Random) -> float:
        return one.minimum + (true - one.minimum) * math.exp(dice.gauss(0.0, 0.8))

    return replace(one, measure=measured)


def _outliers(one: Problem, share: float, least: float, rest: float, *, lucky: bool = False) -> Problem:
    """Outliers with a heavy tail: a share of the values, and noise on all; `lucky`: outliers lower values, too."""
    spread = _spread(one)

    def measured(_: Any, true: float, dice: random.Random) -> float:
        far = dice.gauss(0.0, 1.0) / (abs(dice.gauss(0.0, 1.0)) + least) if dice.random() < share else 0.0
        return true + spread * ((far if lucky else abs(far)) + rest * dice.gauss(0.0, 1.0))

    return replace(one, measure=measured)


#: Noise as large as the differences between good points.
NOISES: dict[str, Callable[[Problem], Problem]] = {
    "relative": _relative,
    "added": lambda one: replace(one, noise=0.5 * _spread(one)),
    "outliers": lambda one: _outliers(one, 0.2, 1e-3, 0.1),
    "lucky": lambda one: _outliers(one, 0.15, 1e-2, 0.2, lucky=True),
}


# Random problems to develop on, so that nobody tunes to those of the table: kinds by name, instances by number.


def development_problem(kind: str, instance: int) -> Problem:
    """The problem of this kind and number: always the same one.

    Args:
        kind: one of `KINDS`, or with one of `NOISES`, as `quadratic+relative`.
        instance: the number.

    Raises:
        ValueError: there is no such kind.
    """
    plain, _, noise = kind.partition("+")
    if plain not in KINDS or noise not in {"", *NOISES}:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(KINDS)}, also with +{', +'.join(NOISES)}")
    name = f"dev:{plain}:{instance}"
    made = KINDS[plain](name, np.random.default_rng([instance, *name.encode()]))
    return replace(NOISES[noise](made), name=f"dev:{kind}:{instance}") if noise else made
