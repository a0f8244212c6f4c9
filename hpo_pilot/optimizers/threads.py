"""One BLAS thread: sums are then added in one order, so that the same history gives the same points, bit for bit."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # it ships no types


@cache
def _controller() -> ThreadpoolController:
    # Looking for the libraries takes milliseconds, so it is done once, after numpy and scipy have loaded theirs.
    import numpy.linalg  # noqa: F401, PLC0415
    import scipy.linalg  # noqa: F401, PLC0415

    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """Limits every BLAS of this process to one thread while the context lasts."""
    limits: AbstractContextManager[object] = _controller().limit(limits=1)
    return limits
