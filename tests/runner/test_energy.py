"""Energy counters of a node, in files of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

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
        places = {name: str(tmp_path / name) for name in ("cray", "powercap", "drm")}
        return Meter(cores, gpus, **{**places, "libraries": ("no.so", "no.so"), **more})

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


def test_counters_that_start_again_are_seen_in_time(tmp_path, meter, until):
    package(tmp_path, 0, 900_000_000)
    running = meter(4, every=0.05)
    for value in (990_000_000, 50_000_000, 40_000_000):  # 90, 60 and 990 J
        package(tmp_path, 0, value)
        until(lambda value=value: running.node[0].last == value)
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
int nvmlDeviceGetUUID(void *d, char *u, unsigned n) { *u = d == energy ? 'a' : 'b'; u[1] = 0; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *e) {
    *e = *(unsigned long long *)d; *(unsigned long long *)d += 3000; return 0; }

int rsmi_init(unsigned long long flags) { return 0; }
int rsmi_num_monitor_devices(unsigned *n) { *n = 2; return 0; }
int rsmi_dev_energy_count_get(unsigned i, unsigned long long *e, float *unit, unsigned long long *t) {
    *unit = 0.5; *e = energy[i] += 4000000; return i > 1; }
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
    libraries = (library, "no.so")
    assert meter(1, 1, libraries=libraries).metrics() == {"gpu_energy_joules": pytest.approx(3.0)}
    package(tmp_path, 0, 0)
    running = meter(2, 1, libraries=libraries)
    package(tmp_path, 0, 8_000_000)
    assert running.metrics() == {"energy_joules": pytest.approx(7.0)}


@pytest.mark.parametrize(("visible", "gpus"), [("0,1", 1), ("5", 1), ("GPU-x", 1), ("", 1)])
def test_ambiguous_gpus_give_no_energy(meter, library, monkeypatch, visible, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert meter(1, gpus, libraries=(library, library)).metrics() == {}


def test_gpus_of_amd_are_measured_if_the_job_has_all_of_them(meter, library):
    assert meter(1, 2, libraries=("no.so", library)).metrics() == {"gpu_energy_joules": pytest.approx(4.0)}
    assert meter(1, 1, libraries=("no.so", library)).metrics() == {}


@pytest.mark.parametrize(
    ("gpus", "figures"), [(2, {"gpu_energy_joules": 12.0}), (4, {"gpu_energy_joules": 12.0}), (1, {})]
)
def test_cards_of_intel_are_measured_if_the_job_has_all_of_them(tmp_path, meter, gpus, figures):
    for number in range(2):
        hwmon = tmp_path / "devices" / f"{number}" / "hwmon" / "hwmon5"
        for name, folder in (("i915", hwmon), ("i915_gt0", hwmon.with_name("hwmon6"))):
            folder.mkdir(parents=True)
            (folder / "name").write_text(f"{name}\n")
            (folder / "energy1_input").write_text("1000000\n")
        for link in (f"renderD{128 + number}", f"card{number}"):
            (tmp_path / "drm" / link).mkdir(parents=True)
            (tmp_path / "drm" / link / "device").symlink_to(hwmon.parents[1])
    running = meter(1, gpus)
    for file in (tmp_path / "devices").glob("*/hwmon/hwmon5/energy1_input"):
        file.write_text("7000000\n")
    assert running.metrics() == figures


def test_the_ranks_of_several_nodes_are_added_up():
    """Each counter once, as the rank that ended last has read it; a missing one gives no figure."""
    one = {"at": "n1", "wanted": 2, "joules": {"node": 10.0, "a": 1.0}}
    other = {"at": "n1", "wanted": 2, "joules": {"node": 12.0, "b": 2.0}}
    far = {"at": "n2", "wanted": 2, "joules": {"node": 20.0, "a": 3.0, "b": 4.0}}
    total = SPACE["total"]
    assert total([one, other, far], 2) == {"energy_joules": 42.0}
    assert total([one, far], 2) == total([one, other], 2) == total([], 2) == {}
    del far["joules"]["node"]
    assert total([one, other, far], 2) == {"gpu_energy_joules": 10.0}


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


#: Waits until the parents of all ranks have a thread that reads counters.
MEASURED_BY_ALL = (
    "until [ $(ls /proc/$PPID/task | wc -l) -gt 1 ]; do sleep 0.1; done; touch ready-$$; "
    "until [ $(ls ready-* | wc -l) -eq {ranks} ]; do sleep 0.1; done"
)


@pytest.mark.parametrize(("nodes", "measured"), [(2, {"a": 2.0, "energy_joules": 1600.0}), (3, {"a": 2.0})])
def test_ranks_measure_where_they_run(tmp_path, bench, nodes, measured):
    """Four ranks on two nodes, which have the same counter: it grows by 800 J."""
    counters = tmp_path / "cray"
    cray(tmp_path, 100)
    bench.quick = {"CRAY, RAPL": f"({str(counters)!r}, {str(tmp_path)!r})"}
    starts = 'for at in n1 n1 n2 n2; do SLURMD_NODENAME=$at python3 -I -S "$@" & done; wait'
    before = ["/bin/sh", "-c", starts, "launcher", "%FOLDER/hpo_pilot_orphans.py"]
    command = f"""{MEASURED_BY_ALL.format(ranks=4)}; echo '900 J 1 us' > {counters}/energy
        echo '{{"loss": 1, "metrics": {{"a": 2}}}}' > output.json"""
    files = {"hpo_pilot_launch.json": json.dumps({"before": before})}
    ended = bench.run(command, cores=os.sysconf("SC_NPROCESSORS_ONLN"), nodes=nodes, files=files)
    assert ended.verdict["metrics"] == measured, ended.said
