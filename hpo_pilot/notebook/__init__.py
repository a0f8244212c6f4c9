"""Searches in a notebook: data frames and figures."""

from hpo_pilot.notebook.opened_search import OpenedSearch, open_search

__all__ = ["OpenedSearch", "open_search"]
