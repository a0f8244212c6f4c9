"""The report on a search. Making it is `render`, which takes its time to load."""

from hpo_pilot.report.facts import ReportFacts

__all__ = ["ReportFacts"]
