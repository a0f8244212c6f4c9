"""Summaries of a search: pure functions of values. The report itself is `render`, which takes its time to load."""

from hpo_pilot.report.facts import ReportFacts
from hpo_pilot.report.learning_curves import drawn_trials
from hpo_pilot.report.summary import (
    Standing,
    best_trial,
    convergence,
    front_of,
    front_volume,
    ranking,
    reference_of,
    top_trials,
)

__all__ = [
    "ReportFacts",
    "Standing",
    "best_trial",
    "convergence",
    "drawn_trials",
    "front_of",
    "front_volume",
    "ranking",
    "reference_of",
    "top_trials",
]
