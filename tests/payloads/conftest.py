"""Payloads as their users have them: modules of a folder, and a folder in which one runs as a job runs it."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

PAYLOADS = Path(__file__).parents[2] / "payloads"


@contextlib.contextmanager
def modules_of(folder: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Imports modules of a payload's folder; forgets them afterwards, for other payloads have a `train` too."""
    before, found_before = sys.path.copy(), set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - found_before:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).is_relative_to(PAYLOADS):
                del sys.modules[name]


@pytest.fixture(scope="module")
def of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the test module's PAYLOAD."""
    with modules_of(request.module.PAYLOAD) as load:
        yield load
