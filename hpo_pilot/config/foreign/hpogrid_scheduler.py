"""An hpogrid project's trial scheduler, which is one of Ray Tune's, as early stopping.

Ray's AsyncHyperBandScheduler is ASHA in the form that stops trials. Its HyperBandForBOHB compares at the same steps,
but pauses trials until the others have come there. Names and defaults are those of Ray 2 (`ray/tune/schedulers/`).
"""

from __future__ import annotations

import math
from typing import Any

from hpo_pilot.config.foreign.draft import Draft
from hpo_pilot.config.foreign.foreign_file import ForeignFile

_SCHEDULER, _PARAMETERS = ("hpo_config", "scheduler"), ("hpo_config", "scheduler_param")

#: Ray's defaults: (steps of a training, eta).
_DEFAULTS = {"asynchyperband": (100, 4), "bohbhyperband": (81, 3)}

#: Ray's names: ours, the least and the largest value.
_COUNTS = {
    "max_t": ("max_steps", 1, 2**53),
    "grace_period": ("min_steps", 1, 2**53),
    "reduction_factor": ("eta", 2, 100),
    "brackets": ("brackets", 1, 10),
}

#: Ray's, without a meaning here; they say which figure decides, and what becomes of trials that reach max_t.
_NOT_NEEDED = ("metric", "mode", "stop_last_trials")


def put_scheduler(draft: Draft, file: ForeignFile, hpo: dict[str, Any]) -> None:
    """Sets `early_stopping` where the project names a scheduler that stops trials; what is lost is noted.

    Args:
        draft: the search file.
        file: the project.
        hpo: the sound values of its `hpo_config`.
    """
    name, given = hpo.get("scheduler"), hpo.get("scheduler_param") or {}
    if name not in _DEFAULTS:
        if name is not None:
            file.warn(_SCHEDULER, "it changes the parameters of trials that run; here a trial keeps its point")
        if given:
            file.warn(_PARAMETERS, "there is no such scheduler here")
        return
    max_steps, eta = _DEFAULTS[name]
    settings: dict[str, Any] = {"method": "asha", "max_steps": max_steps, "eta": eta}
    if name == "asynchyperband":
        settings["min_steps"] = 1
    for key, value in given.items():
        if key in _COUNTS:
            _put_count(settings, file, key, value)
        elif key == "time_attr" and value != "training_iteration":
            file.warn((*_PARAMETERS, key), "steps are what the training calls so in progress.jsonl")
        elif key != "time_attr" and key not in _NOT_NEEDED:
            file.warn((*_PARAMETERS, key), f"is a setting of {name} that asha does not have")
    if settings.get("min_steps", 0) >= settings["max_steps"]:
        file.warn((*_PARAMETERS, "grace_period"), "no trial is compared before its end: it is left out")
        del settings["min_steps"]
    message = (
        "becomes early_stopping: it acts on values that the training appends to progress.jsonl, and hpogrid does not"
    )
    file.warn(_SCHEDULER, message)
    draft.put("early_stopping", settings, origin=f"hpo_config.scheduler: {name}")


def _put_count(settings: dict[str, Any], file: ForeignFile, key: str, value: Any) -> None:
    """Sets one of asha's numbers; those that it cannot have are noted."""
    path, (ours, least, most) = (*_PARAMETERS, key), _COUNTS[key]
    amount = file.number(path, value)
    if amount is None:
        return
    whole = min(max(math.ceil(amount), least), most)
    if whole != amount:
        file.warn(path, f"asha has whole numbers from {least} to {most}: it becomes {whole}")
    settings[ours] = whole
