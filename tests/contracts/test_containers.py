"""The container runtimes that cannot be installed here, against stubs that check their arguments.

`tests/real/test_containers.py` runs the same with the real charliecloud and podman.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_pilot.transformation.container import RUNTIMES, Inside
from tests.container_contract import (
    Ship,
    passes_the_status_on,
    python_path,
    runs_the_command_as_it_is,
    says_what_cannot_be_started,
)

STUB = Path(__file__).parents[1] / "transformation" / "stub_container.py"
STUBBED = {"apptainer": "/images/train.sif", "shifter": "docker://example.org/x:1", "podman-hpc": "example.org/x:1"}


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Ship]:
    def make(name: str) -> Ship:
        tools, folder = tmp_path / "bin", tmp_path / "job"
        tools.mkdir()
        folder.mkdir()
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(STUB), name])} "$@"\n')
        (tools / name).chmod(0o755)
        path = os.pathsep.join([str(tools), python_path(), os.environ["PATH"]])
        monkeypatch.setenv("PATH", path)
        return Ship(RUNTIMES[name], STUBBED[name], folder, {"PATH": path, "HOME": str(tmp_path)})

    return make


def test_all_are_checked_here_or_really() -> None:
    assert set(RUNTIMES) == {"none", *STUBBED, "charliecloud", "podman"}


@pytest.mark.parametrize("name", STUBBED)
@pytest.mark.parametrize(
    "check",
    [passes_the_status_on, says_what_cannot_be_started, lambda ship: runs_the_command_as_it_is(ship, in_image=False)],
)
def test_the_contract(ship: Callable[[str], Ship], name: str, check: Callable[[Ship], None]) -> None:
    check(ship(name))


@pytest.mark.parametrize("name", STUBBED)
@pytest.mark.parametrize("kind", ["nvidia", "amd", "none"])
def test_the_real_ones_would_take_every_flag(ship: Callable[[str], Ship], name: str, kind: str, tmp_path: Path) -> None:
    here = ship(name)
    inside = Inside(gpu_kind=kind, read_only=[tmp_path], mpi=[tmp_path / "bin"])
    done = here.run(["true"], inside, HPO_PILOT_X="y")
    assert done.returncode == 0, done.stderr
