"""What launchers say when they start nothing."""

from __future__ import annotations

import pytest

from hpo_pilot.launchers import make_launcher

#: Slurm 22.05, whose controller had been ended.
_SLURM = """\
srun: error: Unable to confirm allocation for job 1: Unable to contact slurm controller (connect failure)
srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 1
"""
#: OLCF, Summit User Guide, "Known Issues": a job step manager that is gone; the host is no node of the job's.
_JSM = """\
Error: Remote JSM server is not responding on host batch5
03-15-2019 15:29:45:920 90012 main: Error initializing RM connection. Exiting.
"""


@pytest.mark.parametrize(
    ("launcher", "said", "why", "is_away"),
    [
        ("srun", _SLURM, "srun: error: Unable to confirm allocation for job 1", True),
        ("srun", "srun: error: Unable to create step for job 1: Unable to contact slurm controller (x)", "srun:", True),
        (
            "srun",
            "srun: error: Unable to create step for job 1: More processors requested than permitted",
            "srun:",
            False,
        ),
        ("srun", "0: srun: error: Unable to contact slurm controller (connect failure)", "", False),  # a rank said it
        ("srun", "srun: error: n1: task 0: Exited with exit code 3", "", False),
        ("jsrun", _JSM, "Error: Remote JSM server is not responding", True),
        ("mpirun", "There are not enough slots available in the system", "There are not enough slots", False),
    ],
)
def test_whether_nothing_starts_anywhere(launcher: str, said: str, why: str, is_away: bool) -> None:
    traces = make_launcher({"name": launcher}).traces
    found = traces.failure(said)
    assert found.startswith(why) and bool(found) == bool(why)
    assert traces.is_away(said) is is_away and not traces.broken_nodes(said, ["n1", "n2"])
