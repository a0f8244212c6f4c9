"""PanDA's tasks and jobs as values, without I/O."""

from hpo_pilot.jobs.job_state import JobState, TaskState
from hpo_pilot.jobs.task import JobNeeds, JobReport, Member, Members, TaskOptions, TaskRef, TaskSpec, Verdict, task_name

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
