"""Payloads as their users have them: modules of a folder, and a folder in which one runs as a job runs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

PAYLOADS = Path(__file__).parents[2] / "payloads"


@pytest.fixture(scope="module")
def module_of() -> Iterator[Callable[[str, str], ModuleType]]:
    """Imports a module of a payload's folder; forgets it afterwards, for other payloads have a `train` too."""
    before, found_before = sys.path.copy(), set(sys.modules)

    def load(payload: str, name: str) -> ModuleType:
        folder = str(PAYLOADS / payload)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        return importlib.import_module(name)

    yield load
    sys.path[:] = before
    for name in set(sys.modules) - found_before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(PAYLOADS):
            del sys.modules[name]
