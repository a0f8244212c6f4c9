"""Hyper-parameter scanning on PanDA.

The names below are the Python API; each is imported when it is first used, so that a pilot starts light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo_pilot.operations.client import connect
    from hpo_pilot.operations.functions import run
    from hpo_pilot.operations.notebook import open_search
    from hpo_pilot.optimizers import create_optimizer
    from hpo_pilot.search import Search, SearchSpace, Trial
    from hpo_pilot.steering.search_file import load_search

__version__ = "0.1.0"
__all__ = ["Search", "SearchSpace", "Trial", "connect", "create_optimizer", "load_search", "open_search", "run"]

_HOMES = {
    "Search": "hpo_pilot.search",
    "SearchSpace": "hpo_pilot.search",
    "Trial": "hpo_pilot.search",
    "create_optimizer": "hpo_pilot.optimizers",
    "load_search": "hpo_pilot.steering.search_file",
    "open_search": "hpo_pilot.operations.notebook",
    "connect": "hpo_pilot.operations.client",
    "run": "hpo_pilot.operations.functions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
