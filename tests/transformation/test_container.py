from __future__ import annotations

from pathlib import Path

import pytest

from hpo_pilot.transformation.container import choose_runtime
from hpo_pilot.transformation.job import ExitCode, TransformationFailure


def provide(folder: Path, monkeypatch: pytest.MonkeyPatch, *programs: str) -> None:
    for program in programs:
        (folder / program).write_text("#!/bin/sh\n")
        (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_without_an_image_nothing_is_wrapped():
    runtime = choose_runtime("auto", "")
    assert runtime.wrap(["a", "b"], "", [], {}, Path("/w")) == ["a", "b"]


def test_an_image_that_cannot_be_run_here_fails_the_job(tmp_path, monkeypatch):
    provide(tmp_path, monkeypatch)
    with pytest.raises(
        TransformationFailure, match=r"x\.sif.*apptainer, singularity, ch-run, shifter, podman-hpc, podman"
    ) as caught:
        choose_runtime("auto", "x.sif")
    assert caught.value.code is ExitCode.NO_CONTAINER_RUNTIME
    provide(tmp_path, monkeypatch, "ch-run")
    with pytest.raises(TransformationFailure):
        choose_runtime("auto", "x.sif")  # Charliecloud wants an unpacked root or a .sqfs file
    for name in ("none", "docker"):
        with pytest.raises(TransformationFailure):
            choose_runtime(name, "x.sif")


def test_the_runtime_follows_the_image(tmp_path, monkeypatch):
    provide(tmp_path, monkeypatch, "ch-run")
    assert choose_runtime("auto", str(tmp_path)).name == "charliecloud"
    assert choose_runtime("auto", "x.sqfs").name == "charliecloud"
    with pytest.raises(TransformationFailure):
        choose_runtime("auto", "/")  # ch-run cannot mount the machine's root over itself
    provide(tmp_path, monkeypatch, "singularity")
    assert choose_runtime("auto", "x.sif").name == "apptainer"
