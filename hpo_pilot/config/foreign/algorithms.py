"""Which of the optimizers here does what an algorithm of another tool does."""

from __future__ import annotations

import re

#: hpogrid's algorithms, which are libraries for the most part.
HPOGRID = {
    "ax": "bayesian",
    "bayesian": "bayesian",
    "bohb": "bayesian",
    "grid": "grid",
    "hyperopt": "bayesian",
    "optuna": "bayesian",
    "random": "random",
    "skopt": "bayesian",
    "tune": "random",
}

#: Parts of the names of nevergrad's optimizers, the first that fits counts.
_NEVERGRAD = (
    ("CMA", "cma"),
    ("BO", "bayesian"),
    ("Random", "random"),
    ("Scr", "random"),
    ("Halton", "random"),
    ("Hammersley", "random"),
    ("LHS", "random"),
)

_LIBRARY = re.compile(r"(?:--lib|-l)(?:\s+|=)[\"']?(\w+)")
_METHOD = re.compile(r"--method(?:\s+|=)[\"']?(\w+)")
_OWN = re.compile(r"--optimizer(?:\s+|=)[\"']?(auto|random|grid|bayesian|evolutionary|cma|optuna)\b")
_MODE = re.compile(r"--(?:mode|goal)(?:\s+|=)[\"']?(max|min)")


def for_hpogrid(algorithm: str, method: str | None) -> str:
    """The optimizer for an algorithm of hpogrid; `method` is nevergrad's, whose default there is random search."""
    if algorithm == "nevergrad":
        return for_nevergrad(method or "RandomSearch")
    return HPOGRID[algorithm]


def for_nevergrad(method: str) -> str:
    """The optimizer for one of nevergrad's: all that is no other is some evolution."""
    return next((optimizer for part, optimizer in _NEVERGRAD if part in method), "evolutionary")


def for_steering(command: str) -> str | None:
    """The optimizer that does what a steering container's command does; None where that cannot be seen."""
    if found := _OWN.search(command):
        return found[1]
    method = _METHOD.search(command)
    if (found := _LIBRARY.search(command)) and found[1] in {*HPOGRID, "nevergrad"}:
        return for_hpogrid(found[1], method[1] if method else None)
    if "nevergrad" in command:
        return for_nevergrad(method[1]) if method else "evolutionary"
    return "bayesian" if "bayesian" in command or "skopt" in command else None


def goal_of_steering(command: str) -> str | None:
    """Which way is better, as a steering container's command says it; None where it does not."""
    found = _MODE.search(command)
    return None if found is None else "maximize" if found[1] == "max" else "minimize"
