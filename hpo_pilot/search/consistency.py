"""Whether the parts of a search fit each other: conditions, constraints, start points.

Each function lists every mistake, with its path, and trusts each part to be right in itself. `faulty` names the
parameters that are declared but wrong: nothing is said about what depends on them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hpo_pilot.search.constraint import Constraint
from hpo_pilot.search.dimension import Dimension
from hpo_pilot.search.misfit import Misfit, did_you_mean, listing
from hpo_pilot.search.point import show


def name_misfits(names: Collection[str]) -> list[Misfit]:
    """What is wrong with the parameters' names; paths start at a name."""
    return [
        Misfit((name,), f"{name!r} is not a usable name", "leave out blanks at its ends", at_key=True)
        for name in names
        if not name or name != name.strip()
    ]


def condition_misfits(dimensions: Mapping[str, Dimension], faulty: Collection[str] = ()) -> list[Misfit]:
    """What is wrong with the conditions (`when`); paths start at a name."""
    misfits = []
    for name, dimension in dimensions.items():
        for parent, wanted in dimension.when.items():
            if parent in faulty or parent == name:  # the latter is a circle, see below
                continue
            if parent not in dimensions:
                hint = did_you_mean(parent, [n for n in dimensions if n != name])
                misfits.append(Misfit((name, "when", parent), f"{parent!r} is not in the space", hint, at_key=True))
            else:
                misfits += _impossible(name, parent, dimensions[parent], wanted)
    return misfits + _circles(dimensions)


def _impossible(name: str, parent: str, dimension: Dimension, wanted: Any) -> list[Misfit]:
    path = (name, "when", parent)
    if not dimension.is_discrete:
        hint = f"give {parent} a step, or let the condition name a parameter with choices"
        return [Misfit(path, f"{parent} is continuous, so it is never exactly one value", hint)]
    if wanted == []:
        return [Misfit(path, "lists no value, so it can never be", "list at least one value")]
    misfits = []
    for index, value in enumerate(wanted if isinstance(wanted, list) else [wanted]):
        try:
            dimension.canonical(value)
        except ValueError as error:
            place = (*path, index) if isinstance(wanted, list) else path
            misfits.append(Misfit(place, f"can never be: {parent} {error}", value_hint(value, dimension)))
    return misfits


def _circles(dimensions: Mapping[str, Dimension]) -> list[Misfit]:
    # Parents first; parents that are not there are another mistake, told elsewhere.
    left = {name: {p for p in d.when if p in dimensions} for name, d in dimensions.items()}
    while ready := [name for name, parents in left.items() if not parents & left.keys()]:
        for name in ready:
            del left[name]
    if not left:
        return []
    # What only depends on a circle is not part of it.
    while loose := [name for name in left if not any(name in parents for parents in left.values())]:
        for name in loose:
            del left[name]
    circle = list(left)
    message = f"the conditions of {listing(circle)} go round in a circle" if len(circle) > 1 else "depends on itself"
    return [Misfit((circle[0], "when"), message, "take one of the conditions away")]


def constraint_misfits(
    constraints: Sequence[str | None], names: Collection[str], faulty: Collection[str] = ()
) -> list[Misfit]:
    """What is wrong with each constraint by itself; paths start at its index. None: one that is not even text."""
    misfits = []
    known = {*names, *faulty}
    for index, expression in enumerate(constraints):
        if expression is None:
            continue
        try:
            unknown = sorted(Constraint(expression).names - known)
        except ValueError as error:
            misfits.append(Misfit((index,), f"{expression!r} {error}"))
            continue
        if dashed := [name for name in known if "-" in name and set(name.split("-")) & set(unknown)]:
            message = f"{expression!r} reads {dashed[0]} as a subtraction"
            misfits.append(Misfit((index,), message, "name the parameter with '_' instead of '-'"))
            continue
        for name in unknown:
            hint = did_you_mean(name, sorted(known))
            if not hint.startswith("did") and f"= {name}" in expression:
                hint = f"is it text? put it in quotes: '{name}'"
            misfits.append(Misfit((index,), f"{expression!r} names {name}, which is not in the space", hint))
    return misfits


def value_hint(value: Any, dimension: Dimension) -> str:
    """What a value outside `dimension` was meant to be, if that can be guessed."""
    choices = [choice for choice in getattr(dimension, "choices", ()) if isinstance(choice, str)]
    if isinstance(value, str) and choices:
        hint = did_you_mean(value, choices)
        return hint if hint.startswith("did") else ""
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return ""
        return f"write {value.strip()} without quotes"
    if any(choice == show(value) for choice in choices):
        return f"put it in quotes: '{show(value)}'"
    return ""
