"""Writes a search as a study in an Optuna journal file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from hpo_pilot import __version__
from hpo_pilot.errors import InputError
from hpo_pilot.report.exports import ExportedSearch, mean_metrics, panda_ids, trial_costs
from hpo_pilot.report.trial_documents import mean_curve, time_of

if TYPE_CHECKING:
    from hpo_pilot.report.trial_documents import TrialDocument

#: The study's attribute that identifies the search: only a study that has it is added to.
MARK = "hpo_pilot"

#: Optuna's states for ours. A trial that was stopped together with its search has no value, so it counts as failed; so
#: does an infeasible one, which must not be the best of the study.
_STATES = dict.fromkeys(("finished", "paused"), TrialState.COMPLETE) | dict.fromkeys(
    ("infeasible", "failed", "stopped"), TrialState.FAIL
)


def write(subject: ExportedSearch, path: Path) -> str:
    """Writes the trials that are over and not yet in the file to a study with the search's name.

    Optuna cannot change a finished trial, so a trial is written once, when it is over. The next export completes an
    interrupted one.

    Raises:
        InputError: the file is no journal of Optuna's, its study of that name is of another search, or Optuna refuses
            a trial.
        OSError: the file cannot be written.
    """
    _check_file(path)
    with _silent():
        study = _study(subject, JournalStorage(JournalFileBackend(str(path.absolute()))), path)
        known = {trial.user_attrs.get("trial") for trial in study.get_trials(deepcopy=False)}
        new = [trial for trial in subject.over if trial["number"] not in known]
        space = {name: _distribution(dimension) for name, dimension in subject.space.items()}
        study.add_trials(_trial(subject, trial, space) for trial in new)
    name = subject.search["name"]
    load = f"optuna.load_study(study_name={name!r}, storage=JournalStorage(JournalFileBackend({str(path)!r})))"
    return f"wrote {subject.counted(len(new))} to {path}; open it with: optuna-dashboard {path} or {load}"


@contextmanager
def _silent() -> Iterator[None]:
    """Silences Optuna's log and its warnings about experimental functions."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _check_file(path: Path) -> None:
    """Refuses a file that is not a journal (one JSON object per line), because Optuna would append to it."""
    if not path.exists():
        return
    with path.open("rb") as file:
        first = file.readline()
    try:
        is_journal = not first or (first.endswith(b"\n") and isinstance(json.loads(first), dict))
    except ValueError:
        is_journal = False
    if not is_journal:
        raise InputError(f"{path} exists and is not a journal file of Optuna; give another path")


def _study(subject: ExportedSearch, storage: JournalStorage, path: Path) -> optuna.Study:
    """Returns the study of the search; creates it if it does not exist."""
    name = subject.search["name"]
    if name in optuna.get_all_study_names(storage):
        study = optuna.load_study(study_name=name, storage=storage)
        if study.user_attrs.get(MARK, {}).get("mark") != subject.mark:
            raise InputError(f"{path} has a study {name!r} that is not an export of this search; give another path")
    else:
        directions = [objective["goal"] for objective in subject.objectives]
        study = optuna.create_study(study_name=name, storage=storage, directions=directions)
        study.set_user_attr(MARK, {"mark": subject.mark, "version": __version__})
        study.set_metric_names(subject.metrics)
    there = study.user_attrs
    for key in ("owner", "state", "definition"):
        if there.get(key) != subject.search[key]:
            study.set_user_attr(key, subject.search[key])
    return study


def _distribution(dimension: Mapping[str, Any]) -> BaseDistribution:
    """Returns Optuna's distribution for a parameter of a definition. Optuna's choices have no order."""
    if dimension["type"] in ("categorical", "ordinal"):
        return CategoricalDistribution(_choices(dimension))
    low, high, log, step = dimension["low"], dimension["high"], dimension["scale"] == "log", dimension["step"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that `high` becomes the last step; we do the same
        if dimension["type"] == "integer":
            return IntDistribution(low, high, log=log, step=1 if log else step)
        if step is None:
            return FloatDistribution(low, high, log=log)
        stepped = FloatDistribution(low, high, step=step)
    # With a step such as 0.3333333333333333 from 0 to 1, our last value is 1, and Optuna's is just below it.
    return stepped if _last_step(low, high, step) <= stepped.high else FloatDistribution(low, high)


def _last_step(low: float, high: float, step: float) -> float:
    from hpo_pilot.search.parameters import Real  # noqa: PLC0415 - pydantic, for the few spaces that have steps

    return Real(low=low, high=high, step=step).from_unit(1.0)


def _choices(dimension: Mapping[str, Any]) -> list[Any]:
    """Returns the choices; as JSON texts if two are equal in Python, such as 1 and true, which Optuna would mix up."""
    choices = dimension["choices"]
    distinct = all(one != other for place, one in enumerate(choices) for other in choices[:place])
    return list(choices) if distinct else [json.dumps(choice) for choice in choices]


def _parameter(dimension: Mapping[str, Any], value: Any) -> Any:
    """Returns a value of a parameter in the form of its distribution."""
    if dimension["type"] not in ("categorical", "ordinal") or _choices(dimension) == dimension["choices"]:
        return value
    return json.dumps(value)


def _trial(subject: ExportedSearch, trial: TrialDocument, space: Mapping[str, BaseDistribution]) -> FrozenTrial:
    state, stop, fidelity = _STATES[trial["state"]], trial["stopped"], subject.search["definition"].get("fidelity", {})
    values = [value for value in subject.values_of(trial, "value") if value is not None]
    if stop is not None:
        # As in `Study.tell`, the value of a pruned trial is its last intermediate value.
        state = TrialState.PRUNED
        values = [] if stop["value"] is None or len(subject.metrics) > 1 else [stop["value"]]
    elif state is not TrialState.COMPLETE:
        values = []
    elif any(trial.get("level") != levels["high"] for levels in fidelity.values()):
        state, values = TrialState.PRUNED, values if len(values) == 1 else []  # as Optuna does at a lower rung
    point = {name: value for name, value in trial["point"].items() if name in space}
    curve = subject.curves.get(trial["number"])
    try:
        made = create_trial(
            state=state,
            values=values or None,
            params={name: _parameter(subject.space[name], value) for name, value in point.items()},
            distributions={name: space[name] for name in point},
            user_attrs=_attributes(subject, trial),
            intermediate_values={} if curve is None else dict(mean_curve(fold["values"] for fold in curve["folds"])),
        )
    except ValueError as error:
        raise InputError(f"Optuna refuses trial {trial['number']} of {subject.search['name']!r}: {error}") from error
    # `create_trial` sets the present time; like Optuna, we use local time without a zone.
    started = time_of(trial["started"] or trial["submitted"] or trial["ended"] or subject.search["created"])
    ended = time_of(trial["ended"]) or started
    if started is not None and ended is not None:
        made.datetime_start = started.astimezone().replace(tzinfo=None)
        made.datetime_complete = ended.astimezone().replace(tzinfo=None)
    return made


def _attributes(subject: ExportedSearch, trial: TrialDocument) -> dict[str, Any]:
    """Returns all other facts as user attributes; each number has its own name, because optuna-dashboard draws it."""
    ends = subject.suffixes
    found: dict[str, Any] = {
        "trial": trial["number"],
        "state": trial["state"],
        "generation": trial["generation"],
        "seed": trial["seed"],
        "confirms": trial["confirms"],
        **{name: trial[name] for name in ("level", "continues") if name in trial},
        "told": trial["told"],
        "error": trial["error"],
        "panda_ids": panda_ids(trial) or None,
    }
    found |= {f"std{end}": std for end, std in zip(ends, subject.values_of(trial, "std"), strict=True)}
    for fold in trial["folds"]:
        values = subject.values_of(fold, "value")
        found |= {f"fold_{fold['fold']}{end}": value for end, value in zip(ends, values, strict=True)}
    found |= trial_costs(trial)
    metrics = {name[:500]: value for name, value in mean_metrics(trial).items()}
    return {**metrics, **{key: value for key, value in found.items() if value is not None}}
