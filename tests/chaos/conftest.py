"""Kills at any moment: they take long, so `make test-real` runs them, not `make test`."""

from __future__ import annotations

from tests.end_to_end.conftest import scan

__all__ = ["scan"]
