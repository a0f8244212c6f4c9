"""The auto-tuning payload: what it refuses, what it measures, and that a good kernel is faster than a bad one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot import load_search
from hpo_pilot.search import Objective
from hpo_pilot.search.earlier_results import read_results
from tests.payloads.conftest import PAYLOADS
from tests.real.processes import missing

PAYLOAD = PAYLOADS / "autotune"
#: Small and quick: a tenth of a second with its compilation.
POINT = {
    "tile_i": 32,
    "tile_j": 32,
    "tile_k": 32,
    "rows": 4,
    "columns": 2,
    "vector": 16,
    "unroll": 2,
    "layout": "packed_b",
    "optimize": "O2",
    "cpu": "generic",
    "fast_math": False,
    "size": 64,
    "samples": 10,
    "seconds": 0.05,
}


@pytest.fixture
def compiled() -> None:
    """Leaves a test out where there is no compiler; where everything must be there, it fails."""
    if not any(map(shutil.which, (os.environ.get("CC") or "cc", "cc", "gcc", "clang"))):
        missing("a C compiler")


@pytest.fixture
def tuned(of: Any, tmp_path: Path, compiled: None) -> Callable[..., dict[str, Any]]:
    """Tunes in this process; returns the metrics."""

    def tuning(**change: Any) -> dict[str, Any]:
        (tmp_path / "input.json").write_text(json.dumps({**POINT, **change}))
        result: dict[str, Any] = of("train").tune(of("train").read_point(tmp_path / "input.json"), tmp_path)
        assert result["status"] == 0
        assert result["loss"] == result["metrics"]["seconds"]
        return dict(result["metrics"])

    return tuning


@pytest.fixture
def job(tmp_path: Path, compiled: None) -> Path:
    """The folder of a job of a quick point."""
    shutil.copytree(PAYLOAD, tmp_path, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    (tmp_path / "input.json").write_text(json.dumps({**POINT, "seconds": 0.01}))
    return tmp_path


def verdict_of(folder: Path) -> dict[str, Any]:
    """The verdict of `train.py` in a Python without site-packages."""
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, '.'); import train; train.main()"]
    subprocess.run(command, cwd=folder, timeout=600, check=True, stdout=subprocess.DEVNULL)
    verdict: dict[str, Any] = json.loads((folder / "output.json").read_text())
    return verdict


# --- measuring --------------------------------------------------------------------------------------------------------


def test_a_good_point_is_faster_than_a_bad_one_by_far(tuned: Any) -> None:
    good = tuned(size=192, tile_i=96, tile_j=96, tile_k=96)
    bad = tuned(size=192, rows=1, columns=1, vector=8, layout="plain", optimize="O1", unroll=1)
    assert good["seconds"] < bad["seconds"] / 1.5
    assert good["gflops"] == pytest.approx(2 * 192**3 / good["seconds"] / 1e9)
    assert good["padding"] == 0
    for found in (good, bad):
        assert found["fastest"] <= found["seconds"] <= found["slowest"]
        assert found["error"] < 1e-15
        assert found["samples"] >= 1


@pytest.mark.parametrize(
    "change",
    [
        {"size": 50, "tile_i": 48, "tile_j": 32, "tile_k": 20, "layout": "packed"},
        {"rows": 2, "columns": 1, "vector": 64, "fast_math": True, "cpu": "native", "optimize": "O3"},
        {"layout": "plain", "unroll": 8, "rows": 8, "columns": 4, "vector": 8},
    ],
    ids=["padded", "wide", "plain"],
)
def test_every_kind_of_kernel_is_right(tuned: Any, change: dict[str, Any]) -> None:
    found = tuned(**change)
    assert found["error"] < 1e-15
    if change.get("size") == 50:
        assert found["padding"] == pytest.approx(96 * 64 * 60 / 50**3 - 1)


def test_threads_compute_the_same(tuned: Any, of: Any) -> None:
    try:
        found = tuned(threads=2, schedule="dynamic")
    except of("compiler").TuningError as error:
        if "OpenMP" not in str(error):
            raise
        pytest.skip("the compiler has no OpenMP")
    assert found["error"] < 1e-15
    assert found["pinned"] in (0, 2)


def test_the_median_leaves_disturbed_samples_aside_and_says_how_sure_it_is(of: Any) -> None:
    summary = of("measurement").summary
    quiet = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 9.0]
    found = summary(quiet, [50.0] * 100)
    assert found["seconds"] == 1.0
    assert (found["samples"], found["disturbed"], found["outliers"]) == (7, 100, 1)
    assert found["seconds_error"] == pytest.approx(1.2533 * 1.4826 * 0.05 / 7**0.5)
    assert summary([1.0], [3.0] * 5)["seconds"] == 3.0, "too few quiet ones: all count"
    assert summary([2.0] * 9, [])["seconds_error"] == 0


def test_the_error_of_the_median_is_that_of_repeated_measurements(of: Any) -> None:
    import numpy as np

    rng = np.random.default_rng(1)
    found = [of("measurement").summary(rng.normal(1.0, 0.1, 50).tolist(), []) for _ in range(300)]
    spread = np.std([one["seconds"] for one in found])
    assert np.mean([one["seconds_error"] for one in found]) == pytest.approx(spread, rel=0.15)


def test_two_tunings_never_share_a_processor(of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the locks are: real tunings may be under way
    own = of("measurement").own_processors
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("processes cannot be pinned here")
    before = os.sched_getaffinity(0)
    with own(1) as first:
        held = os.sched_getaffinity(0)
        assert first == len(held) == 1
        os.sched_setaffinity(0, before)  # as another process has it
        with own(len(before)) as all_of_them:
            assert all_of_them == 0, "one is taken: nothing is pinned"
            assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before
    with own(len(before)) as again:
        assert again == len(before)


def test_energy_is_read_where_there_are_counters(tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages: one counts up 1 J per ms and begins anew at 50 J, the other stands still."""
    for number in ("0", "1", "1:0"):  # the last is a part of the second
        (tmp_path / f"intel-rapl:{number}").mkdir()
        (tmp_path / f"intel-rapl:{number}" / "energy_uj").write_text("45000000\n")
        (tmp_path / f"intel-rapl:{number}" / "max_energy_range_uj").write_text("50000000\n")
    monkeypatch.setenv("AUTOTUNE_ENERGY_COUNTERS", str(tmp_path))
    assert "joules" not in tuned(), "no energy was used: it was not measured"
    ended = threading.Event()

    def count() -> None:
        begin = time.monotonic()
        while not ended.wait(0.0005):
            used = 45_000_000 + 1e9 * (time.monotonic() - begin)
            new = tmp_path / "new"
            new.write_text(f"{int(used) % 50_000_000}\n")
            new.replace(tmp_path / "intel-rapl:0" / "energy_uj")

    counting = threading.Thread(target=count)
    counting.start()
    try:
        found = tuned(seconds=0.02, samples=15)
    finally:
        ended.set()
        counting.join()
    assert 0 < found["joules"] < 50


# --- what goes wrong --------------------------------------------------------------------------------------------------


_LOOP = "for (size_t j = 0; j < N;"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("k < TILE_K; k++", "k < TILE_K - 1; k++", "the kernel's result is wrong: row "),
        # NaN is no small error.
        (_LOOP, f"c[0] = 0.0 / 0.0;\n {_LOOP}", "the kernel's result is wrong: row 0, column 0 "),
        (_LOOP, f"*(volatile char *)0 = 0; {_LOOP}", "the kernel was ended by SIGSEGV"),
        (_LOOP, f"undeclared = 1; {_LOOP}", "undeclared"),
    ],
    ids=["wrong", "nan", "crash", "compilation"],
)
def test_a_wrong_kernel_is_a_failed_trial(job: Path, old: str, new: str, message: str) -> None:
    kernel = job / "kernel.c"
    text = kernel.read_text()
    assert old in text
    kernel.write_text(text.replace(old, new))
    verdict = verdict_of(job)
    assert verdict["status"] == 1
    assert message in verdict["message"]


@pytest.mark.parametrize("compiler", ["", "no-such-compiler"])
def test_without_a_compiler_it_says_what_to_install(
    of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(of("compiler").TuningError, match=r"there is no C compiler: .*apt-get install gcc") as refused:
        of("compiler").Compiler(tmp_path)
    assert (compiler or "none of cc, gcc and clang") in str(refused.value)


def test_a_job_without_a_compiler_fails_with_that_reason(
    of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "input.json").write_text(json.dumps(POINT))
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.chdir(tmp_path)
    of("train").main()
    verdict = json.loads((tmp_path / "output.json").read_text())
    assert verdict["status"] == 1
    assert "'no-such-compiler', which is not there" in verdict["message"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["input.json", "output.json"], "nothing is left behind"


# --- its searches -----------------------------------------------------------------------------------------------------


def test_the_first_machines_results_are_of_this_space() -> None:
    search = load_search(PAYLOAD / "search-warm.yaml")
    assert search.warm_start == ("first-machine.json",)
    earlier = read_results(
        PAYLOAD / "first-machine.json", "first-machine.csv", search.space, [Objective(metric="seconds")]
    )
    assert len(earlier.trials) >= 60
    for trial in earlier.trials:
        assert search.space.mistakes(trial.point) == []
        assert trial.values is not None
        assert 1e-3 < trial.values[0] < 2


def test_it_needs_the_standard_library_alone(job: Path) -> None:
    verdict = verdict_of(job)
    assert verdict["status"] == 0
    objectives = load_search(PAYLOAD / "search-front.yaml").objectives
    assert {objective.metric for objective in objectives} <= verdict["metrics"].keys()
    assert verdict["metrics"]["code_bytes"] > 100
    readme = (PAYLOAD / "README.md").read_text()
    assert [name for name in verdict["metrics"] if f"`{name}`" not in readme] == []
