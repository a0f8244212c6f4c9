"""Whether the site that a search file names is known, and can hold its jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_pilot.errors import Problem
from hpo_pilot.steering.search_file import examine

from .conftest import GOOD

SITE = "site: {profile: local, queue: LOCAL}"
RESOURCES = "resources: {cores: 1, memory_mb: 2000, minutes: 10}"


def told(folder: Path, profile: str, resources: str) -> tuple[list[Problem], list[Problem]]:
    text = GOOD.replace(SITE, f"site: {{profile: {profile}}}").replace(RESOURCES, f"resources: {{{resources}}}")
    (folder / "search.yaml").write_text(text)
    found = examine(folder / "search.yaml")
    return list(found.problems), list(found.notes)


@pytest.mark.parametrize(
    ("profile", "resources"),
    [
        ("summit", "nodes: 6, gpus_per_node: 6, cores: 42, memory_mb: 512000, minutes: 120"),
        ("summit", "nodes: 4608, gpus_per_node: 6, cores: 6, minutes: 1440"),
        ("frontier", "nodes: 64, gpus_per_node: 8, cores: 56, minutes: 1440"),
        ("perlmutter", "nodes: 2, gpus_per_node: 4, cores: 64"),
        ("generic-slurm", "nodes: 10000, gpus_per_node: 16, cores: 256, minutes: 100000"),
        ("grid", "nodes: 10, gpus_per_node: 8, cores: 256"),
        ("summit", "nodes: 2, gpus_per_node: 6, cores: 42, ranks_per_node: 1"),
        ("summit", "cores: 42, ranks_per_node: 42"),
    ],
)
def test_what_a_site_holds_is_valid(folder: Path, profile: str, resources: str) -> None:
    assert told(folder, profile, resources) == ([], [])


@pytest.mark.parametrize(
    ("profile", "resources", "path", "message", "hint"),
    [
        ("summit", "cores: 43", "cores", "a node of summit has 42 cores, not 43", "use 42 or fewer"),
        ("summit", "memory_mb: 512001", "memory_mb", "a node of summit has 512000 MB of memory", "the unit is MB"),
        ("summit", "gpus_per_node: 7", "gpus_per_node", "a node of summit has 6 GPUs, not 7", "use 6 or fewer"),
        (
            "summit",
            "nodes: 2, gpus_per_node: 6, cores: 5",
            "cores",
            "6 ranks on a node (one for each GPU) need",
            "6 or",
        ),
        ("grid", "cores: 2, ranks_per_node: 3", "cores", "3 ranks on a node need a core each, and the job", "3 or"),
        ("summit", "gpus_per_node: 6, cores: 9, ranks_per_node: 4", "ranks_per_node", "6 GPUs of a node", "use 3, or"),
        ("summit", "gpus_per_node: 6, cores: 42, ranks_per_node: 42", "ranks_per_node", "over 42 ranks", "use 6, or"),
        ("summit", "nodes: 4609", "nodes", "a job at summit has at most 4608 nodes, not 4609", "use 4608"),
        ("frontier", "nodes: 9473", "nodes", "at most 9472 nodes", "use 9472 or fewer"),
        ("summit", "minutes: 1441", "minutes", "no allocation at summit lasts longer than 1440 minutes", "checkpoint"),
        ("frontier", "nodes: 65, minutes: 721", "minutes", "lasts longer than 720 minutes, not 721", "use 720 or less"),
    ],
)
def test_what_no_node_or_allocation_holds_is_refused(
    folder: Path, profile: str, resources: str, path: str, message: str, hint: str
) -> None:
    (problem,), _ = told(folder, profile, resources)
    assert (problem.path, problem.line) == (f"resources.{path}", 19)
    assert problem.column == len("resources: {") + resources.index(f"{path}: ") + len(path) + 3
    assert message in problem.message
    assert hint in problem.suggestion


def test_a_long_job_that_needs_a_large_allocation_is_noted(folder: Path) -> None:
    """Many jobs share an allocation: it may be larger than the job, and then lasts longer."""
    problems, (note,) = told(folder, "summit", "nodes: 2, minutes: 300")
    assert problems == []
    assert (note.path, note.message) == (
        "resources.minutes",
        "at summit only allocations of 46 nodes or more last 300 minutes",
    )


def test_a_site_of_ones_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, problems: Callable[..., list[Problem]]
) -> None:
    sites = folder / "sites"
    sites.mkdir()
    monkeypatch.setenv("HPO_PILOT_SITES", str(sites))
    (sites / "ours.yaml").write_text("name: ours\nnode: {cores: 2}\n")
    assert told(folder, "ours", "cores: 2") == ([], [])
    assert [problem.message for problem in told(folder, "ours", "cores: 3")[0]] == ["a node of ours has 2 cores, not 3"]
    assert [problem.message for problem in told(folder, "ours", "gpus_per_node: 1")[0]] == [
        "a node of ours has no GPU, not 1"
    ]
    for resources, path in (("cores: 2, ranks_per_node: 2", "ranks_per_node"), ("nodes: 2", "nodes")):
        (problem,), _ = told(folder, "ours", resources)
        assert problem.path == f"resources.{path}"
        assert "ours has no launcher for" in problem.message
    assert told(folder, "ours", "ranks_per_node: 1") == ([], [])
    (sites / "ours.yaml").write_text("name: ours\nnode: {core: 2}\nlaunch: 3\n")
    (problem,) = problems(SITE, "site: {profile: ours}")
    assert (problem.path, problem.line, problem.column) == ("site.profile", 20, 17)
    assert "ours.yaml:2:8: node.core: is not a key" in problem.message and "(and 1 more)" in problem.message
    assert "sites check" in problem.suggestion


def test_an_unknown_site(problems: Callable[..., list[Problem]]) -> None:
    (problem,) = problems(SITE, "site: {profile: fronteir}")
    assert problem.message == "there is no site profile 'fronteir'"
    assert problem.suggestion.startswith("did you mean frontier?")


def test_an_installation_without_files_knows_this_machine_and_the_grid(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpo_pilot.steering.search_file.site_files", dict)
    assert told(folder, "local", "cores: 1") == ([], [])
    assert told(folder, "grid", "cores: 1") == ([], [])
    assert len(told(folder, "summit", "cores: 1")[0]) == 1


@pytest.mark.parametrize(
    ("command", "resources", "noted"),
    [
        ("srun -n 8 python train.py", "nodes: 2", "srun"),
        ("OMP_NUM_THREADS=1 /usr/bin/mpirun python train.py", "cores: 2, ranks_per_node: 2", "mpirun"),
        ("horovodrun -np 2 python train.py", "cores: 2", None),  # its own ranks, on its one node
        ("python train.py --with srun", "nodes: 2", None),
    ],
)
def test_a_command_that_starts_ranks_of_ranks_is_noted(
    folder: Path, command: str, resources: str, noted: str | None
) -> None:
    text = (GOOD.replace(SITE, "site: {profile: summit}")).replace(RESOURCES, f"resources: {{{resources}}}")
    assert "command: python train.py" in text
    (folder / "search.yaml").write_text(text.replace("command: python train.py", f"command: {command}"))
    found = examine(folder / "search.yaml")
    assert found.problems == ()
    notes = [note.message for note in found.notes if note.path == "payload.command"]
    assert [noted in note for note in notes if noted] == [True] * len(notes)
    assert len(notes) == (1 if noted else 0)
