"""Builds the transformation as one executable file: a zip archive that Python runs."""

import io
import os
import zipfile

_PACKAGE = "hpo_pilot/transformation/"
_START = b"#!/usr/bin/env python3\n"
_MAIN = b"""import sys

from hpo_pilot.transformation.transformation import main

sys.exit(main())
"""
_ALWAYS = (1980, 1, 1, 0, 0, 0)  # a fixed time, so that the same code gives the same bytes


def build() -> bytes:
    """Returns the content of the file. The same code gives the same bytes on every machine."""
    folder = os.path.dirname(os.path.abspath(__file__))
    contents = {"__main__.py": _MAIN, "hpo_pilot/__init__.py": b""}
    for below, _, names in os.walk(folder):
        for name in names:
            path = os.path.relpath(os.path.join(below, name), folder).replace(os.sep, "/")
            if path.endswith(".py") and path != "executable.py":
                with open(os.path.join(below, name), "rb") as file:
                    contents[_PACKAGE + path] = file.read()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(contents):
            # Not compressed: the output of zlib may differ between versions.
            archive.writestr(zipfile.ZipInfo(name, _ALWAYS), contents[name])
    return _START + packed.getvalue()
