"""Reads searches of other tools: hpogrid projects, phpo tasks, iDDS requests."""

from hpo_pilot.config.foreign.imported import Imported, ImportOptions
from hpo_pilot.config.foreign.importing import TOOLS, import_search

__all__ = ["TOOLS", "ImportOptions", "Imported", "import_search"]
