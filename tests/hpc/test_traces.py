"""What launchers say when they start nothing."""

from __future__ import annotations

import pytest

from hpo_pilot.hpc.launchers import make_launcher

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


def test_a_node_that_slurm_took_away_and_one_that_only_failed() -> None:
    """Slurm 22.05, after a node was powered off under a step, and on a node that is dead and not yet known to be."""
    traces, nodes = make_launcher({"name": "srun"}).traces, ["n2.example.org", "n3.example.org"]
    lost = "srun: error: Node failure on n2\nsrun: error: n3: task 1: Killed\nsrun: Force Terminated StepId=1.2\n"
    assert traces.lost_nodes(lost, nodes) == traces.broken_nodes(lost, nodes) == {"n2.example.org"}
    failed = "srun: error: Task launch for StepId=1.3 failed on node n2: Communication connection failure\n"
    assert traces.broken_nodes(failed, nodes) == {"n2.example.org"} and not traces.lost_nodes(failed, nodes)
    assert not traces.lost_nodes("0: srun: error: Node failure on n2", nodes)  # a rank said it
