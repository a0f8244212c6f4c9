"""Every launcher starts ranks: the plain one, and those of four systems against stubs that check their arguments.

`tests/real/test_launchers.py` runs the same with the real mpirun, horovodrun and torchrun.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hpo_pilot.hpc.launchers import LAUNCHERS, make_launcher
from hpo_pilot.testing.launchers import (
    LauncherBench,
    a_dead_rank_ends_the_others,
    base_environment,
    passes_the_status_on,
    starts_ranks,
)

STUBS = Path(__file__).parents[1] / "hpc"
STUBBED = ("srun", "jsrun", "pals", "flux")
#: They know the cores and GPUs of nodes.
CHOOSERS = ("srun", "jsrun", "flux")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], LauncherBench]:
    """A launcher on an allocation of two nodes with four cores and two GPUs each."""

    def make(name: str) -> LauncherBench:
        tools, folder = tmp_path / "bin", tmp_path / "job"
        tools.mkdir()
        folder.mkdir()
        for stub in ("srun", "jsrun", "mpiexec", "flux"):
            words = [sys.executable, str(STUBS / f"stub_{stub}.py")]
            (tools / stub).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (tools / stub).chmod(0o755)
        monkeypatch.setenv("PATH", str(tools), prepend=":")
        allocation = {
            "SLURM_JOB_NODELIST": "n1,n2",
            "SLURM_STUB_CPUS": "4",
            "SLURM_STUB_GPUS": "2",
            "LSB_HOSTS": "launch n1 n2",
            "PALS_STUB_HOSTS": "n1,n2",
            "FLUX_STUB_HOSTS": "n1,n2",
            "STUB_CPUS": "4",
            "STUB_GPUS": "2",
        }
        base = {**base_environment(tools), **allocation}
        return LauncherBench(make_launcher({"name": name}), folder, base, ("n1", "n2"), "nvidia")

    return make


def test_all_are_checked_here_or_with_their_real_programs() -> None:
    assert set(LAUNCHERS) == {"plain", *STUBBED, "mpirun", "horovodrun", "torchrun"}


@pytest.mark.parametrize(("name", "ranks"), [("plain", 1), *((name, n) for name in STUBBED for n in (1, 2))])
def test_ranks_are_started(bench: Callable[[str], LauncherBench], name: str, ranks: int) -> None:
    starts_ranks(bench(name), ranks)


@pytest.mark.parametrize("name", ["plain", *STUBBED])
def test_the_status_is_passed_on(bench: Callable[[str], LauncherBench], name: str) -> None:
    passes_the_status_on(bench(name))


@pytest.mark.parametrize("name", STUBBED)
def test_a_rank_that_dies_ends_the_others(bench: Callable[[str], LauncherBench], name: str) -> None:
    a_dead_rank_ends_the_others(bench(name))


@pytest.mark.parametrize("name", CHOOSERS)
@pytest.mark.parametrize("shared", [False, True])
def test_gpus_on_the_second_node_alone(bench: Callable[[str], LauncherBench], name: str, shared: bool) -> None:
    here = replace(bench(name), launcher=make_launcher({"name": name, "share_gpus": shared}), nodes=("n2",))
    placement = here.placement(2, gpus_per_rank=1, allocation=("n1", "n2"))
    code = "import os; open('gpu-' + os.environ['CUDA_VISIBLE_DEVICES'], 'a').write('x')"
    done = here.run([sys.executable, "-c", code], placement)
    assert done.returncode == 0, done.stderr
    seen = {path.name: path.read_text() for path in here.folder.glob("gpu-*")}
    assert seen == ({"gpu-0,1": "xx"} if shared else {"gpu-0": "x", "gpu-1": "x"})


@pytest.mark.parametrize("name", CHOOSERS)
def test_the_stubs_refuse_what_the_programs_refuse(bench: Callable[[str], LauncherBench], name: str) -> None:
    here = bench(name)
    for placement in (
        here.placement(2, gpus_per_rank=2),
        here.placement(8),
        here.placement(2, gpus_per_rank=2, allocation=("n1", "n2")),
    ):
        assert here.run(["true"], placement).returncode == 64
