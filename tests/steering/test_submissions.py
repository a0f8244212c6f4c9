"""How a generation becomes jobs."""

from __future__ import annotations

import json
import tarfile

import pytest

from hpo_pilot.jobs import JobNeeds
from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.search import Search
from hpo_pilot.steering.registration import payload_document
from hpo_pilot.steering.submissions import task_jobs, task_spec, trials_per_task
from hpo_pilot.transformation.job import PayloadDocument


def search(folds: int, per_job: int) -> Search:
    return Search.model_validate(
        {
            "search": "demo",
            "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
            "folds": folds,
            "payload": {"command": "true"},
            "resources": {"trials_per_job": per_job},
        }
    )


@pytest.mark.parametrize(
    ("trials", "folds", "per_job", "jobs"),
    [
        (2, 2, 1, [["1/0"], ["1/1"], ["2/0"], ["2/1"]]),
        (4, 1, 4, [["1/0", "2/0", "3/0", "4/0"]]),
        (5, 1, 4, [["1/0", "2/0"], ["3/0", "4/0", "5/0"]]),
        (3, 2, 4, [["1/0", "2/0", "3/0"], ["1/1", "2/1", "3/1"]]),
        (1, 3, 4, [["1/0"], ["1/1"], ["1/2"]]),
        (0, 3, 4, []),
    ],
)
def test_jobs_are_even_and_the_folds_of_a_trial_run_side_by_side(trials, folds, per_job, jobs):
    made = task_jobs(search(folds, per_job), [(number, number * 10) for number in range(1, trials + 1)])
    assert [[f"{member.trial}/{member.fold}" for member in job] for job in made] == jobs
    assert all(member.seed == member.trial * 10 for job in made for member in job)


@pytest.mark.parametrize(
    ("folds", "per_job", "trials", "jobs"),
    [
        (1, 1, 1000, 1000),
        (5, 1, 200, 1000),
        (7, 1, 142, 994),
        (1000, 1, 1, 1000),
        (50, 200, 200, 50),
        (5, 200, 2000, 50),
    ],
)
def test_a_task_is_never_so_large_that_a_look_at_it_takes_long(folds, per_job, trials, jobs):
    given = search(folds, per_job)
    assert trials_per_task(given, None) == trials
    made = task_jobs(given, [(number, 0) for number in range(1, trials + 1)])
    assert len(made) == jobs
    assert sum(map(len, made)) <= 10_000


def test_pilots_are_told_of_nodes_and_ranks(tmp_path):
    search = Search.model_validate(
        {
            "search": "s",
            "space": {"x": {"type": "real", "low": 0, "high": 1}},
            "payload": {"command": "true"},
            "resources": {"nodes": 4, "gpus_per_node": 6, "cores": 42, "minutes": 90},
        }
    )
    sandbox = build_sandbox(None, payload_document(search, None), tmp_path)
    with tarfile.open(sandbox) as archive:
        archive.extract("hpo_pilot_payload.json", tmp_path, filter="data")
    document = PayloadDocument.read(str(tmp_path))
    assert (document.nodes, document.ranks_per_node, document.gpus, document.minutes) == (4, 6, 6, 90.0)
    needs = task_spec(search, "cafe", sandbox, "n", 1, (), {}).needs
    assert needs == JobNeeds(4, 6, 42, 2000, 90.0, 6)


@pytest.mark.parametrize(
    ("document", "nodes", "ranks"),
    [
        ({}, 1, 0),
        ({"nodes": 2, "gpus_per_node": 3}, 2, 3),
        ({"nodes": 2}, 2, 1),
        ({"nodes": 1, "gpus_per_node": 3}, 1, 0),
        ({"nodes": 2, "gpus_per_node": 6, "ranks_per_node": 2}, 2, 2),
        ({"nodes": None, "ranks_per_node": None, "minutes": None}, 1, 0),
    ],
)
def test_sandboxes_of_earlier_versions_say_less(tmp_path, document, nodes, ranks):
    (tmp_path / "hpo_pilot_payload.json").write_text(json.dumps(document))
    read = PayloadDocument.read(str(tmp_path))
    assert (read.nodes, read.ranks_per_node) == (nodes, ranks)
