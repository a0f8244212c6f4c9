"""What is searched, and what was found: values without I/O."""

from hpo_pilot.search.dimension import Categorical, Dimension, Integer, Ordinal, Real
from hpo_pilot.search.early_stopping import EarlyStopping
from hpo_pilot.search.misfit import Misfit, MisfitError
from hpo_pilot.search.objective import Objective
from hpo_pilot.search.payload import FileNames, Payload
from hpo_pilot.search.point import Point, Scalar, point_key
from hpo_pilot.search.point_shape import PointShape
from hpo_pilot.search.resources import Resources
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
from hpo_pilot.search.segment import Segment, segment_search_name
from hpo_pilot.search.space import SearchSpace
from hpo_pilot.search.trial import EarlyStop, FoldResult, Generation, Trial, TrialState, mean_and_std

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
    "Misfit",
    "MisfitError",
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
