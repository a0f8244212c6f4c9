"""One BLAS thread: sums are then added in one order, so that the same history gives the same points, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # it ships no types


@cache
def _controller() -> ThreadpoolController:
    # Looking for the libraries takes milliseconds, so it is done once, after numpy and scipy have loaded theirs.
    import numpy.linalg  # noqa: F401, PLC0415
    import scipy.linalg  # noqa: F401, PLC0415

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits every BLAS of this process to one thread while the context lasts, or another thread's context does."""
    with _LOCK:
        if not _INSIDE:
            _LIMITS.enter_context(_controller().limit(limits=1))
        _INSIDE.append(True)
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE.pop()
            if not _INSIDE:
                _LIMITS.close()


#: The limit is the process's, and optimizers work in several threads: the last one to leave lifts it.
_LOCK = threading.Lock()
_INSIDE: list[bool] = []
_LIMITS = ExitStack()
