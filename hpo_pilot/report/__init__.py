"""Summaries of a search and the report on it: pure functions of values."""

from hpo_pilot.report.facts import ReportFacts
from hpo_pilot.report.learning_curves import drawn_trials
from hpo_pilot.report.render import render_report
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
    "render_report",
    "top_trials",
]
