"""At which numbers of trials something is fitted anew: a ladder, the same however many were told at a time."""

from __future__ import annotations

#: Up to this many trials every one brings a new fit of the hyper-parameters; from then on, growth by this share does.
_FIT_EACH, _GROWTH = 20, 0.05


def refit_cut(length: int) -> int:
    """How many of `length` trials the hyper-parameters are fitted on."""
    return ladder_step(length, _FIT_EACH, _GROWTH)


def ladder_step(length: int, each: int, growth: float) -> int:
    """The last step up to `length`.

    Args:
        length: the number of trials.
        each: up to here every number is a step.
        growth: from there on, growth by this share.
    """
    if length <= each:
        return length
    step = each
    while (following := max(step + 1, int(step * (1.0 + growth)))) <= length:
        step = following
    return step
