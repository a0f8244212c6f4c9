"""Which job runs on which nodes of an allocation: pure, the clock is handed in."""

from hpo_pilot.scheduling.account import SearchUsage, Spent, Usage
from hpo_pilot.scheduling.job import Ending, Job, Share, Start
from hpo_pilot.scheduling.node import Node, NodeShape
from hpo_pilot.scheduling.openings import Opening, Openings, Wish
from hpo_pilot.scheduling.policy import Policy
from hpo_pilot.scheduling.scheduler import Scheduler

__all__ = [
    "Ending",
    "Job",
    "Node",
    "NodeShape",
    "Opening",
    "Openings",
    "Policy",
    "Scheduler",
    "SearchUsage",
    "Share",
    "Spent",
    "Start",
    "Usage",
    "Wish",
]
