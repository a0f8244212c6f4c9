"""Search spaces in scikit-optimize's and bayes_opt's style: `Real`, `Integer`, `Categorical`, and plain lists.

A list of two numbers is bounds, as iDDS's bayesian method takes them; a third and fourth member are the prior and its
base. Any other list is choices.
"""

from __future__ import annotations

from typing import Any

from hpo_pilot.config.foreign.foreign_space import ForeignSpace
from hpo_pilot.search.misfit import Path, closest, listing
from hpo_pilot.search.point import is_number, show

_KEYS = {
    "Real": ("low", "high", "prior", "base"),
    "Integer": ("low", "high", "prior", "base"),
    "Categorical": ("categories",),
}
_PRIORS = ("uniform", "log-uniform")

#: What speaks to scikit-optimize's models alone.
_IGNORED = ("transform", "dtype", "name")


def is_skopt_entry(value: Any) -> bool:
    """Whether a parameter is described as scikit-optimize or bayes_opt do it."""
    return isinstance(value, list) or (isinstance(value, dict) and value.get("type") in _KEYS)


def add_skopt(space: ForeignSpace, name: str, path: Path, entry: Any) -> None:
    """Adds a parameter; what is wrong with it is noted."""
    if isinstance(entry, list):
        _add_list(space, name, path, entry)
        return
    kind, file = entry["type"], space.file
    for key in entry.keys() - {"type", *_KEYS[kind]}:
        if key in _IGNORED:
            file.warn((*path, key), f"{key} speaks to scikit-optimize alone; the optimizers here have no use for it")
        else:
            near = closest(key, _KEYS[kind])
            hint = f"did you mean {near}?" if near else f"{kind} has {listing(_KEYS[kind])}"
            file.wrong((*path, key), f"is not known to {kind}", hint, at_key=True)
    if kind == "Categorical":
        space.add_choices(name, (*path, "categories"), entry.get("categories"), kind)
        return
    prior = entry.get("prior", "uniform")
    low, high = (file.number((*path, key), entry.get(key)) for key in ("low", "high"))
    if file.one_of((*path, "prior"), prior, list(_PRIORS)) and low is not None and high is not None:
        _add_range(space, name, path, low, high, prior == "log-uniform", kind)


def _add_list(space: ForeignSpace, name: str, path: Path, entry: list[Any]) -> None:
    numbers = [value for value in entry if is_number(value)]
    if len(numbers) == 2 and entry[:2] == numbers and (len(entry) == 2 or entry[2] in _PRIORS):
        log = len(entry) > 2 and entry[2] == "log-uniform"
        _add_range(space, name, path, numbers[0], numbers[1], log, "Real")
    elif len(numbers) == 3 and len(entry) == 4 and entry[2] in _PRIORS:
        _add_range(space, name, path, numbers[0], numbers[1], entry[2] == "log-uniform", "Real")
    else:
        space.add_choices(name, path, entry, "a list of choices")


def _add_range(space: ForeignSpace, name: str, path: Path, low: float, high: float, log: bool, kind: str) -> None:
    whole = kind == "Integer"
    if whole and not all(float(bound).is_integer() for bound in (low, high)):
        space.file.wrong(path, f"an Integer needs whole bounds, not {show(low)} and {show(high)}")
    else:
        low, high = (int(low), int(high)) if whole else (low, high)
        space.add_range(name, path, low, high, f"{kind}, {'log-uniform' if log else 'uniform'}", log=log, whole=whole)
