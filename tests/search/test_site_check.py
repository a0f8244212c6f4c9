"""Whether the site of a search file is known, and can hold its jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_pilot.steering.search_file import Examination, examine

from .conftest import GOOD

SITE = "site: {profile: local, queue: LOCAL}"
RESOURCES = "resources: {cores: 1, memory_mb: 2000, minutes: 10}"
Told = Callable[..., Examination]


@pytest.fixture
def told(folder: Path) -> Told:
    """Checks `GOOD` for another site, with other resources and command."""

    def check(profile: str, resources: str, command: str = "python train.py") -> Examination:
        text = GOOD.replace(SITE, f"site: {{profile: {profile}}}").replace(RESOURCES, f"resources: {{{resources}}}")
        (folder / "search.yaml").write_text(text.replace("command: python train.py", f"command: {command}"))
        return examine(folder / "search.yaml")

    return check


@pytest.mark.parametrize(
    ("profile", "resources"),
    [
        ("summit", "nodes: 6, gpus_per_node: 6, cores: 42, memory_mb: 512000, minutes: 120"),
        ("summit", "nodes: 4608, gpus_per_node: 6, cores: 6, minutes: 1440"),
        ("frontier", "nodes: 64, gpus_per_node: 8, cores: 56, minutes: 1440"),
        ("generic-slurm", "nodes: 10000, gpus_per_node: 16, cores: 256, minutes: 100000"),
        ("grid", "nodes: 10, gpus_per_node: 8, cores: 256"),
        ("summit", "nodes: 2, gpus_per_node: 6, cores: 42, ranks_per_node: 1"),
        ("summit", "cores: 42, ranks_per_node: 42"),
    ],
)
def test_jobs_that_a_site_can_hold(told: Told, profile: str, resources: str) -> None:
    found = told(profile, resources)
    assert (found.problems, found.notes) == ((), ())


@pytest.mark.parametrize(
    ("profile", "resources", "path", "message", "hint"),
    [
        ("summit", "cores: 43", "cores", "a node of summit has 42 cores, not 43", "use 42 or fewer, on more nodes"),
        ("summit", "memory_mb: 512001", "memory_mb", "a node of summit has 512000 MB of memory", "the unit is MB"),
        ("summit", "gpus_per_node: 7", "gpus_per_node", "a node of summit has 6 GPUs, not 7", "use 6 or fewer"),
        ("summit", "nodes: 2, gpus_per_node: 6, cores: 5", "cores", "6 ranks on a node (one for each GPU)", "6 or"),
        ("grid", "cores: 2, ranks_per_node: 3", "cores", "3 ranks on a node need a core each, and the job", "3 or"),
        ("summit", "gpus_per_node: 6, cores: 9, ranks_per_node: 4", "ranks_per_node", "6 GPUs of a node", "use 3, or"),
        ("summit", "nodes: 4609", "nodes", "a job at summit has at most 4608 nodes, not 4609", "use 4608"),
        ("summit", "minutes: 1441", "minutes", "no allocation at summit lasts longer than 1440 minutes", "checkpoint"),
        ("frontier", "nodes: 65, minutes: 721", "minutes", "lasts longer than 720 minutes, not 721", "use 720 or less"),
    ],
)
def test_jobs_that_a_site_cannot_hold(
    told: Told, profile: str, resources: str, path: str, message: str, hint: str
) -> None:
    (problem,) = told(profile, resources).problems
    assert (problem.path, problem.line) == (f"resources.{path}", 19)
    assert problem.column == len("resources: {") + resources.index(f"{path}: ") + len(path) + 3
    assert message in problem.message and hint in problem.suggestion


def test_a_long_job_that_needs_a_large_allocation_is_noted(told: Told) -> None:
    """Many jobs share an allocation: it may be larger than the job, and then lasts longer."""
    found = told("summit", "nodes: 2, minutes: 300")
    assert found.problems == ()
    assert [note.message for note in found.notes] == ["at summit only allocations of 46 nodes or more last 300 minutes"]


def test_a_site_of_ones_own(folder: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = folder / "sites"
    sites.mkdir()
    monkeypatch.setenv("HPO_PILOT_SITES", str(sites))
    (sites / "ours.yaml").write_text("name: ours\nnode: {cores: 2}\n")
    for resources, message in (
        ("cores: 2", None),
        ("ranks_per_node: 1", None),
        ("cores: 3", "a node of ours has 2 cores, not 3"),
        ("gpus_per_node: 1", "a node of ours has no GPU, not 1"),
        ("cores: 2, ranks_per_node: 2", "ours has no launcher for 1 x 2 ranks"),
        ("nodes: 2", "ours has no launcher for 2 x 1 ranks"),
    ):
        assert [problem.message for problem in told("ours", resources).problems] == ([message] if message else [])
    (sites / "ours.yaml").write_text("name: ours\nnode: {core: 2}\nlaunch: 3\n")
    (problem,) = told("ours", "cores: 1").problems
    assert (problem.path, problem.line, problem.column) == ("site.profile", 20, 17)
    assert "ours.yaml:2:8: node.core: is not a key" in problem.message and "(and 1 more)" in problem.message
    assert "sites check" in problem.suggestion


def test_an_installation_without_files_knows_this_machine_and_the_grid(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpo_pilot.steering.search_file.site_files", dict)
    assert [len(told(name, "cores: 1").problems) for name in ("local", "grid", "summit")] == [0, 0, 1]


@pytest.mark.parametrize(
    ("command", "resources", "noted"),
    [
        ("srun -n 8 python train.py", "nodes: 2", ["srun"]),
        ("OMP_NUM_THREADS=1 /usr/bin/mpirun python train.py", "cores: 2, ranks_per_node: 2", ["mpirun"]),
        ("horovodrun -np 2 python train.py", "cores: 2", []),  # its own ranks, on its one node
        ("python train.py --with srun", "nodes: 2", []),
    ],
)
def test_a_command_that_starts_ranks_of_ranks_is_noted(
    told: Told, command: str, resources: str, noted: list[str]
) -> None:
    found = told("summit", resources, command)
    assert found.problems == ()
    assert [note.message.rpartition(" ")[2] for note in found.notes if note.path == "payload.command"] == noted
