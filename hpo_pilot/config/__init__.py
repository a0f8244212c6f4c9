"""Search files: the only reader of YAML, and the mistakes it finds."""

from hpo_pilot.config.problem import Problem, SearchFileError
from hpo_pilot.config.search_file import Examination, examine, load_search, parse_search, payload_folder

__all__ = ["Examination", "Problem", "SearchFileError", "examine", "load_search", "parse_search", "payload_folder"]
