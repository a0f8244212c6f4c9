"""Random streams that depend on what they are named after: not on the process, machine or order of calls."""

from __future__ import annotations

import random

import numpy as np


def stream(seed: int, *parts: int | str) -> random.Random:
    """The random stream of a seed and a purpose (say, the number of known points)."""
    return random.Random("/".join(map(str, (seed, *parts))))  # noqa: S311 - a search needs no secrets


def array_stream(seed: int, *parts: int | str) -> np.random.Generator:
    """The same for arrays."""
    return np.random.default_rng(stream(seed, *parts).getrandbits(128))
