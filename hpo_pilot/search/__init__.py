"""A search as values: the sections of its file, its space, its trials; and the check of its file.

Begin with `search.py`: `Search` is the content of a search file. `sections.py` has its smaller sections, `payload.py`
the payload, `parameters.py` the domains of parameters, and `space.py` the search space with its constraints.
`trials.py` has `Trial`, its folds and their costs, and `estimate.py` the estimated end of a search.
`earlier_results.py` reads results that a new search starts from. `search_file.py` reads search files,
`yaml_document.py` finds lines and columns, and `mistakes.py` puts mistakes into words. `limits.py` has the largest
numbers that a search file may give.
"""

# ruff: noqa: F401 - other packages import these names from here

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpo_pilot.search.fields import Scalar
    from hpo_pilot.search.mistakes import Mistake, MistakeError
    from hpo_pilot.search.parameters import Categorical, Dimension, Integer, Ordinal, Real
    from hpo_pilot.search.payload import FileNames, Payload, PointShape
    from hpo_pilot.search.search import (
        Budget,
        Confirm,
        Folds,
        KnownResult,
        OptimizerChoice,
        PandaOptions,
        Search,
        SiteChoice,
    )
    from hpo_pilot.search.sections import EarlyStopping, Objective, Resources, Segment, segment_search_name
    from hpo_pilot.search.space import SearchSpace
    from hpo_pilot.search.trials import EarlyStop, Fold, Generation, Trial, TrialState, mean_and_std
    from hpo_pilot.search.values import Point, point_key

#: The names of each module. They are imported when they are used: a list of searches needs no pydantic.
_MODULES = {
    "fields": "Scalar",
    "mistakes": "Mistake MistakeError",
    "parameters": "Categorical Dimension Integer Ordinal Real",
    "payload": "FileNames Payload PointShape",
    "search": "Budget Confirm Folds KnownResult OptimizerChoice PandaOptions Search SiteChoice",
    "sections": "EarlyStopping Objective Resources Segment segment_search_name",
    "space": "SearchSpace",
    "trials": "EarlyStop Fold Generation Trial TrialState mean_and_std",
    "values": "Point point_key",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
