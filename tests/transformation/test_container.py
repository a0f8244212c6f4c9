from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hpo_pilot.transformation.container import RUNTIMES, Inside, choose_runtime
from hpo_pilot.transformation.failure import ExitCode, TransformationFailure


def provide(folder: Path, monkeypatch: pytest.MonkeyPatch, *programs: str) -> None:
    for program in programs:
        (folder / program).write_text("#!/bin/sh\n")
        (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_without_an_image_nothing_is_wrapped() -> None:
    runtime = choose_runtime("auto", "")
    assert runtime.wrap(["a", "b"], "", [], {}, Path("/w")) == ["a", "b"]


def test_an_image_that_cannot_be_run_here_fails_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provide(tmp_path, monkeypatch)
    with pytest.raises(
        TransformationFailure, match=r"x\.sif.*apptainer, singularity, ch-run, bwrap, shifter, podman-hpc, podman"
    ) as caught:
        choose_runtime("auto", "x.sif")
    assert caught.value.code is ExitCode.NO_CONTAINER_RUNTIME
    provide(tmp_path, monkeypatch, "bwrap")
    with pytest.raises(TransformationFailure):
        choose_runtime("auto", "x.sif")  # bubblewrap wants an unpacked root
    for name in ("none", "docker"):
        with pytest.raises(TransformationFailure):
            choose_runtime(name, "x.sif")


def test_the_runtime_follows_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provide(tmp_path, monkeypatch, "ch-run", "bwrap")
    assert choose_runtime("auto", str(tmp_path)).name == "charliecloud"
    assert choose_runtime("auto", "x.sqfs").name == "charliecloud"
    assert choose_runtime("bubblewrap", str(tmp_path)).name == "bubblewrap"
    assert choose_runtime("auto", "/").name == "bubblewrap"  # ch-run cannot mount the machine's root over itself
    provide(tmp_path, monkeypatch, "singularity")
    assert choose_runtime("auto", "x.sif").name == "apptainer"


def test_apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provide(tmp_path, monkeypatch, "apptainer")
    binds, ranks = [Path("/a"), Path("/b")], Inside(shares_tmp=True)
    argv = RUNTIMES["apptainer"].wrap(["run", "me"], "docker://x", binds, {}, Path("/a"), ranks)
    argv = [part for part in argv if part not in ("--nv", "--rocm")]
    assert argv[1:] == ["exec", "--bind", "/a:/a", "--bind", "/b:/b", "--pwd", "/a", "docker://x", "run", "me"]
    assert argv[0] == str(tmp_path / "apptainer")


def test_bubblewrap_binds_the_root_in_pieces(tmp_path: Path) -> None:
    image = tmp_path / "image"
    for folder in ("usr/bin", "tmp", "proc", "work/else"):
        (image / folder).mkdir(parents=True)
    (image / "bin").symlink_to("usr/bin")
    argv = RUNTIMES["bubblewrap"].wrap(["run"], str(image), [Path("/work/jobs/1")], {}, Path("/work/jobs/1"))
    pieces = list(zip(argv[1::3], argv[2::3], argv[3::3], strict=False))[:3]
    assert pieces == [
        ("--symlink", "usr/bin", "/bin"),
        ("--ro-bind", str(image / "usr"), "/usr"),
        ("--ro-bind", str(image / "work" / "else"), "/work/else"),
    ]
    assert argv[-5:] == ["--die-with-parent", "--chdir", "/work/jobs/1", "--", "run"]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_bubblewrap_runs(tmp_path: Path) -> None:
    import subprocess

    job = tmp_path / "job"
    job.mkdir()
    argv = RUNTIMES["bubblewrap"].wrap(["/bin/sh", "-c", "echo hi > x; exit 3"], "/", [job], {}, job)
    assert subprocess.run(argv, check=False).returncode == 3
    assert (job / "x").read_text() == "hi\n"


def test_bubblewrap_has_the_machine_s_names_where_the_image_has_a_place_for_them(tmp_path: Path) -> None:
    """Without them a rank does not find its own host's address: gloo refuses to start."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "hosts").touch()
    (tmp_path / "etc" / "resolv.conf").symlink_to("/run/resolv.conf")
    argv = RUNTIMES["bubblewrap"].wrap(["x"], str(tmp_path), [Path("/w")], {}, Path("/w"))
    said = " ".join(argv)
    assert "--ro-bind /etc/hosts /etc/hosts" in said
    assert "/etc/resolv.conf" not in said
