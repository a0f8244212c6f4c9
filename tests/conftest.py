"""For all tests: examples that hypothesis makes up are the same from run to run.

A change is then judged by what it changes. For new examples: ``HPO_PILOT_FRESH_EXAMPLES=1 make test``.
"""

from __future__ import annotations

import os

import hypothesis

hypothesis.settings.register_profile("same", derandomize=True)
if not os.environ.get("HPO_PILOT_FRESH_EXAMPLES"):
    hypothesis.settings.load_profile("same")
