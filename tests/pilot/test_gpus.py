from __future__ import annotations

import json
import os

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.launcher import GPU_VARIABLES, index_gpus_once
from hpo_pilot.hpc.launchers import make_launcher
from hpo_pilot.hpc.usage import ScheduledJob, Share, Start
from hpo_pilot.jobs.resources import JobNeeds
from hpo_pilot.pilot import machine as machine_module
from hpo_pilot.pilot.allocation import find_allocation
from hpo_pilot.pilot.allocation_pool import AllocationPool
from hpo_pilot.pilot.machine import MachineGpu, choose_gpus, find_gpus, gpu_variables
from hpo_pilot.pilot.settings import Site
from tests.pilot.conftest import PilotProcess
from tests.programs import program

SMI = """echo "0, NVIDIA H200, 143771, 570.86"
echo "1, NVIDIA H200, 143771, 570.86"
"""
TWO = tuple(MachineGpu(n, "NVIDIA", "NVIDIA H200", "143771", "570.86") for n in "01")
SAY = """echo '{"status": 0, "loss": 1, "metrics": {"n": '$(echo "$CUDA_VISIBLE_DEVICES" | tr -d -c 01 | wc -c)'}}' \\
> output.json; echo "[${CUDA_VISIBLE_DEVICES-all}]" > seen; sleep 0.4"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """One with two GPUs, as far as nvidia-smi says."""
    tools = program(tmp_path / "tools" / "nvidia-smi", SMI).parent
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    for name in GPU_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_gpus_are_found_and_described(machine):
    assert find_gpus({}) == TWO
    assert find_gpus({"CUDA_VISIBLE_DEVICES": "1"}) == TWO[1:]
    assert find_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert find_gpus({"ROCR_VISIBLE_DEVICES": "0"}) == TWO
    assert find_gpus({"CUDA_VISIBLE_DEVICES": "GPU-8f"}) == (MachineGpu("GPU-8f", "NVIDIA"),)
    assert TWO[0].described() == {
        "vendor": "NVIDIA",
        "model": "NVIDIA H200",
        "vram": "143771",
        "driver_version": "570.86",
    }


@pytest.mark.parametrize(
    ("launcher", "visible", "names"),
    [
        ("plain", "GPU-8f,GPU-12", ("GPU-8f", "GPU-12")),
        ("torchrun", "1,0", ("1", "0")),
        ("plain", None, ("0", "1")),
        ("plain", "1", ()),  # fewer than the batch system says
        ("srun", "GPU-8f,GPU-12", ()),  # it chooses among the GPUs by itself
    ],
)
def test_jobs_get_the_gpus_that_the_pool_named(machine, launcher, visible, names):
    """HTCondor hides no GPU: it names some (HTCondor Manual, "Extra Environment Variables HTCondor sets for Jobs")."""
    (machine / "ad").write_text("GpusProvisioned = 2\nCpusProvisioned = 2\nMemoryProvisioned = 512\n")
    env = {"_CONDOR_JOB_AD": str(machine / "ad")} | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {})
    site = Site(launcher=make_launcher({"name": launcher}), batch="htcondor", gpus=4, gpu_kind="nvidia")
    given = find_allocation(site, 60.0, env)
    assert given.gpus == names
    pool = AllocationPool(given, site, margin=0.0, when_lost=lambda *_: None)
    job = ScheduledJob((1, 1), "s", JobNeeds(gpus_per_node=1))
    shares = [Share(given.nodes[0].name, cores=(0,), gpus=(gpu,)) for gpu in (0, 1)]
    assert [pool.assignment(job, Start(job, (share,))).gpus[share.node] for share in shares] == [
        (name,) for name in names or ("0", "1")
    ]


def test_slices_of_a_gpu_take_its_place(machine, monkeypatch):
    """`nvidia-smi -L` as in NVIDIA's MIG User Guide, "CUDA_VISIBLE_DEVICES"."""
    listed = """\
GPU 0: NVIDIA H200 (UUID: GPU-e86cb44c)
  MIG 3g.71gb     Device  0: (UUID: MIG-c7384736)
  MIG 1c.3g.71gb  Device  1: (UUID: MIG-a28ad590)
GPU 1: NVIDIA H200 (UUID: GPU-12345678)
"""
    (machine / "mig").write_text(listed)
    program(machine / "tools" / "nvidia-smi", f"[ $1 = -L ] && exec cat {machine}/mig\n{SMI}")
    assert find_gpus({}) == TWO  # it is not asked for slices where there are none
    (machine / "gpu0" / "mig" / "gi1").mkdir(parents=True)
    monkeypatch.setattr(machine_module, "_CAPABILITIES", machine)
    first = MachineGpu("MIG-c7384736", "NVIDIA", "NVIDIA H200 MIG 3g.71gb", "71000", "570.86")
    found = find_gpus({})
    assert found[0] == first and [gpu.identifier for gpu in found] == ["MIG-c7384736", "MIG-a28ad590", "1"]
    assert find_gpus({"CUDA_VISIBLE_DEVICES": "MIG-c7384736"}) == (first,)
    assert gpu_variables(found[:1]) == {"CUDA_VISIBLE_DEVICES": "MIG-c7384736"}


def test_intel_gpus_are_counted_as_level_zero_counts_them(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine_module, "_DRM", tmp_path / "class")
    devices = {"0000:00:02.0": ("0x8086", 1), "0000:18:00.0": ("0x8086", 2), "0000:19:00.0": ("0x1a03", 0)}
    for number, (name, (vendor, tiles)) in enumerate(devices.items()):
        device = tmp_path / "devices" / name
        for tile in range(tiles):
            (device / "drm" / f"card{number}" / "gt" / f"gt{tile}").mkdir(parents=True)
        device.mkdir(parents=True, exist_ok=True)
        (device / "vendor").write_text(vendor + "\n")
        (tmp_path / "class" / f"renderD{128 + number}").mkdir(parents=True)
        (tmp_path / "class" / f"renderD{128 + number}" / "device").symlink_to(device)
    zero, one = MachineGpu("0", "INTEL"), MachineGpu("1", "INTEL")
    assert find_gpus({}) == (zero, one)
    assert find_gpus({"ZE_AFFINITY_MASK": "1"}) == (one,)
    assert find_gpus({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}) == (zero,)
    assert find_gpus({"ZE_AFFINITY_MASK": gpu_variables(())["ZE_AFFINITY_MASK"]}) == ()


def test_the_two_masks_of_amd(tmp_path, monkeypatch):
    """HIP counts what ROCR_VISIBLE_DEVICES leaves (ROCm, "GPU isolation techniques")."""
    four = tuple(MachineGpu(str(number), "AMD") for number in range(4))
    monkeypatch.setattr(machine_module, "_nvidia", tuple)
    monkeypatch.setattr(machine_module, "_amd", lambda: four)
    assert find_gpus({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}) == four[3:]
    assert find_gpus({"HIP_VISIBLE_DEVICES": "1,7"}) == four[1:2]
    job = {"HIP_VISIBLE_DEVICES": "1", "A": "1", **gpu_variables(four[3:])}
    assert index_gpus_once(job) == {"ROCR_VISIBLE_DEVICES": "3", "A": "1"}
    assert index_gpus_once({"HIP_VISIBLE_DEVICES": "1"}) == {"HIP_VISIBLE_DEVICES": "1"}


def test_gpus_are_chosen():
    assert choose_gpus("all", TWO) == choose_gpus("2", TWO) == choose_gpus("0,1,1", TWO) == TWO
    assert choose_gpus("1", TWO) == choose_gpus("0,", TWO) == TWO[:1]
    assert choose_gpus("0", TWO) == ()
    for wrong in ("3", "0,7", "few", "-1"):
        with pytest.raises(InputError, match="--gpus"):
            choose_gpus(wrong, TWO)


def test_variables():
    assert gpu_variables(TWO) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert gpu_variables([MachineGpu("3", "AMD")]) == {"ROCR_VISIBLE_DEVICES": "3"}
    assert gpu_variables(()) == {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "9999"}


def seen(pilot: PilotProcess) -> list[str]:
    return sorted(path.read_text().strip() for path in pilot.workdir.rglob("seen"))


def test_every_job_sees_its_own(machine, panda, pilot, until):
    jobs = [panda.add_job(SAY, gpus_per_node=count) for count in (1, 1, 2, 0)]
    pilot.start("--gpus", "all", "--keep", slots=4)
    for job in jobs:
        assert panda.final(job)["job_status"] == "finished"
    counts = [json.loads(panda.final(job)["meta_data"])["user_job_metadata"]["hpo_pilot"]["metrics"] for job in jobs]
    assert [count["n"] for count in counts] == [1, 1, 2, 0]
    assert seen(pilot)[0] == "[0,1]" and seen(pilot)[-1] == "[]"
