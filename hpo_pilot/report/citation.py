"""How a note cites a search, so that its readers can tell which it was."""

from __future__ import annotations

import hashlib

from hpo_pilot import __version__
from hpo_pilot.report.facts import ReportFacts
from hpo_pilot.search import Search


def citation(search: Search, facts: ReportFacts, definition: str) -> str:
    """A sentence for the text of a note: the search, its time, its size, its seed, and the software with its version.

    Args:
        search: the search.
        facts: how it ran.
        definition: the search as its report prints it; the sentence has the start of its SHA-256.
    """
    digest = hashlib.sha256(definition.encode()).hexdigest()[:16]
    when = ""
    if facts.started is not None:
        end = f" to {facts.ended:%Y-%m-%d}" if facts.ended and facts.ended.date() != facts.started.date() else ""
        when = f", {facts.started:%Y-%m-%d}{end}"
    return (
        f'Hyper-parameter search "{search.name}"{when}: optimizer {search.optimizer.name}, budget of '
        f"{search.budget.trials} trials, seed {search.seed}, definition SHA-256 {digest}. "
        f"Made with hpo-pilot, version {__version__}."
    )
