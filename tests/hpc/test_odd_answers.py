"""Batch systems whose commands say what nobody expects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_pilot.errors import TryAgainError
from hpo_pilot.hpc.batch_system import AllocationSpec, BatchState
from hpo_pilot.hpc.batch_systems import make_batch_system

Commands = Callable[..., None]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Commands that print so, and nothing else is in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(**texts: str) -> None:
        for name, text in texts.items():
            (folder / name).write_text(f"#!/bin/sh\nprintf '%s\\n' '{text}'\n")
            (folder / name).chmod(0o755)

    return make


def test_lines_that_are_none(commands: Commands) -> None:
    """A site's own words between them, and a job without a state."""
    commands(squeue="Maintenance on Monday | see the news\n7|RUNNING|None|debug|normal|hpo-1\n8||None|debug|normal|x\n")
    assert {number: job.state for number, job in make_batch_system("slurm").jobs().items()} == {"7": BatchState.RUNNING}
    commands(bjobs="hello | world\n7|RUN|batch|-|hpo-1")
    assert list(make_batch_system("lsf").jobs()) == ["7"]
    commands(flux="hello | world\nf7|RUN|batch|hpo-1")
    assert list(make_batch_system("flux").jobs()) == ["f7"]


@pytest.mark.parametrize("said", ["[]", '{"Jobs": []}', '{"Jobs": {"7": 3}}', "Traceback", '{"Jobs": null}'])
def test_json_that_is_none(said: str, commands: Commands) -> None:
    commands(qselect="7", qstat=said)
    with pytest.raises(TryAgainError, match="qstat does not print proper JSON"):
        make_batch_system("pbs").jobs()


@pytest.mark.parametrize(("system", "command"), [("slurm", "sbatch"), ("pbs", "qsub"), ("flux", "flux")])
def test_a_submission_that_says_nothing(
    system: str, command: str, commands: Commands, plan: Callable[..., AllocationSpec]
) -> None:
    """Whether there is a job now is to be looked up."""
    commands(**{command: ""})
    with pytest.raises(TryAgainError, match=f"{command} does not say which job it submitted"):
        make_batch_system(system).submit(plan("one"))


def test_slurm_without_books(commands: Commands) -> None:
    assert make_batch_system("slurm").earlier(["7"]) == {}
