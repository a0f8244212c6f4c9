"""All that the recording takes from within the package: when modules move, this file follows them."""

from __future__ import annotations

from hpo_pilot import SearchSpace, create_optimizer, open_search
from hpo_pilot.errors import InputError

__all__ = ["InputError", "SearchSpace", "create_optimizer", "open_search"]
