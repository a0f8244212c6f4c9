"""The SQL store: searches, generations, trials, jobs, intermediate values, events.

Begin with `Store` for reading searches and changing their states, and `SteeringStore` (in `steering_store`) for the
data of the steering service; `SteeringStore.record` writes results. Values go in and copies come out, never rows:
`records` has their types and turns them into rows. Each method is one transaction, safe
after ``kill -9``. Any thread and process may call them; only the holder of the lease (`lease`) may call the methods of
`SteeringStore`. `queries` has questions of pages and status that need no trials, `tables` the SQL tables, and
`database` the differences between SQLite and PostgreSQL.
"""

from hpo_pilot.store.annotations import Annotation
from hpo_pilot.store.database import NameTakenError, StoreAwayError
from hpo_pilot.store.records import (
    EMBEDDED,
    ENDED_SEARCHES,
    Event,
    NewPointRequest,
    NewTask,
    PointRequest,
    SearchRecord,
    SearchState,
    TaskRecord,
    TaskStage,
)
from hpo_pilot.store.steering_store import SteeringStore
from hpo_pilot.store.store import Store, UnknownSearchError

__all__ = [
    "EMBEDDED",
    "ENDED_SEARCHES",
    "Annotation",
    "Event",
    "NameTakenError",
    "NewPointRequest",
    "NewTask",
    "PointRequest",
    "SearchRecord",
    "SearchState",
    "SteeringStore",
    "Store",
    "StoreAwayError",
    "TaskRecord",
    "TaskStage",
    "UnknownSearchError",
]
