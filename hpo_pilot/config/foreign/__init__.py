"""Searches of other tools: hpogrid projects, phpo tasks, iDDS requests; read, and written."""

from hpo_pilot.config.foreign.exported import Exported, ExportOptions
from hpo_pilot.config.foreign.exporting import export_search
from hpo_pilot.config.foreign.imported import Imported, ImportOptions
from hpo_pilot.config.foreign.importing import TOOLS, import_search

__all__ = ["TOOLS", "ExportOptions", "Exported", "ImportOptions", "Imported", "export_search", "import_search"]
