from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.batch_system import Remainder
from hpo_pilot.hpc.launchers import make_launcher
from hpo_pilot.pilot.allocation import find_allocation
from hpo_pilot.pilot.settings import Site

SRUN = make_launcher({"name": "srun"})


def saying(answers: Mapping[str, str]) -> Callable[[Sequence[str]], str]:
    """A batch system whose commands answer so, by their first words."""

    def ask(words: Sequence[str]) -> str:
        line = " ".join(words)
        for start, answer in answers.items():
            if line.startswith(start):
                return answer
        raise InputError(f"{words[0]} cannot be asked: no such program")

    return ask


def in_an_hour(form: str) -> str:
    return time.strftime(form, time.localtime(time.time() + 3600))


def test_slurm():
    env = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_JOB_CPUS_PER_NODE": "128(x2),64",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_MEM_PER_NODE": "200000",
    }
    asked = saying({"scontrol show hostnames n[1-3]": "n1\nn2\nn3", "squeue": in_an_hour("%Y-%m-%dT%H:%M:%S")})
    site = Site(launcher=SRUN, batch="slurm", cores=64, threads_per_core=2, memory_mb=256000, gpus=8)
    found = find_allocation(site, 0.0, env, asked)
    assert [node.name for node in found.nodes] == ["n1", "n2", "n3"]
    assert [node.shape.cores for node in found.nodes] == [64, 64, 32]  # the third is ours in part
    assert {(node.shape.gpus, node.shape.memory_mb) for node in found.nodes} == {(4, 200000)}
    assert 3400 < found.seconds <= 3601
    assert find_allocation(site, 60.0, env, asked).seconds == 60.0
    env["SLURM_JOB_END_TIME"] = str(int(time.time()) + 1000)
    assert 800 < find_allocation(site, 0.0, env, asked).seconds <= 1000


def test_what_slurm_takes_away():
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_END_TIME": "4000000000"}
    end = in_an_hour("%Y-%m-%dT%H:%M:%S")
    answers = {"scontrol show hostnames n[1-3]": "n1\nn2\nn3", "squeue": f"RUNNING {end} 3 n[1-3]"}
    found = find_allocation(Site(launcher=SRUN, batch="slurm"), 0.0, env, saying(answers))
    left = found.remainder()
    assert not left.lost and 3400 < left.seconds <= 3601
    answers |= {"squeue": "RUNNING NONE 2 n[1,3]", "scontrol show hostnames n[1,3]": "n1\nn3"}
    assert found.remainder() == Remainder(("n2",), math.inf)
    answers |= {"squeue": f"COMPLETING {end} 1 n1"}
    assert found.remainder() == Remainder((), 0.0)


def test_lsf(tmp_path):
    site = Site(launcher=make_launcher({"name": "jsrun"}), batch="lsf", cores=42, gpus=6, memory_mb=512000, close=3)
    env = {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": "batch2 1 a01n01 42 a01n02 42"}
    asked = saying({"bjobs -noheader -o time_left 9": "1:59 L"})
    found = find_allocation(site, 0.0, env, asked)
    assert [node.name for node in found.nodes] == ["a01n01", "a01n02"] and found.seconds == 7140
    assert found.nodes[0].shape.gpus == 6 and found.nodes[0].shape.close == 3
    (tmp_path / "hosts").write_text("batch2\n" + "a01n03\n" * 42)
    env["LSB_DJOB_HOSTFILE"] = str(tmp_path / "hosts")
    assert [node.name for node in find_allocation(site, 0.0, env, asked).nodes] == ["a01n03"]


def test_pbs_and_flux(tmp_path):
    (tmp_path / "nodes").write_text("x1\nx1\nx2\n")
    env = {"PBS_JOBID": "3.pbs", "PBS_NODEFILE": str(tmp_path / "nodes"), "NCPUS": "32"}
    began = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(time.time() - 600))
    said = f"Job Id: 3.pbs\n    Resource_List.walltime = 01:00:00\n    stime = {began}\n"
    site = Site(launcher=make_launcher({"name": "mpirun"}), batch="pbs", memory_mb=1000)
    found = find_allocation(site, 0.0, env, saying({"qstat -f 3.pbs": said}))
    assert [(node.name, node.shape.cores) for node in found.nodes] == [("x1", 32), ("x2", 32)]
    assert 2800 < found.seconds <= 3000
    flux = saying({"flux hostlist": "t1 t2", "flux job timeleft": "55.5"})
    found = find_allocation(Site(launcher=SRUN, batch="flux"), 0.0, {"FLUX_URI": "local:///x"}, flux)
    assert [node.name for node in found.nodes] == ["t1", "t2"] and found.seconds == 55.5


def test_htcondor(tmp_path):
    began = int(time.time()) - 600
    ad = f"ClusterId = 7\nProcId = 0\nCpusProvisioned = 2\nMemoryProvisioned = 512\nJobCurrentStartDate = {began}\n"
    env = {"_CONDOR_JOB_AD": str(tmp_path / "ad")}
    (tmp_path / "ad").write_text(f'{ad}GpusProvisioned = 0\nMaxRuntime = 3600\nOwner = "daemon"\nLast = undefined\n')
    site = Site(launcher=make_launcher({"name": "plain"}), batch="htcondor", cores=8)
    found = find_allocation(site, 0.0, env, saying({}))
    assert [(node.shape.cores, node.shape.memory_mb, node.shape.gpus) for node in found.nodes] == [(2, 512, 0)]
    assert found.job == "7.0" and 2800 < found.seconds <= 3000
    (tmp_path / "ad").write_text(ad)
    with pytest.raises(InputError, match="give --lifetime SECONDS"):
        find_allocation(site, 0.0, env, saying({}))
    with pytest.raises(InputError, match="_CONDOR_JOB_AD"):
        find_allocation(site, 0.0, {"_CONDOR_JOB_AD": str(tmp_path / "none")}, saying({}))


def test_what_is_not_known_is_asked_for():
    site = Site(launcher=SRUN, batch="slurm")
    with pytest.raises(InputError, match="SLURM_JOB_ID is not set; leave --allocation out"):
        find_allocation(site, 0.0, {"LSB_JOBID": "1"}, saying({}))
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    for answer in ({}, {"squeue": "N/A"}):
        asked = saying({"scontrol": "n1", **answer})
        with pytest.raises(InputError, match="give --lifetime SECONDS"):
            find_allocation(site, 0.0, env, asked)
        assert find_allocation(site, 50.0, env, asked).seconds == 50.0
    with pytest.raises(InputError, match="names no nodes"):
        find_allocation(site, 0.0, {"SLURM_JOB_ID": "7"}, saying({}))
    with pytest.raises(InputError, match="cannot start processes on other nodes"):
        find_allocation(
            Site(batch="slurm"), 5.0, env | {"SLURM_JOB_NODELIST": "n[1-2]"}, saying({"scontrol": "n1\nn2"})
        )
