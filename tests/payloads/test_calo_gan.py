"""The calorimeter GAN's showers, its figure of merit, its searches, and what it refuses: all that needs no torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.payloads.conftest import PAYLOADS

PAYLOAD = PAYLOADS / "calo_gan"
POINT = {"generator_rate": 1e-3, "discriminator_rate": 1e-3, "batch": 32, "latent": 8, "channels": 4}
CELLS = 13


@pytest.fixture(scope="module")
def draw(of: Any) -> Callable[..., Any]:
    """Showers of CELLS³ cells."""

    def drawn(seed: int, events: int = 1000, shift: float = 0.0, **calorimeter: Any) -> Any:
        module = of("showers")
        maker = module.ShowerMaker(module.Calorimeter(CELLS, **calorimeter), shift=shift)
        return maker.draw(module.flat_energies(events, 10, 500, seed), seed)

    return drawn


@pytest.fixture(scope="module")
def figure(of: Any) -> Callable[..., dict[str, float]]:
    """Figures of merit of one sample against another."""

    def compared(found: Any, truth: Any) -> dict[str, float]:
        module = of("figure")
        edges = module.energy_bins(truth.energy, 4)
        sums = [module.profiles(sample.ecal, sample.energy, edges) for sample in (found, truth)]
        result: dict[str, float] = module.figure_of_merit(*sums)
        return result

    return compared


# --- showers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("particle", "offset"), [("photon", 0.5), ("electron", -0.5)])
def test_the_mean_shower_along_its_depth_is_the_gamma_distribution(of: Any, particle: str, offset: float) -> None:
    module = of("showers")
    maker = module.ShowerMaker(module.Calorimeter(100), particle)
    energy = np.array([10.0, 100.0, 500.0])
    critical = 0.610 / 75.24
    assert maker.maximum(energy) == pytest.approx(np.log(energy / critical) + offset)
    shares = maker.longitudinal(maker.maximum(energy))
    edges = np.linspace(0, 25, 101)
    for i, t_max in enumerate(maker.maximum(energy)):
        assert shares[i] == pytest.approx(np.diff(stats.gamma(1 + 0.5 * t_max, scale=2).cdf(edges)), abs=2e-5)
        assert edges[shares[i].argmax()] + 0.125 == pytest.approx(t_max, abs=0.26)


def test_a_moliere_radius_holds_nine_tenths_and_three_and_a_half_nearly_all(of: Any) -> None:
    module = of("showers")

    def outside(radius: float) -> float:
        lengths = ((module.CORE_SHARE, module.CORE_LENGTH), (1 - module.CORE_SHARE, module.HALO_LENGTH))
        return sum(share * (1 + radius / length) * math.exp(-radius / length) for share, length in lengths)

    assert outside(1.0) == pytest.approx(0.10, abs=0.002)
    assert outside(3.5) == pytest.approx(0.01, abs=0.001)
    # The cells' shares are integrals of that.
    maker = module.ShowerMaker(module.Calorimeter(75))
    mean = maker.lateral()[np.abs(module.WIDTHS - 1).argmin()]
    x = (np.arange(75) - 37) * 0.1
    assert mean[np.hypot(x[:, None], x) < 1].sum() == pytest.approx(1 - outside(1.0), abs=0.01)
    assert mean == pytest.approx(mean.T)
    assert mean == pytest.approx(mean[::-1])


def test_showers_are_deeper_with_energy_and_wider_with_depth(draw: Any) -> None:
    showers = draw(1)
    depth = np.arange(CELLS)
    mean = (showers.ecal.sum(axis=(1, 2)) * depth).sum(axis=1) / showers.ecal.sum(axis=(1, 2, 3)) * 25 / CELLS
    low, high = showers.energy < 50, showers.energy > 400
    expected = np.log(showers.energy[high]).mean() - np.log(showers.energy[low]).mean()
    assert mean[high].mean() - mean[low].mean() == pytest.approx(expected, rel=0.15)  # less, for what leaks out
    total = showers.ecal.sum(axis=0)
    x = np.abs(np.arange(CELLS) - CELLS // 2)
    width = (total.sum(axis=1) * x[:, None]).sum(axis=0) / total.sum(axis=(0, 1))
    assert width[9] > width[5] > width[2]
    assert width[9] > 1.3 * width[2]


def test_what_is_seen_is_the_sampling_fraction_and_fluctuates_as_the_resolution_says(of: Any) -> None:
    module = of("showers")
    maker = module.ShowerMaker(module.Calorimeter(CELLS))
    for energy in (20.0, 200.0):
        showers = maker.draw(np.full(800, energy), 3)
        fraction = showers.ecal.sum(axis=(1, 2, 3), dtype=float) / energy
        assert 0.93 * 0.025 < fraction.mean() < 0.025  # the rest leaks out
        relative = fraction.std() / fraction.mean()
        assert 0.9 * 0.17 / math.sqrt(energy) < relative < 1.8 * 0.17 / math.sqrt(energy)  # and leakage fluctuates
    again = maker.draw(np.full(5, 20.0), 3)
    assert (again.ecal == maker.draw(np.full(5, 20.0), 3).ecal).all()
    assert (again.ecal != maker.draw(np.full(5, 20.0), 4).ecal).any()
    assert again.ecal.dtype == np.float32


@pytest.mark.parametrize("energy", [[], [0.5], [math.nan], [-3.0, 10.0]])
def test_energies_without_a_shower_are_refused(of: Any, energy: list[float]) -> None:
    with pytest.raises(of("problem").TrainingError, match="1 GeV or more"):
        of("showers").ShowerMaker().draw(np.array(energy), 0)


# --- figure of merit --------------------------------------------------------------------------------------------------


def test_two_samples_of_one_truth_agree_the_better_the_larger_they_are(draw: Any, figure: Any) -> None:
    truth = draw(1)
    assert figure(truth, truth)["figure"] == 0
    same = figure(draw(2), truth)
    assert set(same) == {"figure", "longitudinal", "lateral", "sampling"}
    assert 0 < same["figure"] < 0.006
    assert same["figure"] == pytest.approx(np.mean([same["longitudinal"], same["lateral"], same["sampling"]]))
    assert figure(draw(4, 100), truth)["figure"] > 1.5 * same["figure"]


def test_a_wrong_profile_is_worse_than_the_right_one_and_the_wronger_the_worse(draw: Any, figure: Any) -> None:
    truth = draw(1)
    right = figure(draw(2), truth)
    shifted = [figure(draw(2, shift=shift), truth) for shift in (0.5, 1.0, 2.0, -2.0)]
    assert shifted[0]["figure"] > 2 * right["figure"]
    assert shifted[0]["figure"] < shifted[1]["figure"] < shifted[2]["figure"]
    assert shifted[3]["figure"] > 10 * right["figure"]
    assert shifted[2]["longitudinal"] > 20 * right["longitudinal"]
    assert shifted[2]["lateral"] < 0.01, "only the depth is wrong"
    wide = figure(draw(2, width=5.0), truth)  # the same shower in narrower cells
    assert wide["figure"] > 5 * right["figure"]
    assert wide["lateral"] > 5 * max(wide["longitudinal"], right["lateral"])


def test_a_wrong_sampling_fraction_is_seen_also_in_one_energy_bin(draw: Any, figure: Any, of: Any) -> None:
    truth, other = draw(1), draw(2)
    more = type(other)(other.ecal * np.float32(1.25), other.energy)
    assert figure(more, truth)["sampling"] == pytest.approx(0.2, abs=0.01)
    assert figure(more, truth)["longitudinal"] == pytest.approx(figure(other, truth)["longitudinal"])
    factor = np.where(other.energy > 377, 0.5, 1.0).astype(np.float32)  # the uppermost quarter
    some = type(other)(other.ecal * factor[:, None, None, None], other.energy)
    assert figure(some, truth)["sampling"] == pytest.approx(0.5 / 4, abs=0.01)
    # Showers that would be right if their energies were not somebody else's: the sum over all energies agrees.
    mixed = type(other)(other.ecal[other.energy.argsort()], np.sort(other.energy)[::-1])
    assert figure(mixed, truth)["sampling"] > 0.3


def test_nothing_at_all_is_as_far_away_as_can_be(draw: Any, figure: Any, of: Any) -> None:
    truth = draw(1, 200)
    nothing = type(truth)(np.zeros_like(truth.ecal), truth.energy)
    assert figure(nothing, truth)["figure"] == pytest.approx(1)
    broken = type(truth)(np.full_like(truth.ecal, np.nan), truth.energy)
    with pytest.raises(of("problem").TrainingError, match="are not numbers"):
        figure(broken, truth)
    with pytest.raises(of("problem").TrainingError, match="too few different energies"):
        of("figure").energy_bins(np.full(100, 5.0), 4)


def test_sums_of_parts_are_the_sum(draw: Any, of: Any) -> None:
    module, sample = of("figure"), draw(1, 200)
    edges = module.energy_bins(sample.energy, 4)
    whole = module.profiles(sample.ecal, sample.energy, edges)
    parts = [module.profiles(sample.ecal[i::3], sample.energy[i::3], edges).flat() for i in range(3)]
    assert whole.refilled([sum(values) for values in zip(*parts, strict=True)]).flat() == pytest.approx(whole.flat())
    assert whole.count.tolist() == [50] * 4
    assert 0.005 < whole.resolution() < 0.1


# --- files, points and searches ---------------------------------------------------------------------------------------


def test_h5py_is_asked_for_only_when_there_is_a_file(of: Any, tmp_path: Path, monkeypatch: Any) -> None:
    error = of("problem").TrainingError
    with pytest.raises(error, match="there is no file"):
        of("files").read_showers([tmp_path / "none.h5"])
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "some.h5").touch()
    with pytest.raises(error, match=r"some\.h5 needs the package h5py.*pip install h5py"):
        of("files").read_showers([tmp_path / "some.h5"])
    with pytest.raises(SystemExit, match="needs the package h5py"):
        of("files").main([str(tmp_path / "new.h5"), "--events", "2", "--cells", "5"])


def test_a_point_goes_before_the_command_line_before_the_defaults(of: Any, tmp_path: Path) -> None:
    (tmp_path / "input.json").write_text(json.dumps({**POINT, "cells": 9}))
    point = of("point").read_point(tmp_path / "input.json", {"cells": 13, "epochs": 3})
    assert (point["cells"], point["epochs"], point["events"]) == (9, 3, 2000)


def test_learning_rates_grow_with_the_batch_of_all_ranks(of: Any) -> None:
    factor = of("point").rate_factor
    for scaling, expected in (("linear", 4.0), ("sqrt", 2.0), ("none", 1.0)):
        point = {"batch": 128, "scaling": scaling, "warmup": 0}
        assert factor(point, 0.0) == pytest.approx(expected)
    point = {"batch": 128, "scaling": "linear", "warmup": 2}
    assert [factor(point, done) for done in (0.0, 1.0, 2.0, 5.0)] == pytest.approx([1.0, 2.5, 4.0, 4.0])
    point = {"batch": 8, "scaling": "linear", "warmup": 2}
    assert [factor(point, done) for done in (0.0, 1.0, 2.0)] == [0.25] * 3, "a warm-up never goes down"


def test_showers_need_numpy_alone() -> None:
    code = "import sys, figure, files, point; sys.exit(any(name in sys.modules for name in ('torch', 'h5py', 'scipy')))"
    subprocess.run([sys.executable, "-B", "-c", code], cwd=PAYLOAD, check=True, timeout=600)
