"""Energy counters of a node, in files of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest

from tests.runner.conftest import RUNNER

SPACE: dict = {"__name__": "hpo_pilot_energy"}
exec((RUNNER.parent / "hpo_pilot_energy.py").read_text(), SPACE)  # noqa: S102 - as the runner loads it
Meter = SPACE["Meter"]


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def meter(tmp_path):
    def make(cores, gpus=0, **more):
        places = {"cray": str(tmp_path / "cray"), "powercap": str(tmp_path / "powercap")}
        return Meter(cores, gpus, **{**places, "library": str(tmp_path / "no.so"), **more})

    return make


def package(tmp_path, number, value, *, name="package-0", size=1_000_000_000):
    folder = tmp_path / "powercap" / f"intel-rapl:{number}"
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in (("name", name), ("energy_uj", value), ("max_energy_range_uj", size)):
        (folder / f"{file}.new").write_text(f"{content}\n")
        (folder / f"{file}.new").rename(folder / file)  # as in /sys there is always a number


def cray(tmp_path, joules, gpus=0):
    folder = tmp_path / "cray"
    folder.mkdir(exist_ok=True)
    (folder / "energy").write_text(f"{joules} J 1700000000 us\n")
    for number in range(gpus):
        (folder / f"accel{number}_energy").write_text("1 J 1 us\n")


def test_packages_are_added_up_and_parts_of_them_are_not(tmp_path, meter):
    for number, value in ((0, 5_000_000), (1, 7_000_000), ("0:0", 1)):
        package(tmp_path, number, value)
    package(tmp_path, 2, 0, name="psys")
    running = meter(2)  # half of the cores
    for number, value in ((0, 15_000_000), (1, 27_000_000), ("0:0", 9_000_000), (2, 99_000_000)):
        (tmp_path / "powercap" / f"intel-rapl:{number}" / "energy_uj").write_text(f"{value}\n")
    assert running.metrics() == {"energy_joules": pytest.approx(15.0)}


def test_counters_that_start_again_are_seen_in_time(tmp_path, meter):
    package(tmp_path, 0, 900_000_000)
    running = meter(4, every=0.05)
    for value in (990_000_000, 50_000_000, 40_000_000):  # 90, 60 and 990 J
        package(tmp_path, 0, value)
        time.sleep(0.4)
    assert running.metrics() == {"energy_joules": pytest.approx(1140.0)}


@pytest.mark.parametrize(("cores", "gpus", "share"), [(4, 0, 1.0), (1, 0, 0.25), (1, 4, 0.5), (1, 8, 1.0)])
def test_the_counter_of_cray_includes_the_gpus(tmp_path, meter, cores, gpus, share):
    package(tmp_path, 0, 0)
    cray(tmp_path, 1000, gpus=8)
    running = meter(cores, gpus)
    cray(tmp_path, 1600, gpus=8)
    package(tmp_path, 0, 99_000_000)
    assert running.metrics() == {"energy_joules": pytest.approx(600.0 * share)}


def test_an_incomplete_measurement_gives_no_energy(tmp_path, meter):
    package(tmp_path, 0, 0)
    (tmp_path / "powercap" / "intel-rapl:1").mkdir()
    assert meter(4).metrics() == {}
    shutil.rmtree(tmp_path / "powercap" / "intel-rapl:1")
    assert meter(4, 1).metrics() == {}  # the GPU is not measured
    running = meter(4)
    shutil.rmtree(tmp_path / "powercap")
    assert running.metrics() == {}


NVML = """
static unsigned long long energy[2] = {1000, 5000};
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { if (i > 1) return 2; *d = &energy[i]; return 0; }
int nvmlDeviceGetHandleByUUID(const char *u, void **d) { *d = &energy[1]; return u[4] == 'b' ? 0 : 6; }
int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *e) {
    *e = *(unsigned long long *)d; *(unsigned long long *)d += 3000; return 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler for a stub of NVML")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "nvml.so", "nvml.c"], cwd=folder, check=True)
    return str(folder / "nvml.so")


@pytest.mark.parametrize("visible", ["1", "GPU-b"])
def test_gpus_by_nvml(tmp_path, meter, library, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert meter(1, 1, library=library).metrics() == {"gpu_energy_joules": pytest.approx(3.0)}
    package(tmp_path, 0, 0)
    running = meter(2, 1, library=library)
    package(tmp_path, 0, 8_000_000)
    assert running.metrics() == {"energy_joules": pytest.approx(7.0)}


@pytest.mark.parametrize(("visible", "gpus"), [("0,1", 1), ("5", 1), ("GPU-x", 1), ("", 1)])
def test_ambiguous_gpus_give_no_energy(meter, library, monkeypatch, visible, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert meter(1, gpus, library=library).metrics() == {}


def test_the_runner_reports_energy_as_a_metric(tmp_path, bench):
    counters = tmp_path / "cray"
    cray(tmp_path, 100)
    bench.quick = {"COUNTERS": f"({str(counters)!r},)", "CRAY, RAPL": f"({str(counters)!r}, {str(tmp_path)!r})"}
    figure = '{"loss": 1, "metrics": {"a": 2}}'
    command = f"sleep 0.5; echo '900 J 1 us' > {counters}/energy; echo '{figure}' > output.json"
    cores = os.sysconf("SC_NPROCESSORS_ONLN")
    ended = bench.run(command, cores=cores)
    assert ended.verdict["metrics"] == {"a": 2.0, "energy_joules": 800.0}, ended.said
    several = bench.run(command, cores=cores, nodes=2)
    assert several.verdict["metrics"] == {"a": 2.0}
