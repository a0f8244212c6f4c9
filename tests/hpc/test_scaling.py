"""The performance model against truths that are known, with noise and with points held out; and what it advises."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.scaling import AdviceRequest, ScalingPoint, advise, fit_scaling, read_points, search_points

#: compute, bytes, latency, input, in seconds.
TRUTH = (100.0, 3.0, 0.05, 1.0)
SIZES = (1, 2, 4, 8, 16, 32)


def split_batch(w):
    a, b, c, d = TRUTH
    return a / w, b * (w - 1) / w + c * (w - 1), d


def batch_per_rank(w):
    a, b, c, d = TRUTH
    return a / w, (b * (w - 1) / w + c * (w - 1)) / w, d


def measured(truth, noise=0.0, *, seed=1, sizes=SIZES, repeats=2, parts=False):
    dice = random.Random(seed)
    points = []
    for size in sizes:
        for _ in range(repeats):
            each = tuple(part * dice.lognormvariate(0.0, noise) for part in truth(size))
            points.append(ScalingPoint(size, size, sum(each), each if parts else None))
    return points


@pytest.mark.parametrize("truth", [split_batch, batch_per_rank])
@pytest.mark.parametrize("parts", [False, True])
def test_without_noise_the_truth_is_found(truth, parts):
    model = fit_scaling(measured(truth, parts=parts))
    assert model.kind == truth.__name__.replace("_", " ")
    assert model.error < 1e-6
    assert [model.seconds(w) for w in (1, 3, 64)] == pytest.approx([sum(truth(w)) for w in (1, 3, 64)])
    if parts:  # of whole times alone the coefficients cannot all be told
        assert model.coefficients == pytest.approx(TRUTH, rel=1e-6)
        assert model.parts(64) == pytest.approx(truth(64))


@pytest.mark.parametrize("truth", [split_batch, batch_per_rank])
@pytest.mark.parametrize(("noise", "within", "twice"), [(0.01, 0.03, 0.06), (0.03, 0.09, 0.2)])
def test_with_noise_it_stays_close(truth, noise, within, twice):
    off = [fit_scaling(measured(truth, noise, seed=seed)) for seed in range(40)]
    inside = sorted(max(abs(m.seconds(w) / sum(truth(w)) - 1) for w in range(1, 33)) for m in off)
    beyond = sorted(abs(m.seconds(64) / sum(truth(64)) - 1) for m in off)
    assert inside[35] < within and beyond[35] < twice


def test_the_stated_error_is_that_of_points_held_out():
    points = measured(split_batch, 0.03, seed=5)
    model = fit_scaling(points)
    beyond = fit_scaling([point for point in points if point.ranks < 32])
    of_32 = [point.seconds for point in points if point.ranks == 32]
    mean = (of_32[0] * of_32[1]) ** 0.5
    assert model.error_beyond <= model.error
    if beyond.kind == model.kind:
        assert model.error_beyond == pytest.approx(abs(beyond.seconds(32) / mean - 1))


ASKED = AdviceRequest(
    nodes=1, minutes=101.0, ranks_per_node=1, gpus_per_node=4, folds=1, trials=64, parallel=8, all_nodes=64
)


def test_advice():
    advice = advise(measured(split_batch, 0.005), ASKED)
    assert advice.why_not == ""
    assert advice.thriftiest.nodes == 1
    # Eight at once on 64 nodes have 8 each: with more nodes fewer run at once.
    assert advice.quickest.nodes == 8 and advice.quickest.search_hours == pytest.approx(
        8 * sum(split_batch(8)) / 60, rel=0.03
    )
    by_nodes = {option.nodes: option for option in advice.options}
    assert by_nodes[1].minutes == 101.0 and by_nodes[1].gpu_hours == pytest.approx(64 * 4 * 101 / 60)
    assert not by_nodes[64].measured and by_nodes[32].measured


def test_advice_within_a_budget():
    points, alone = measured(split_batch), 64 * 4 * 101 / 60
    assert advise(points, replace(ASKED, gpu_hours=1.1 * alone)).quickest.nodes == 3
    none = advise(points, replace(ASKED, gpu_hours=0.9 * alone))
    assert none.quickest is None and none.thriftiest.nodes == 1 and "within" in none.why_not


def test_advice_within_a_walltime():
    advice = advise(measured(split_batch), replace(ASKED, longest=30.0))
    assert advice.thriftiest.nodes == 4 and advice.thriftiest.minutes <= 30
    assert "within the 1 minutes allowed" in advise(measured(split_batch), replace(ASKED, longest=1.0)).why_not


def test_no_advice_from_too_little():
    assert fit_scaling(measured(split_batch, sizes=(1, 2))) is None
    advice = advise(measured(split_batch, sizes=(1, 2, 4)), ASKED)
    assert advice.model is not None and advice.quickest is None and "3 sizes were measured" in advice.why_not
    jumps = [ScalingPoint(n, n, 10.0 if n in (1, 4, 16) else 40.0) for n in SIZES]
    assert "sizes held out" in advise(jumps, ASKED).why_not
    other = advise(measured(split_batch), replace(ASKED, ranks_per_node=4))
    assert "the points have 1 ranks per node, and the search 4" in other.why_not


def test_a_file():
    text = "\ufeffnodes, ranks,seconds,who\n1,6,60,me\n2,12,33.5,\n\n"
    assert read_points(text, "runs.csv") == [ScalingPoint(1, 6, 60.0), ScalingPoint(2, 12, 33.5)]
    (point,) = read_points("nodes,images_per_second\n2,250\n", "runs.csv")
    assert point == ScalingPoint(2, 2, 0.004)
    head = "nodes,seconds,compute_seconds,communication_seconds,input_seconds\n"
    (point,) = read_points(head + "2,10,30,6,4\n", "runs.csv")
    assert point.parts == pytest.approx((7.5, 1.5, 1.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the first line names the columns"),
        ("nodes,time\n1,2\n", "it has nodes, time"),
        ("nodes,seconds\n1,2\n0,3\n", "line 3: nodes is '0': give a number above 0"),
        ("nodes,seconds\n1.5,2\n", "give a whole number"),
        ("nodes,seconds\n1,nan\n", "line 2: seconds is 'nan'"),
        ("nodes,seconds,compute_seconds\n1,2,1\n", "it has compute_seconds alone"),
    ],
)
def test_a_file_that_is_wrong(text, said):
    with pytest.raises(InputError, match=said):
        read_points(text, "runs.csv")


def fold(seconds=60.0, value=0.5, **metrics):
    return {"value": value, "seconds": seconds, "metrics": metrics}


def test_points_of_finished_searches():
    resources = {"nodes": 2, "gpus_per_node": 3, "ranks_per_node": None}
    parts = {"compute_seconds": 30.0, "communication_seconds": 6.0, "input_seconds": 4.0}
    trials = [{"folds": [fold(images_per_second=50.0, ranks=6.0, **parts), fold(value=None)]}]
    (point,) = search_points("scan", resources, trials)
    assert (point.nodes, point.ranks, point.seconds) == (2, 6, 0.02)
    assert point.parts == pytest.approx((0.015, 0.003, 0.002))
    assert search_points("scan", resources, [{"folds": [fold()]}]) == [ScalingPoint(2, 6, 60.0)]
    with pytest.raises(InputError, match="it measured nothing"):
        search_points("scan", resources, [{"folds": [fold(value=None)]}])
    with pytest.raises(InputError, match="only 1 of 2"):
        search_points("scan", resources, [{"folds": [fold(), fold(images_per_second=1.0)]}])
