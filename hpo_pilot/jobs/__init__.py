"""PanDA's tasks and jobs as values, without I/O."""

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
