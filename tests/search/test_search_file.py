"""Search files: right ones, and what they ask of a site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_pilot.errors import InputError, SearchFileError
from hpo_pilot.jobs.resources import NodeShape
from hpo_pilot.search import Ordinal, Real, Resources
from hpo_pilot.search.payload import absolute_inputs
from hpo_pilot.steering.search_file import (
    Examination,
    examine,
    load_search,
    local_mistakes,
    parse_search,
    payload_folder,
)

from .conftest import GOOD

#: The search file of the product's description.
PRODUCT = """\
search: digits-mlp
objective: {metric: loss, goal: minimize}     # a list of two or more: Pareto search
space:
  learning_rate: {type: real, low: 1e-4, high: 1e-1, scale: log}
  layers:        {type: integer, low: 1, high: 4}
  width:         {type: integer, low: 16, high: 512, scale: log}
  dropout:       {type: real, low: 0, high: 0.5, step: 0.05}
  solver:        {type: categorical, choices: [adam, sgd]}
  batch:         {type: ordinal, choices: [32, 64, 128, 256]}
  momentum:      {type: real, low: 0.5, high: 0.99, when: {solver: sgd}}
constraints: ["layers * width <= 1024"]
start: [{learning_rate: 1e-3, layers: 2, width: 64, dropout: 0, solver: adam, batch: 64}]   # points to try first
optimizer: bayesian                           # or {name: evolutionary, population: 24, …}; random, grid, cma
budget: {trials: 64, parallel: 8, queued: 0, hours: 12, gpu_hours: 200, failures: 10}
confirm: {top: 3, repeats: 5}
folds: {k: 5, require: 5}
seed: 7
early_stopping: {method: none}
payload: {files: ../payloads/digits, command: python train.py, container: null, inputs: [], outputs: [model.npz]}
resources: {nodes: 1, gpus_per_node: 0, cores: 1, memory_mb: 2000, minutes: 10, trials_per_job: 1}
site: {profile: local, queue: LOCAL}
"""
SMALL = "search: a\nspace: %s\npayload: {command: x}"


def test_the_product_example(tmp_path: Path) -> None:
    payload = tmp_path / "payloads" / "digits"
    payload.mkdir(parents=True)
    (tmp_path / "searches").mkdir()
    path = tmp_path / "searches" / "search.yaml"
    path.write_text(PRODUCT)
    search = load_search(path)
    assert search.name == "digits-mlp"
    assert search.space.dimensions["learning_rate"] == Real(low=0.0001, high=0.1, scale="log")
    assert search.space.dimensions["batch"] == Ordinal(choices=(32, 64, 128, 256))
    assert search.start[0]["learning_rate"] == 0.001
    assert search.payload.files == "../payloads/digits"
    assert payload_folder(search, path) == payload.resolve()
    assert parse_search(PRODUCT, "search.yaml") == search
    assert payload_folder(parse_search(SMALL % "{x: {type: integer, low: 0, high: 9}}", "a.yaml"), "a.yaml") is None


def test_anchors_and_merges() -> None:
    text = "{x: &unit {type: real, low: 0, high: %s}, y: *unit, z: {<<: *unit, high: 2}, w: {<<: [{low: -1}, *unit]}}"
    space = parse_search(SMALL % text % 1, "a").space
    assert space.dimensions["x"] == space.dimensions["y"] == Real(low=0, high=1)
    assert space.dimensions["z"] == Real(low=0, high=2)
    assert space.dimensions["w"] == Real(low=-1, high=1)
    with pytest.raises(SearchFileError, match=r"^a\.yaml:2:36: space\.x\.low: low \(0\) must be below high \(-1\)"):
        parse_search(SMALL % text % -1, "a.yaml")


def test_paths_of_a_text_are_not_checked() -> None:
    assert parse_search(GOOD.replace("files: digits", "files: /nowhere"), "a").payload.files == "/nowhere"


def test_jobs_of_this_machine() -> None:
    machine = NodeShape(8, 8, 2)
    assert list(local_mistakes(Resources(memory_mb=8, cores=8, gpus_per_node=2), machine)) == []
    wrong = local_mistakes(Resources(nodes=2, gpus_per_node=3, cores=9, memory_mb=9), machine)
    assert [mistake.path for mistake in wrong] == [("nodes",), ("cores",), ("memory_mb",), ("gpus_per_node",)]


# --- whether the site is known, and can hold the jobs ---


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
        ("grid", "gpus_per_node: 0.25"),
        ("generic-pbs", "gpus_per_node: 0.33, ranks_per_node: 1"),
    ],
)
def test_jobs_that_a_site_can_hold(told: Told, profile: str, resources: str) -> None:
    found = told(profile, resources)
    assert found.problems == ()
    expected = ([] if "gpus" in resources else ["resources.gpus_per_node"]) + (
        ["budget.trials"] if "minutes: 100000" in resources else []  # they take years
    )
    assert [note.path for note in found.notes] == expected


@pytest.mark.parametrize(
    ("profile", "resources", "path", "message", "hint"),
    [
        ("summit", "cores: 43", "cores", "a node of summit has 42 cores, not 43", "use 42 or fewer, on more nodes"),
        ("summit", "memory_mb: 512001", "memory_mb", "a node of summit has 512000 MB of memory", "the unit is MB"),
        ("summit", "gpus_per_node: 7", "gpus_per_node", "a node of summit has 6 GPUs, not 7", "use 6 or fewer"),
        ("summit", "nodes: 2, gpus_per_node: 6, cores: 5", "cores", "6 ranks on a node (one for each GPU)", "6 or"),
        ("grid", "cores: 2, ranks_per_node: 3", "cores", "3 ranks on a node need a core each, and the job", "3 or"),
        ("summit", "gpus_per_node: 6, cores: 9, ranks_per_node: 4", "ranks_per_node", "6 GPUs of a node", "use 3, or"),
        ("summit", "gpus_per_node: 0.5", "gpus_per_node", "jsrun of summit gives each job GPUs of its own", "whole"),
        ("grid", "gpus_per_node: 0.4", "gpus_per_node", "a share of one GPU (0.5, 0.33, ", ""),
        ("grid", "gpus_per_node: 1.5", "gpus_per_node", "must be a whole number, or a share", ""),
        ("grid", "gpus_per_node: 0.5, nodes: 2", "gpus_per_node", "for one process on one node, not", "nodes: 1"),
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


@pytest.mark.parametrize(
    ("profile", "resources", "member", "value"),
    [
        ("summit", "nodes: 4, gpus_per_node: 6", "cores", 42),
        ("summit", "nodes: 4, gpus_per_node: 2", "cores", 14),
        ("summit", "gpus_per_node: 1", "cores", 7),
        ("frontier", "gpus_per_node: 8, ranks_per_node: 4", "cores", 56),
        ("frontier", "nodes: 2, gpus_per_node: 8, cores: 8", "cores", 8),
        ("generic-slurm", "nodes: 4, gpus_per_node: 6", "cores", 6),
        ("grid", "ranks_per_node: 3", "cores", 3),
        ("summit", "nodes: 2", "cores", 1),
        ("summit", "nodes: 4, gpus_per_node: 6", "memory_mb", 409_600),
        ("summit", "gpus_per_node: 1, cores: 2", "memory_mb", 68_266),
        ("summit", "gpus_per_node: 6, memory_mb: 500", "memory_mb", 500),
        ("summit", "nodes: 2, cores: 42", "memory_mb", 2000),
        ("generic-slurm", "nodes: 4, gpus_per_node: 6", "memory_mb", 2000),
        ("grid", "cores: 8", "memory_mb", 2000),
    ],
)
def test_resources_that_a_file_does_not_give(told: Told, profile: str, resources: str, member: str, value: int) -> None:
    """With GPUs the share of the node's cores, and four fifths of that of its memory; else one core for each rank."""
    found = told(profile, resources)
    assert found.problems == ()
    assert found.search is not None and getattr(found.search.resources, member) == value


def test_gpus_that_no_trial_uses_are_noted(told: Told) -> None:
    (note,) = told("perlmutter", "cores: 8").notes
    assert note.path == "resources.gpus_per_node"
    assert "a node of perlmutter has 4 GPUs, which stay idle and are charged" in note.message
    assert told("generic-slurm", "cores: 8").notes == ()


def test_a_long_job_that_needs_a_large_allocation_is_noted(told: Told) -> None:
    """Many jobs share an allocation: it may be larger than the job, and then lasts longer."""
    found = told("summit", "nodes: 2, gpus_per_node: 6, minutes: 300")
    assert found.problems == ()
    assert [note.message for note in found.notes] == ["at summit only allocations of 46 nodes or more last 300 minutes"]


def test_words_that_are_booleans_elsewhere_are_noted(tmp_path: Path) -> None:
    """In YAML 1.2 they are text; quotes confirm it."""
    (tmp_path / "search.yaml").write_text(SMALL % '{a: {type: categorical, choices: [yes, "no", OFF]}}' + "\nbudget: 3")
    notes = examine(tmp_path / "search.yaml").notes
    assert [(note.path, note.line, note.column) for note in notes if "choices" in note.path] == [
        ("space.a.choices[0]", 2, 42),
        ("space.a.choices[2]", 2, 53),
    ]
    assert all("true or false" in note.suggestion for note in notes if "choices" in note.path)


def test_a_site_of_ones_own(folder: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = folder / "sites"
    sites.mkdir()
    monkeypatch.setenv("HPO_PILOT_SITES", str(sites))
    (sites / "ours.yaml").write_text("name: ours\nnode: {cores: 2}\n")
    for resources, message in (
        ("cores: 2", None),
        ("ranks_per_node: 1", None),
        ("cores: 3", "a node of ours has 2 cores, not 3"),
        ("gpus_per_node: 1", "a node of ours has no GPU, and a job asks for 1"),
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


# --- `payload.inputs` and `payload.file_names` ---


@pytest.fixture
def payload(folder):
    """Checks `GOOD` with further lines of the payload."""

    def check(lines, profile="local", more=""):
        text = GOOD.replace("  command: python train.py\n", f"  command: python train.py\n  {lines}\n") + more
        (folder / "search.yaml").write_text(text.replace("profile: local, queue: LOCAL", f"profile: {profile}"))
        return examine(folder / "search.yaml")

    return check


def test_inputs_of_every_kind_are_good(folder, payload):
    (folder / "data").mkdir()
    (folder / "data" / "a.h5").write_text("")
    found = payload("inputs: [data/a.h5, data, data/*.h5, 'https://h/b.csv', 'root://h//c.root', 'user.me:set']")
    assert (found.problems, found.notes) == ((), ())


@pytest.mark.parametrize(
    ("line", "place", "message", "hint"),
    [
        ("inputs: [gone.h5]", "inputs[0]", "there is no such file: ", "a relative path starts at this file"),
        ("inputs: ['data/*.root']", "inputs[0]", "no file matches ", "a relative path starts"),
        ("inputs: ['s3://b/x']", "inputs[0]", "s3:// cannot be fetched", "give a path, an http, https or root URL"),
        ("inputs: ['http://me:geheim@h/x']", "inputs[0]", "contains a user name or password", ""),
        ("inputs: ['http://h/a.csv', 'http://i/a.csv']", "inputs[1]", "has the name of inputs[0]: a.csv", "rename"),
        ("inputs: ['http://h/input.json']", "inputs[0]", "input.json is the payload's own file", "rename one"),
        ("inputs: ['http://h/payload.log']", "inputs[0]", "payload.log is a file of hpo-pilot's own", "rename one"),
        ("inputs: ['http://h/hpo_pilot_x']", "inputs[0]", "hpo_pilot_x has a name like those of", "rename one"),
        ("inputs: ['http://h/train.py']", "inputs[0]", "train.py is in digits too", "rename one"),
        ("file_names: {point: output.json}", "file_names.result", "output.json is the point file already", ""),
        ("file_names: {metadata: m.json, metrics: m.json}", "file_names.metrics", "m.json is the metadata file", ""),
        ("file_names: {result: progress.jsonl}", "file_names.result", "a file of hpo-pilot's own", ""),
        ("file_names: {progress: job.json}", "file_names.progress", "job.json is a file of hpo-pilot's own", ""),
        ("file_names: {result: userJobMetadata.json}", "file_names.result", "a file of hpo-pilot's own", ""),
        ("file_names: {point: ../x.json}", "file_names.point", "must be a plain file name", ""),
    ],
)
def test_names_that_cannot_be(payload, line, place, message, hint):
    (problem,) = payload(line).problems
    assert (problem.path, problem.line) == (f"payload.{place}", 19)
    assert message in problem.message and hint in problem.suggestion
    assert "geheim" not in str(problem)


def test_the_payload_may_call_its_metadata_as_panda_does(payload):
    assert payload("file_names: {metadata: userJobMetadata.json}").problems == ()


def test_a_missing_path_is_a_note_if_the_jobs_run_elsewhere(payload):
    found = payload("inputs: [/data/x.h5]", profile="grid")
    assert found.problems == ()
    assert [note.message for note in found.notes] == ["there is no such file: /data/x.h5 on this machine"]


def test_an_image_that_is_not_there(folder, payload):
    (problem,) = payload("container: /no/image.sif").problems
    assert (problem.path, problem.line) == ("payload.container", 19)
    assert problem.message == "there is no image /no/image.sif on this machine"
    found = payload("container: /no/image.sif", profile="grid")
    assert found.problems == ()
    assert [(note.message, note.suggestion) for note in found.notes] == [
        ("there is no image /no/image.sif on this machine", "it must exist where the jobs run")
    ]
    (folder / "image.sif").touch()
    for image in (folder / "image.sif", "image.sif", "docker://python:3.11"):
        assert payload(f"container: {image}").problems == ()


def test_an_image_for_another_processor(folder, payload):
    """The header of a .sif file: its magic at byte 32, the architecture at 45 (02: x86_64)."""
    file = folder / "digits" / "image.sif"
    file.write_bytes(b"".ljust(32) + b"SIF_MAGIC\0".ljust(13) + b"02\0")
    for image in (file, "image.sif"):
        (problem,) = payload(f"container: {image}", profile="jupiter").problems
        assert problem.path == "payload.container" and "x86_64" in problem.message and "aarch64" in problem.suggestion
        assert payload(f"container: {image}", profile="lumi-g").problems == ()


def test_the_inputs_of_a_segment_are_checked(payload):
    (problem,) = payload("", more="segments: {low: {inputs: [gone.h5]}, high: {}}\n").problems
    assert problem.path == "segments.low.inputs[0]"


def test_workers_get_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    inputs = ["data/x", "/y", "~/z", "file:///w", "http://h/u", "user.me:v", "d/*.h5"]
    found = absolute_inputs(inputs, tmp_path)
    assert found == [f"{tmp_path}/data/x", "/y", "/home/me/z", "/w", "http://h/u", "user.me:v", f"{tmp_path}/d/*.h5"]
    assert absolute_inputs(["/y", "http://h/u"], None) == ["/y", "http://h/u"]
    for text in ("data/x", "~/z"):
        with pytest.raises(InputError, match="is a relative path"):
            absolute_inputs([text], None)
