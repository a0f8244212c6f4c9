"""PanDA's tasks and jobs as values, of the standard library and without I/O.

`tasks` has a task as it is submitted, its jobs as a server reports them, and their states. `results` has the only
parser of a server's job descriptions and of the runner's results in the metadata of jobs.
"""

from hpo_pilot.jobs.tasks import (
    JobNeeds,
    JobReport,
    JobState,
    Member,
    Members,
    TaskOptions,
    TaskRef,
    TaskSpec,
    TaskState,
    Verdict,
    task_name,
)

__all__ = [
    "JobNeeds",
    "JobReport",
    "JobState",
    "Member",
    "Members",
    "TaskOptions",
    "TaskRef",
    "TaskSpec",
    "TaskState",
    "Verdict",
    "task_name",
]
