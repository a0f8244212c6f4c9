from __future__ import annotations

import json
import os

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.pilot.machine import MachineGpu, choose_gpus, find_gpus, gpu_variables
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
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
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
    assert gpu_variables(()) == {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}


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
