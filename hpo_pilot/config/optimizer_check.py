"""What a search file says of its optimizer, against the optimizer and the rest of the file."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from hpo_pilot.search import OptimizerChoice
from hpo_pilot.search.misfit import Misfit, Path, closest, listing
from hpo_pilot.search.point import show
from hpo_pilot.search.wording import misfits_of


def check_optimizer(
    choice: OptimizerChoice, name_path: Path, objectives: int, *, warm: bool, elsewhere: Mapping[str, str]
) -> tuple[list[Misfit], list[Misfit]]:
    """What is wrong, and what is allowed but perhaps not meant.

    Args:
        choice: the section.
        name_path: where the optimizer's name stands.
        objectives: how many there are; 0 where their section is not sound.
        warm: whether the search starts from earlier ones.
        elsewhere: where keys belong that are none of its settings, as `misfits_of` takes it.
    """
    # Only here, for the optimizers' libraries take a second to load.
    from hpo_pilot.optimizers import optimizer_class, optimizer_names, several_takers  # noqa: PLC0415

    names = optimizer_names()
    if choice.name not in names:
        meant = closest(choice.name, names)
        hint = f"did you mean {meant}?" if meant else ""
        return [Misfit(name_path, f"must be {listing(names, 'or')}, not {show(choice.name)}", hint)], []
    optimizer = optimizer_class(choice.name)
    notes = []
    if warm and not optimizer.learns_from_earlier:
        able = [name for name in names if optimizer_class(name).learns_from_earlier]
        message = f"the optimizer {choice.name} learns nothing from earlier searches"
        notes.append(Misfit(("warm_start",), message, f"use {listing(able, 'or')}"))
    try:
        settings = optimizer.check_settings(choice.settings)
    except ValidationError as error:
        wrong = misfits_of(error, choice.settings, optimizer.Settings, elsewhere)
        return [misfit.under("optimizer") for misfit in wrong], notes
    single = optimizer.of_one_objective(settings)
    if objectives <= 1 or not single:
        return [], notes
    message = f"{single if optimizer.several_objectives else choice.name} takes one objective, not {objectives}"
    return [Misfit(("objective",), message, f"use the optimizer {listing(several_takers(), 'or')}")], notes
