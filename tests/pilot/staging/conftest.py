from tests.pilot.conftest import until

__all__ = ["until"]
