"""The SQL store: searches, generations, trials, jobs, intermediate values, events."""

from hpo_pilot.store.database import NameTakenError, StoreAwayError
from hpo_pilot.store.records import (
    EMBEDDED,
    Cut,
    Event,
    JobOutcome,
    NewPointRequest,
    NewTask,
    NewTrial,
    PointRequest,
    SearchRecord,
    SearchState,
    TaskRecord,
    TaskStage,
    TrialEnd,
)
from hpo_pilot.store.steering_store import SteeringStore
from hpo_pilot.store.store import Store, UnknownSearchError

__all__ = [
    "EMBEDDED",
    "Cut",
    "Event",
    "JobOutcome",
    "NameTakenError",
    "NewPointRequest",
    "NewTask",
    "NewTrial",
    "PointRequest",
    "SearchRecord",
    "SearchState",
    "SteeringStore",
    "Store",
    "StoreAwayError",
    "TaskRecord",
    "TaskStage",
    "TrialEnd",
    "UnknownSearchError",
]
