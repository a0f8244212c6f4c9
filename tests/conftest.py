"""For all tests: examples that hypothesis makes up are the same from run to run.

A change is then judged by what it changes. For new examples: ``HPO_PILOT_FRESH_EXAMPLES=1 make test``.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import hypothesis
import pytest

from hpo_pilot.transformation import landlock

pytest_plugins = ["tests.postgresql"]

# As in a shell where the tests' environment is active: payloads run in the first Python of PATH.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# Thousands of tests are collected, and stay: looking through them for cycles is a third of the time that it takes.
gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def needs_landlock() -> None:
    """The kernel isolates payloads."""
    from tests.real.processes import missing

    if landlock.version() < landlock.LEAST:
        missing("Landlock of this kernel")


# A busy machine may take long for an example.
hypothesis.settings.register_profile(
    "here",
    derandomize=not os.environ.get("HPO_PILOT_FRESH_EXAMPLES"),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("here")
