"""The batch allocation that a pilot runs in: its nodes, and when it ends."""

from hpo_pilot.pilot.allocation.allocation import Allocation, find_allocation

__all__ = ["Allocation", "find_allocation"]
