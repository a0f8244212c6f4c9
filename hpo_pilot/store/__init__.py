"""The SQL store: searches, generations, trials, jobs, intermediate values, events."""

from hpo_pilot.store.engine import NameTakenError, StoreAwayError
from hpo_pilot.store.identity import UnknownSearchError
from hpo_pilot.store.records import (
    EMBEDDED,
    Cut,
    Event,
    JobOutcome,
    NewTask,
    NewTrial,
    NewWish,
    SearchRecord,
    SearchState,
    TaskRecord,
    TaskStage,
    TrialEnd,
    Wish,
)
from hpo_pilot.store.steering_store import SteeringStore
from hpo_pilot.store.store import Store

__all__ = [
    "EMBEDDED",
    "Cut",
    "Event",
    "JobOutcome",
    "NameTakenError",
    "NewTask",
    "NewTrial",
    "NewWish",
    "SearchRecord",
    "SearchState",
    "SteeringStore",
    "Store",
    "StoreAwayError",
    "TaskRecord",
    "TaskStage",
    "TrialEnd",
    "UnknownSearchError",
    "Wish",
]
