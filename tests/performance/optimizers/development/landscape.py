"""Shapes to search: functions of the distance to the best point, 0 there and 0 or more everywhere.

A shape takes offsets from the best point in the unit cube, shape (n_dims,), each within [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

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


SMOOTH: tuple[Callable[[int, np.random.Generator], Shape], ...] = (quadratic, valley, levy, ridge)
