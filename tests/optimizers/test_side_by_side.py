"""Optimizers of several searches work in threads of one process: each proposes what it would propose alone."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event
from typing import Any

import numpy.linalg
import scipy.linalg
from threadpoolctl import threadpool_info

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.base import global_randomness, one_thread
from hpo_pilot.search import SearchSpace
from tests.optimizers.runs import REAL, run

SPACE = SearchSpace.from_dict(dict.fromkeys("xyz", REAL))

CASES: list[tuple[str, dict[str, Any]]] = [
    ("evolutionary", {"population": 8, "mate": {"name": "cxBlend"}, "mutate": {"name": "mutGaussian"}}),
    ("cma", {}),
    ("bayesian", {}),
]


def _proposed(name: str, settings: dict[str, Any], seed: int) -> list[Any]:
    optimizer = create_optimizer(name, SPACE, seed=seed, settings=settings, trials=60, objectives=1)
    return run(optimizer, lambda point: (sum(point.values()),), 6, batch=6)


def test_searches_in_other_threads_do_not_change_the_points() -> None:
    searches = [(name, settings, seed) for name, settings in CASES for seed in (1, 2)]
    alone = [_proposed(*search) for search in searches]
    with ThreadPoolExecutor(len(searches)) as executor:
        beside = list(executor.map(lambda search: _proposed(*search), searches))
    assert beside == alone


def test_another_thread_does_not_change_the_global_random_streams() -> None:
    inside, over = Event(), Event()

    def neighbour() -> None:
        with global_randomness(random.Random(2)):
            inside.set()
            over.wait(600)

    with global_randomness(random.Random(1)):
        alone = random.random()
    with ThreadPoolExecutor(1) as executor, global_randomness(random.Random(1)):
        executor.submit(neighbour)
        inside.wait(0.2)  # it enters only after this thread has left
        drawn = random.random()
        over.set()
    assert drawn == alone


def _blas_threads() -> list[int]:
    assert numpy.linalg
    assert scipy.linalg  # their libraries are loaded
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_the_thread_limit_holds_until_the_last_user_has_left() -> None:
    before = _blas_threads()
    first, second = ExitStack(), ExitStack()
    first.enter_context(one_thread())
    second.enter_context(one_thread())
    first.close()
    assert set(_blas_threads()) == {1}
    second.close()
    assert _blas_threads() == before
