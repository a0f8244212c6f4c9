"""What many jobs of an allocation read, copied once to the disk of each node that needs it."""

from hpo_pilot.pilot.staging.staged import NOTHING, STAGE_IN_SECONDS, Staged, note_stage_in
from hpo_pilot.pilot.staging.staging import LARGE, Staging

__all__ = ["LARGE", "NOTHING", "STAGE_IN_SECONDS", "Staged", "Staging", "note_stage_in"]
