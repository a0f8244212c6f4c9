"""Launchers: placements, environments, and messages of launchers that start nothing."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.launchers import LAUNCHERS, Placement, make_launcher, site_variables


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nodes": ()}, "needs one node"),
        ({"nodes": ("a", "a")}, "each once"),
        ({"ranks_per_node": 0}, "one rank or more"),
        ({"cores_per_rank": 0}, "one core or more"),
        ({"gpus_per_rank": 1}, "its nodes have none"),
        ({"gpus_per_rank": 1, "gpu_kind": "nvidia", "gpus": ("0", "1")}, "1 GPUs per node, and got 2"),
        ({"allocation": ("b", "c")}, "a is not a node of the allocation"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Placement(**{"nodes": ("a",), **given})


def test_launchers_refuse_what_they_cannot_place() -> None:
    two = Placement(("a",), 2)
    with pytest.raises(InputError, match="starts one process, not 2"):
        make_launcher({"name": "plain"}).command(["x"], two)
    apart = Placement(("a", "b"))
    with pytest.raises(InputError, match=r"launcher\.starter"):
        make_launcher({"name": "torchrun"}).command(["x"], Placement(("a", "b"), port=1))
    with pytest.raises(InputError, match="needs a port"):
        make_launcher({"name": "torchrun", "starter": "srun"}).command(["x"], apart)
    with pytest.raises(InputError, match="no launcher 'prun'; there is plain, mpirun"):
        make_launcher({"name": "prun"})


@pytest.mark.parametrize("name", [name for name in LAUNCHERS if name not in ("srun", "jsrun")])
def test_chosen_gpus_are_the_visible_ones(name: str) -> None:
    launcher = make_launcher({"name": name})
    chosen = Placement(("a",), 1, 2, gpu_kind="amd", gpus=("4", "6"))
    assert launcher.environment(chosen, {"ROCR_VISIBLE_DEVICES": "0"})["ROCR_VISIBLE_DEVICES"] == "4,6"
    # A payload without GPUs must not take those of its neighbours.
    assert launcher.environment(Placement(("a",), gpu_kind="nvidia"), {})["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in launcher.environment(Placement(("a",), 1, 1, gpu_kind="nvidia"), {})


@pytest.mark.parametrize("name", ["srun", "jsrun"])
def test_where_the_launcher_hands_out_gpus_nothing_stands_before(name: str) -> None:
    chosen = Placement(("a",), 1, 2, gpu_kind="nvidia", gpus=("4", "6"))
    assert "CUDA_VISIBLE_DEVICES" not in make_launcher({"name": name}).environment(
        chosen, {"CUDA_VISIBLE_DEVICES": "0"}
    )


def test_jsrun_is_started_without_tmpdir() -> None:
    """OLCF, Summit User Guide, "Known Issues": with TMPDIR in its environment jsrun finds no job step manager."""
    launcher = make_launcher({"name": "jsrun"})
    where = Placement(("a",), environment={"TMPDIR": "/tmp/me", "A": "1"})
    assert launcher.environment(where, {"TMPDIR": "/tmp"}) == {"A": "1", "OMP_NUM_THREADS": "1"}
    assert "TMPDIR" not in launcher.command(["x"], where)


@pytest.mark.parametrize("name", list(LAUNCHERS))
def test_secrets_reach_neither_the_environment_nor_the_command_line(name: str) -> None:
    launcher = make_launcher({"name": name})
    where = Placement(("a",), environment={"WANDB_TOKEN": "geheim", "A": "value"})
    env = launcher.environment(where, {"PATH": "/bin", "PGPASSWORD": "geheim"})
    assert env == {"PATH": "/bin", "A": "value", "OMP_NUM_THREADS": "1"}
    words = launcher.command(["x"], where)
    assert not any("geheim" in word or "TOKEN" in word or "value" in word for word in words)


def test_what_a_site_set_for_its_programs() -> None:
    base = {
        "LD_LIBRARY_PATH": "/opt/rocm/lib",
        "NCCL_SOCKET_IFNAME": "hsn0",
        "APPTAINERENV_LD_LIBRARY_PATH": "/opt/cray/pe/lib64",
        "APPTAINER_DOCKER_PASSWORD": "geheim",
        "CUDA_VISIBLE_DEVICES": "0",
        "HPO_PILOT_TOKEN": "geheim",
        "EDITOR": "vi",
    }
    assert site_variables(base) == {
        "LD_LIBRARY_PATH": "/opt/rocm/lib",
        "NCCL_SOCKET_IFNAME": "hsn0",
        "APPTAINERENV_LD_LIBRARY_PATH": "/opt/cray/pe/lib64",
    }


def test_a_users_own_thread_count_stands() -> None:
    env = make_launcher({"name": "plain"}).environment(
        Placement(("a",), cores_per_rank=7, environment={"OMP_NUM_THREADS": "2"}), {}
    )
    assert env["OMP_NUM_THREADS"] == "2"


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
        ("srun", "srun: error: Unable to create step for job 1: More processors requested", "srun:", False),
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
