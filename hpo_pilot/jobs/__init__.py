"""PanDA's tasks and jobs as values; they need only the standard library and no I/O.

`resources` has the needs of jobs, the shapes of nodes and free room, for all folders. `tasks` has a task as it is
submitted, and the states of tasks and jobs. `results` has the reports of the runner and of
a server on a job, and the only parser of both.
"""

from hpo_pilot.jobs.resources import JobNeeds
from hpo_pilot.jobs.results import Attempt, JobReport, RunReport
from hpo_pilot.jobs.tasks import (
    ASKED_QUEUE,
    MOST_LEASE,
    OVER_JOBS,
    OVER_TASKS,
    JobState,
    Member,
    Members,
    TaskOptions,
    TaskRef,
    TaskSpec,
    TaskState,
    TrialLevel,
    task_name,
)

__all__ = [
    "ASKED_QUEUE",
    "MOST_LEASE",
    "OVER_JOBS",
    "OVER_TASKS",
    "Attempt",
    "JobNeeds",
    "JobReport",
    "JobState",
    "Member",
    "Members",
    "RunReport",
    "TaskOptions",
    "TaskRef",
    "TaskSpec",
    "TaskState",
    "TrialLevel",
    "task_name",
]
