"""The launchers whose programs can be installed here, with their real programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.hpc.launchers import make_launcher
from hpo_pilot.testing.launchers import (
    LauncherBench,
    a_dead_rank_ends_the_others,
    base_environment,
    passes_the_status_on,
    starts_ranks,
)
from tests.real.processes import missing

#: What is said of the launcher; and the name under which its program may stand beside another's.
SAID: dict[str, tuple[dict[str, Any], str]] = {
    "mpirun of Open MPI": ({"name": "mpirun", "options": ["--oversubscribe"]}, "mpirun.openmpi"),
    "mpirun of MPICH": ({"name": "mpirun", "mpi": "mpich"}, "mpirun.mpich"),
    "horovodrun": ({"name": "horovodrun", "options": ["--gloo"]}, "horovodrun"),
    "torchrun": ({"name": "torchrun"}, "torchrun"),
}


#: MPICH takes a rank for dead only once it is one of MPI's.
MPI_INIT = """
import ctypes
ctypes.CDLL("libmpich.so.12", mode=ctypes.RTLD_GLOBAL).MPI_Init(None, None)
"""

#: These come with the Horovod that `make horovod` builds, and its torch.
OF_HOROVOD = ("horovodrun", "torchrun")


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], LauncherBench]:
    def make(name: str) -> LauncherBench:
        said, program = SAID[name]
        launcher = make_launcher(said)
        tools, folder = tmp_path / "bin", tmp_path / "job"
        tools.mkdir()
        folder.mkdir()
        if name in OF_HOROVOD:
            found: Path | None = request.getfixturevalue("horovod").parent / program
        else:
            found = Path(which) if (which := shutil.which(program)) else None
        if found is None or not found.exists():
            missing(f"{program}: `make test-real` installs it, if root")
        # No link: programs find what belongs to them by where they are.
        (tools / launcher.programs[0]).write_text(f'#!/bin/sh\nexec {found} "$@"\n')
        (tools / launcher.programs[0]).chmod(0o755)
        base = base_environment(tools)
        if name == "mpirun of Open MPI" and os.geteuid() == 0:
            base |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return LauncherBench(launcher, folder, base)

    return make


@pytest.mark.parametrize("name", list(SAID))
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_are_started(bench: Callable[[str], LauncherBench], name: str, ranks: int) -> None:
    starts_ranks(bench(name), ranks)


@pytest.mark.parametrize("name", list(SAID))
def test_the_status_is_passed_on(bench: Callable[[str], LauncherBench], name: str) -> None:
    passes_the_status_on(bench(name))


@pytest.mark.parametrize("name", list(SAID))
def test_a_rank_that_dies_ends_the_others(bench: Callable[[str], LauncherBench], name: str) -> None:
    a_dead_rank_ends_the_others(bench(name), MPI_INIT if name == "mpirun of MPICH" else "")
