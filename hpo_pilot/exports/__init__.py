"""Exports beyond a text: files that other tools open, written from a search's documents."""

from hpo_pilot.exports.forms import FILE_FORMS, export_file

__all__ = ["FILE_FORMS", "export_file"]
