"""How a task ends, once none of its jobs can go on.

After `pandajedi/jedipprocess/PostProcessorBase.py` of panda-server 1.0.4 (`getFinalTaskStatus`, `doPreCheck`): all jobs
finished: done; none: failed; some: finished, or for a task that missed its ``goal`` (percent of its jobs; all of them
where it names none) exhausted with ``useExhausted`` and failed with ``failGoalUnreached``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpo_pilot.jobs import TaskState


def final_state(
    state: TaskState, params: Mapping[str, Any], n_finished: int, n_failed: int
) -> tuple[TaskState, str | None]:
    """The state that a task ends in, and its error dialog.

    Args:
        state: the task's present one.
        params: its parameters.
        n_finished: how many of its jobs finished.
        n_failed: how many were given up.
    """
    if state is TaskState.ABORTING:
        return TaskState.ABORTED, None
    if n_failed == 0:
        return TaskState.DONE, None
    if n_finished == 0:
        return TaskState.FAILED, "failed since no file was successfully processed"
    completeness, goal = 1000 * n_finished / (n_finished + n_failed), _goal(params)
    if completeness >= goal or state is TaskState.FINISHING:
        return TaskState.FINISHED, None
    if params.get("useExhausted"):
        return TaskState.EXHAUSTED, "exhausted since the task was incomplete and didn't reach the goal"
    if params.get("failGoalUnreached"):
        dialog = f"failed since the task completeness {completeness:.1f} is less than the goal {goal:.1f}"
        return TaskState.FAILED, dialog
    return TaskState.FINISHED, None


def _goal(params: Mapping[str, Any]) -> float:
    """In thousandths; a goal that is no percentage counts as none, as in JEDI."""
    try:
        goal = 10 * float(params["goal"])
    except (KeyError, TypeError, ValueError):
        return 1000.0
    return goal if 0 <= goal <= 1000 else 1000.0
