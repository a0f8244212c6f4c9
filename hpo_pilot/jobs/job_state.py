"""The states of PanDA's jobs and tasks, and what they mean to us.

Source of the names: panda-server 1.0.4, `pandaserver/taskbuffer/JobSpec.py` and `JediTaskSpec.py`.
"""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """The life of one attempt of a job."""

    DEFINED = "defined"  #: made from its task, not yet for any pilot
    ACTIVATED = "activated"  #: waits for a pilot
    SENT = "sent"  #: handed to a pilot that has not reported yet
    STARTING = "starting"  #: the pilot stages in
    RUNNING = "running"  #: the payload runs
    TRANSFERRING = "transferring"  #: outputs are on their way
    HOLDING = "holding"  #: the pilot is done, the server still checks; real servers pass every finished job through it
    FINISHED = "finished"  #: done, with metadata
    FAILED = "failed"  #: this attempt ended by error; the task may start another
    CANCELLED = "cancelled"  #: killed on request
    CLOSED = "closed"  #: taken away: given up before any pilot had it, sent elsewhere, or given back by its pilot
    NOT_RUN = "not run"  #: ours, of one point of a job that runs several: the job's time was over before its end

    @property
    def is_over(self) -> bool:
        """True where this attempt will change no more."""
        return self in _JOB_OVER


_JOB_OVER = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED, JobState.CLOSED, JobState.NOT_RUN})


class TaskState(StrEnum):
    """The life of a task."""

    REGISTERED = "registered"  #: accepted, not looked at
    DEFINED = "defined"  #: parameters parsed
    READY = "ready"  #: may make jobs
    PENDING = "pending"  #: waits for something it needs, often its sandbox
    SCOUTING = "scouting"  #: a few jobs go ahead (real servers only)
    RUNNING = "running"  #: jobs exist
    PAUSED = "paused"  #: on request; no new jobs go out
    ABORTING = "aborting"  #: killed, its jobs are ending
    FINISHING = "finishing"  #: finish was asked for
    PASSED = "passed"  #: between states, on real servers
    THROTTLED = "throttled"  #: held back for its user's quota
    DONE = "done"  #: every job finished
    FINISHED = "finished"  #: some jobs finished, some failed
    FAILED = "failed"  #: no job finished
    ABORTED = "aborted"  #: killed
    BROKEN = "broken"  #: its parameters make no sense
    EXHAUSTED = (
        "exhausted"  #: the server stopped it for its failures and waits for its owner: collected, never waited on
    )

    @property
    def is_over(self) -> bool:
        """True where no job of the task will start or go on without a user's action."""
        return self in _TASK_OVER

    @property
    def is_waiting(self) -> bool:
        """True where the server makes no jobs of the task for now."""
        return self in _TASK_WAITING


_TASK_OVER = frozenset(
    {TaskState.DONE, TaskState.FINISHED, TaskState.FAILED, TaskState.ABORTED, TaskState.BROKEN, TaskState.EXHAUSTED}
)
_TASK_WAITING = frozenset(
    {
        TaskState.REGISTERED,
        TaskState.DEFINED,
        TaskState.READY,
        TaskState.PENDING,
        TaskState.PAUSED,
        TaskState.THROTTLED,
    }
)
