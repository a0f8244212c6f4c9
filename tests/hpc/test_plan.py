"""Plans of searches at the sites that come with the product: what fits, which allocations, what they take."""

from __future__ import annotations

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.plan import (
    Layout,
    Workload,
    choose_allocations,
    jobs_at_once,
    make_open_plan,
    make_plan,
    most_at_once,
    node_shape,
    nodes_for,
    simulate,
)
from hpo_pilot.hpc.site_files import find_site
from hpo_pilot.hpc.site_profile import BatchQueue, SiteProfile, WalltimeBin
from hpo_pilot.jobs.resources import JobNeeds, NodeShape
from hpo_pilot.search import Search

SUMMIT_NODE = NodeShape(cores=42, memory_mb=512_000, gpus=6)
GAN = JobNeeds(6, 6, 42, 400_000, 90, 6)


def work(needs, minutes, trials, parallel, folds=1):
    return Workload(needs, 60.0 * minutes, trials, folds, parallel, trials)


@pytest.mark.parametrize(
    ("needs", "each", "at_once", "steps"),
    [
        (GAN, 1, 768, None),
        (JobNeeds(1, 1, 7, 80_000, 60), 6, 27_648, None),
        (JobNeeds(1, 1, 7, 80_000, 60), 6, 1350, 1350),
        (JobNeeds(2, 3, 21, 200_000, 60), 2, 4608, None),
        (JobNeeds(1, 0, 14, 200_000, 60), 2, 9216, None),  # memory is what is short
        (JobNeeds(5, 6, 42, 1000, 60), 1, 921, None),  # three nodes are left over
    ],
)
def test_jobs_side_by_side_on_summit(needs, each, at_once, steps):
    assert SUMMIT_NODE.jobs(needs) == each
    assert most_at_once(SUMMIT_NODE, needs, 4608, steps) == at_once
    assert nodes_for(SUMMIT_NODE, needs, 1) == needs.nodes


def test_the_layout_of_a_whole_summit():
    layout = Layout.of(work(GAN, 60, 7680, 768), 768)
    assert (layout.points, layout.folds, layout.workers, layout.gpus) == (768, 1, 36, 1.0)
    assert layout.all_gpus == 27_648 and layout.processes == 27_649
    # Vlimant's 13 = 1 + 2 x 2 x (1 + 2) has a master in each; with all-reduce there is none.
    folded = Layout.of(work(JobNeeds(2, 1, 1, 100, 60, 1), 60, 8, 2, folds=2), 4)
    assert folded.processes == 1 + 2 * 2 * 2 and folded.all_gpus == 8
    assert Layout.of(work(JobNeeds(1, 6, 1, 100, 60, 3), 60, 8, 2), 2).gpus == 2.0


@pytest.mark.parametrize(
    ("job", "nodes", "submissions"),
    [
        # 46 nodes and more last 6 h, and 8 x 6 are 48: 64 trials of 60 minutes in 8 waves, 5 of them within 6 h.
        (work(GAN, 60, 64, 8), 48, 2),
        # One at a time there would be 2 h: one trial of 90 minutes each.
        (work(GAN, 90, 64, 8), 48, 3),
    ],
)
def test_the_allocation_on_summit(job, nodes, submissions):
    plan = make_plan(job, find_site("summit"))
    assert (plan.allocation.nodes, len(plan.runs)) == (nodes, submissions)
    assert plan.queue == "batch" and plan.limits.eligible == 4
    assert plan.cores_used == plan.gpus_used == pytest.approx(1.0)
    assert plan.node_hours == pytest.approx(job.job_seconds / 3600 * 6)


@pytest.mark.parametrize("site", ["summit", "frontier"])
@pytest.mark.parametrize(
    ("minutes", "limit", "trials", "parallel", "folds", "nodes"),
    [
        (25, 30, 100, 16, 1, 2),
        (11, 60, 200, 50, 1, 1),
        (7, 8, 9, 3, 2, 4),
    ],
)
def test_the_formula_is_what_the_scheduler_does(site, minutes, limit, trials, parallel, folds, nodes):
    profile = find_site(site)
    job = work(JobNeeds(nodes, profile.node.gpu_count, 7, 1000, limit), minutes, trials, parallel, folds)
    queue = profile.batch.queues["batch"]
    chosen = choose_allocations(job, profile, queue)
    shape = NodeShape(profile.node.cores, profile.node.memory_mb, profile.node.gpu_count)
    runs = simulate(job, shape, chosen.nodes, 60.0 * chosen.minutes, steps=profile.batch.job_steps)
    assert sum(run.jobs for run in runs) == trials * folds
    assert max(run.at_once for run in runs) == chosen.at_once
    # A search's own run times are known after 20: then more jobs start late in an allocation than by their minutes.
    assert len(runs) <= chosen.submissions
    assert sum(run.seconds for run in runs) == pytest.approx(chosen.seconds, rel=0.1)


def test_no_more_is_out_than_the_search_wants():
    (run,) = simulate(work(JobNeeds(1, 1, 1, 100, 10), 10, 40, 5, folds=3), SUMMIT_NODE, 100, 86_400.0)
    assert run.at_once == 15 and run.jobs == 120
    assert run.seconds == 8 * 600.0


def test_walltime_and_nodes_that_are_given_are_kept():
    plan = make_plan(work(GAN, 60, 64, 8), find_site("summit"), nodes=24, minutes=119)
    assert (plan.allocation.nodes, plan.allocation.minutes, plan.allocation.at_once) == (24, 119, 4)
    assert len(plan.runs) == 16


def test_an_allocation_is_no_longer_than_it_helps():
    assert make_plan(work(GAN, 60, 8, 8), find_site("summit")).allocation.minutes == 105  # 90, and 2 at the end


@pytest.mark.parametrize(
    ("job", "options", "said"),
    [
        (work(JobNeeds(6, 6, 42, 1000, 119), 119, 8, 1), {"nodes": 6}, "has 118 for it .* fewer resources.minutes"),
        (work(JobNeeds(6, 6, 42, 1000, 480), 60, 8, 1), {"nodes": 6}, "declare payload.checkpoint"),
        (work(GAN, 60, 8, 1), {"nodes": 5}, "a job has 6 nodes, more than an allocation of 5"),
        (work(GAN, 60, 8, 1), {"nodes": 5000}, "5000 nodes are more than the 4608"),
        (work(GAN, 60, 8, 1), {"nodes": 45, "minutes": 300}, "more than the 120 that summit gives such allocations"),
        (work(GAN, 60, 8, 1), {"minutes": 60}, "has 58 for it"),
        (work(GAN, 60, 8, 1), {"queue": "debug"}, "the profile of summit has batch"),
        (work(JobNeeds(1, 7, 1, 1000, 60), 60, 8, 1), {}, "does not hold a job"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(job, options, said):
    with pytest.raises(InputError, match=said):
        make_plan(job, find_site("summit"), **options)


def test_a_site_that_says_nothing():
    profile = SiteProfile.model_validate({"name": "x", "batch": {"system": "slurm"}})
    plan = make_plan(work(JobNeeds(2, 4, 8, 1000, 30), 30, 10, 5), profile)
    assert plan.allocation.nodes == 10 and plan.queue is None


def test_several_walltimes_make_several_searches():
    bins = (WalltimeBin(nodes=4, hours=1.0), WalltimeBin(nodes=8, hours=10.0))
    profile = SiteProfile.model_validate({"name": "x", "node": {"cores": 1}, "batch": {"system": "pbs"}})
    job = work(JobNeeds(1, 0, 1, 100, 50), 50, 40, 4)
    chosen = choose_allocations(job, profile, BatchQueue(walltime=bins))
    # Five nodes would be paid for where four run: a quarter more, and no sooner.
    assert (chosen.nodes, chosen.submissions) == (4, 10)
    long = work(JobNeeds(1, 0, 1, 100, 70), 70, 40, 4)
    assert choose_allocations(long, profile, BatchQueue(walltime=bins)).nodes == 5


def test_where_nothing_is_allocated_the_search_has_all_the_time():
    plan = make_open_plan(work(JobNeeds(1, 0, 1, 100, 600), 600, 10, 8), NodeShape(4, 16_000), 1)
    assert plan.seconds == 3 * 36_000 and plan.allocation.at_once == 4 and len(plan.runs) == 1


def test_a_run_time_that_fits_is_enough_as_for_the_scheduler():
    job = work(JobNeeds(6, 6, 42, 1000, 400), 100, 8, 1)
    plan = make_plan(job, find_site("summit"), nodes=6)
    assert (plan.allocation.minutes, len(plan.runs), plan.allocations_per_job) == (120, 8, 1)
    assert jobs_at_once(find_site("summit"), job.needs, 6, 120) == 1
    assert jobs_at_once(find_site("summit"), JobNeeds(6, 6, 42, 1000, 480), 6, 120) == 0


def test_jobs_with_checkpoints_run_across_allocations():
    keeps = JobNeeds(6, 6, 42, 1000, 300, checkpoints=True)
    plan = make_plan(work(keeps, 300, 4, 2), find_site("summit"), nodes=12, minutes=120)
    # 115 of 118 minutes are kept: two jobs need 300 - 115 - 115 in their third allocation, and two more follow there.
    assert plan.allocations_per_job == 3
    assert len(plan.runs) == 6 and sum(run.jobs for run in plan.runs) == 4
    assert plan.job_seconds == pytest.approx(60 * 4 * 300, rel=0.05) and plan.job_seconds > 60 * 4 * 300
    assert jobs_at_once(find_site("summit"), keeps, 12, 120) == 2
    short = make_plan(work(JobNeeds(6, 6, 42, 1000, 60, checkpoints=True), 50, 8, 1), find_site("summit"), nodes=6)
    assert short.allocations_per_job == 1 and len(short.runs) == 4  # of the third job 18 minutes are in the first


def test_an_allocation_has_the_nodes_that_its_job_steps_can_use():
    """Trials on one node have none where agents start them."""
    plan = make_plan(work(JobNeeds(2, 8, 56, 400_000, 60), 60, 1000, 1024), find_site("frontier"))
    assert (plan.allocation.nodes, plan.allocation.at_once) == (200, 100)
    plan = make_plan(work(JobNeeds(1, 1, 7, 60_000, 60), 60, 10_000, 1024), find_site("frontier"))
    assert (plan.allocation.nodes, plan.allocation.at_once) == (128, 1024)


def test_the_cores_that_jobs_leave_idle_are_not_used():
    plan = make_plan(work(JobNeeds(1, 0, 1, 2000, 60), 60, 12, 3), find_site("frontier"), nodes=1)
    assert plan.cores_used == pytest.approx(3 / 56) and plan.gpus_used == 0.0


def test_what_a_profile_leaves_out_is_no_limit():
    needs = JobNeeds(1, 0, 8, 8000, 60)
    for node, each in (({}, 1), ({"cores": 64}, 8), ({"cores": 4}, 0), ({"memory_mb": 64_000}, 8)):
        profile = SiteProfile.model_validate({"name": "x", "node": node, "batch": {"system": "slurm"}})
        assert node_shape(profile, needs).jobs(needs) == each


def test_the_workload_of_a_search():
    search = Search.model_validate(
        {
            "search": "demo",
            "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
            "budget": {"trials": 20, "parallel": 6},
            "confirm": {"top": 2, "repeats": 3},
            "folds": 2,
            "payload": {"command": "true"},
            "resources": {"nodes": 2, "gpus_per_node": 4, "cores": 8, "minutes": 60, "trials_per_job": 4},
        }
    )
    by_limit, given = Workload.of(search), Workload.of(search, 5.0)
    assert (by_limit.trials, by_limit.groups, by_limit.jobs, by_limit.parallel) == (26, 7, 14, 2)
    assert (by_limit.seconds, given.seconds) == (3600.0, 1200.0)
    assert by_limit.needs.ranks_per_node == 4
