"""Search files: the only reader of YAML, and the mistakes it finds.

The names below are imported when they are first used: a client of a service needs the mistakes, not the reader.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo_pilot.config.problem import Problem, SearchFileError
    from hpo_pilot.config.search_file import Examination, examine, load_search, parse_search, payload_folder

__all__ = ["Examination", "Problem", "SearchFileError", "examine", "load_search", "parse_search", "payload_folder"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "problem" if name in ("Problem", "SearchFileError") else "search_file"
    return getattr(import_module(f"hpo_pilot.config.{home}"), name)
