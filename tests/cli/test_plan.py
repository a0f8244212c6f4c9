"""`hpo-pilot plan`: the allocation, the processes and the cost of a search at a site."""

from __future__ import annotations

import json

import pytest
import yaml

from hpo_pilot.hpc.site_files import find_site
from hpo_pilot.hpc.slurm import Slurm
from tests.cli.conftest import command

RESOURCES = {"nodes": 6, "gpus_per_node": 6, "cores": 42, "memory_mb": 400_000, "minutes": 90}


@pytest.fixture
def plan(folder):
    """Runs `plan` of a search at a site; returns its words, or what refused it."""

    def run(*words, budget=None, more=None, status=0, **resources):
        document = {
            "search": "gan",
            "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
            "budget": {"trials": 64, "parallel": 8, **(budget or {})},
            "payload": {"command": "python train.py"},
            "resources": {**RESOURCES, **resources},
            **(more or {}),
        }
        (folder / "search.yaml").write_text(yaml.safe_dump(document))
        done = command("plan", "search.yaml", *words, status=status)
        return done.stderr if status else done.stdout

    return run


def test_for_people(plan):
    shown = plan("--site", "summit", "--minutes-per-trial", "60", budget={"gpu_hours": 2000})
    words = " ".join(shown.split())
    assert "1 + N_G 8 x N_F 1 x N_W 36 = 289 processes" in words and "N_GPU 1: 288 GPUs" in words
    assert "48 nodes for 5:45 in queue batch" in words and "submissions 2, one after another" in words
    assert "2304 GPU-hours" in words and "kWh (estimated)" in words
    assert "2000 GPU-hours are less than that: enough for 55 trials" in words
    assert "#BSUB -nnodes 48\n#BSUB -W 5:45\n" in shown and "#BSUB -P ACCOUNT\n" in shown


def test_for_programs(plan):
    found = json.loads(plan("--site", "frontier", "--account", "abc123", "--json", gpus_per_node=8))
    layout = {"points": 8.0, "folds": 1, "workers": 48, "gpus_per_worker": 1.0, "processes": 385, "gpus": 384}
    assert found["layout"] == layout
    assert found["cost"]["gpu_hours"] == 64 * 48 * 1.5 and found["cost"]["energy_source"] == "estimated"
    assert "abc123" in found["script"] and found["allocation"]["nodes"] == 48


def test_a_family_shares_its_allocations(plan):
    """Each segment's search has the whole budget, and all run side by side."""
    budget = {"gpu_hours": 1000}
    one, family = (
        json.loads(plan("--site", "frontier", "--json", gpus_per_node=8, budget=budget, more=more))
        for more in (None, {"segments": ["a", "b", "c"]})
    )
    for key in ("trials", "jobs"):
        assert family[key] == 3 * one[key]
    assert (family["searches"], family["allocation"]["jobs_at_once"], family["allocation"]["nodes"]) == (3, 24, 144)
    assert family["generations"] == one["generations"] and family["budget"]["gpu_hours"] == 3000
    assert family["cost"]["gpu_hours"] == 3 * one["cost"]["gpu_hours"]
    assert family["budget"]["trials_within"] == 3 * one["budget"]["trials_within"]
    shown = plan("--site", "frontier", gpus_per_node=8, more={"segments": ["a", "b", "c"]})
    assert "gan, 3 segments side by side, at frontier" in shown


@pytest.mark.parametrize(
    ("folds", "nodes", "said"),
    [
        (5, 2, "1 + 2 folds x N_W 1 = 3 processes (the one is the steering service; a trial has 5 folds (N_F), and 2"),
        (3, 5, "= 6 processes (the one is the steering service; a trial has 3 (N_F), so 1 trial (N_G) and a part of"),
        (3, 6, "1 + N_G 2 x N_F 3 x N_W 1 = 7 processes (the one is the steering service); N_GPU 6: 36 GPUs"),
    ],
)
def test_parts_of_trials_at_once(plan, folds, nodes, said):
    shown = plan("--site", "summit", "--nodes", str(nodes), more={"folds": {"k": folds}}, nodes=1)
    assert said in " ".join(shown.split())


def test_the_script_is_what_pilots_submit_writes(plan):
    script = json.loads(plan("--site", "perlmutter", "--json", gpus_per_node=4, memory_mb=200_000))["script"]
    assert script.startswith(f"#!/bin/bash\n{Slurm.mark} --job-name=hpo-plan\n{Slurm.mark} --nodes=48\n")


@pytest.mark.parametrize(
    ("site", "resources", "line"),
    [
        ("summit", {}, "jsrun -n6 -r1 -a6 -g6 -c42 -bpacked:7 -dpacked -X 1 --smpiargs=-gpu -E MASTER_ADDR "),
        (
            "frontier",
            {"gpus_per_node": 8},
            "srun -N6 -n48 --ntasks-per-node=8 -c5 --gpus-per-task=1 --gpu-bind=closest ",
        ),
    ],
)
def test_the_line_that_starts_one_trial(plan, site, resources, line):
    resources = {"memory_mb": 200_000, **resources}
    found = json.loads(plan("--site", site, "--json", **resources))
    assert found["launch"].startswith(line) and found["launch"].endswith(" python train.py")
    assert f"\n{found['launch']}\n" in plan("--site", site, **resources)
    assert found["notes"] == []


def test_the_script_for_nodes_that_the_profile_does_not_describe(plan):
    shown = plan("--site", "generic-pbs", gpus_per_node=4)
    assert "#PBS -l select=48:ncpus=42:ngpus=4\n" in shown
    assert "`hpo-pilot pilots submit --node-cores N --node-gpus N` does it" in shown


def test_a_site_file_takes_the_place_of_a_name(plan, folder):
    (folder / "ours.yaml").write_text("name: ours\nnode: {cores: 64}\nbatch: {system: slurm}\n")
    found = json.loads(plan("--site", "ours.yaml", "--json", nodes=1, gpus_per_node=0, cores=8, memory_mb=8000))
    assert (found["site"], found["allocation"]["jobs_at_once"], found["notes"]) == ("ours", 8, [])
    (folder / "ours.yaml").write_text("name: ours\nnode: {cores: none}\n")
    assert "ours.yaml:2:15: node.cores" in plan("--site", "ours.yaml", status=2)


def test_nodes_that_the_profile_does_not_describe_are_noted(plan):
    found = json.loads(plan("--site", "generic-slurm", "--json", nodes=1))
    assert found["cores_used"] is None and found["gpus_used"] is None
    assert "does not describe its nodes" in found["notes"][0]
    assert "% of their" not in plan("--site", "generic-slurm", nodes=1)


def test_whole_nodes_are_charged(plan):
    one = {"nodes": 1, "gpus_per_node": 0, "cores": 1, "memory_mb": 2000, "minutes": 60}
    words = ("--site", "frontier", "--nodes", "1")
    found = json.loads(plan(*words, "--json", budget={"trials": 12, "parallel": 3}, **one))
    assert found["node_hours"] == 4.0
    assert found["cost"]["core_hours"] == 12.0 and 2.48 < found["cost"]["energy_kwh"] < 2.6  # four hours at 620 W
    assert "jobs use 5% of their cores and 0% of their GPUs" in plan(
        *words, budget={"trials": 12, "parallel": 3}, **one
    )


def test_a_training_that_is_longer_than_an_allocation(plan):
    payload = {"payload": {"command": "python train.py", "checkpoint": ["ckpt"]}}
    assert "declare payload.checkpoint" in plan("--site", "summit", status=2, minutes=2000)
    shown = plan("--site", "summit", "--nodes", "48", more=payload, minutes=2000)
    assert "runs across 6 allocations, each time from its checkpoint" in " ".join(shown.split())


def test_gpus_that_stay_idle_are_noted(plan):
    assert plan("--site", "summit", gpus_per_node=0).startswith("note: ")
    (note,) = json.loads(plan("--site", "summit", "--json", gpus_per_node=0))["notes"]
    assert "resources.gpus_per_node: is 0, and a node of summit has 6 GPUs" in note


@pytest.mark.parametrize(
    ("site", "words", "resources", "said"),
    [
        ("perlmutter", (), {}, "a node of perlmutter has 4 GPUs, not 6"),
        ("summit", (), {"nodes": 5000}, "at most 4608 nodes"),
        ("summit", ("--minutes-per-trial", "91"), {}, "by resources.minutes a trial may run 90 at most"),
        ("summit", (), {"minutes": 2000}, "lasts longer than 1440 minutes"),
        ("summit", ("--nodes", "45"), {"minutes": 150}, "has 118 for it"),
        ("local", (), {}, "the local site is one machine"),
        ("grid", ("--walltime", "2:00"), {}, "--walltime: site grid has no batch system"),
        ("nowhere", (), {}, "there is no site profile 'nowhere'"),
    ],
)
def test_what_does_not_fit_is_refused(plan, site, words, resources, said):
    assert said in plan("--site", site, *words, status=2, **resources)


def test_trials_on_one_node_need_no_job_steps_where_agents_start_them(plan):
    one = {"nodes": 1, "gpus_per_node": 1, "cores": 7, "memory_mb": 1000, "minutes": 60}
    one["budget"] = {"trials": 2000, "parallel": 1000}
    found = json.loads(plan("--site", "frontier", "--nodes", "184", "--json", **one))
    assert found["launch"] is None and found["allocation"]["jobs_at_once"] == 1000  # job steps: 100
    assert "An agent on each node starts its trials" in plan("--site", "frontier", "--nodes", "184", **one)


def test_trials_that_torchrun_starts_on_several_nodes_need_no_job_steps(plan, tmp_path):
    profile = find_site("frontier").model_dump(mode="json")
    profile |= {"name": "ours", "launcher": {"name": "torchrun", "starter": "srun"}}
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(profile))
    six = {"nodes": 6, "gpus_per_node": 8, "ranks_per_node": 8, "cores": 56, "memory_mb": 1000, "minutes": 60}
    six["budget"] = {"trials": 2000, "parallel": 1000}
    words = ("--site", str(tmp_path / "ours.yaml"), "--nodes", "1200")
    found = json.loads(plan(*words, "--json", **six))
    assert found["allocation"]["jobs_at_once"] == 200 and found["launch"].startswith("torchrun --nproc-per-node=8 ")
    assert "Agents start this on the trial's nodes" in plan(*words, **six)


def test_where_there_is_no_batch_system(plan):
    one = {"nodes": 1, "gpus_per_node": 0, "cores": 1, "memory_mb": 100}
    here = " ".join(plan("--site", "local", **one).split())
    assert "this machine: no allocation; `hpo-pilot run FILE` is all" in here and "#!" not in here
    grid = json.loads(plan("--site", "grid", "--json", **one))
    assert grid["submissions"] == 0 and grid["allocation"]["jobs_at_once"] == 8 and grid["hours"] == 12.0
    assert grid["launch"] is None and "This starts one trial" not in here


def test_advice_from_a_scaling_run(plan, tmp_path):
    runs = tmp_path / "runs.csv"
    runs.write_text("nodes,ranks,seconds\n1,6,102\n2,12,55.1\n4,24,31.2\n8,48,19.8\n16,96,14.9\n")
    found = json.loads(plan("--site", "summit", "--minutes-per-trial", "60", "--scaling", str(runs), "--json"))
    assert found["advice"]["model"]["error"] < 0.05
    assert found["advice"]["thriftiest"]["nodes"] == 1
    words = " ".join(plan("--site", "summit", "--scaling", str(runs)).split())
    assert "off by at most" in words and "most trials per node-hour" in words
    runs.write_text("nodes,ranks,seconds\n1,6,102\n2,12,55.1\n")
    assert "advice none: 2 sizes were measured" in " ".join(plan("--site", "summit", "--scaling", str(runs)).split())


def test_submit_notes_gpus_that_stay_idle(folder):
    document = {
        "search": "cpu",
        "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
        "payload": {"command": "python train.py"},
        "resources": {"cores": 8},
        "site": {"profile": "perlmutter"},
    }
    (folder / "search.yaml").write_text(yaml.safe_dump(document))
    done = command("submit", "search.yaml")
    assert done.stdout.startswith("search 'cpu' is registered")
    (note,) = done.stderr.splitlines()
    assert note.startswith("note: search.yaml:") and "a node of perlmutter has 4 GPUs, which stay idle" in note
