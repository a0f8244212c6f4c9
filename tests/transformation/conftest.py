"""The server and the waiting of the pilot's tests."""

from tests.pilot.conftest import alive, panda, until

__all__ = ["alive", "panda", "until"]
