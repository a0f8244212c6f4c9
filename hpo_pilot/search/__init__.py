"""What is searched, and what was found: values without I/O."""

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
from hpo_pilot.search.trials import EarlyStop, FoldResult, Generation, Trial, TrialState, mean_and_std
from hpo_pilot.search.values import Point, Scalar, point_key

__all__ = [
    "Budget",
    "Categorical",
    "Confirm",
    "Dimension",
    "EarlyStop",
    "EarlyStopping",
    "FileNames",
    "FoldResult",
    "Folds",
    "Generation",
    "Integer",
    "KnownResult",
    "Mistake",
    "MistakeError",
    "Objective",
    "OptimizerChoice",
    "Ordinal",
    "PandaOptions",
    "Payload",
    "Point",
    "PointShape",
    "Real",
    "Resources",
    "Scalar",
    "Search",
    "SearchSpace",
    "Segment",
    "SiteChoice",
    "Trial",
    "TrialState",
    "mean_and_std",
    "point_key",
    "segment_search_name",
]
