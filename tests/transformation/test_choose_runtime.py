"""The runtime for an image; an image of another processor is refused before anything starts."""

from __future__ import annotations

import platform
import struct
from pathlib import Path

import pytest

from hpo_pilot.transformation import container
from hpo_pilot.transformation.container import (
    ContainerStart,
    check_architecture,
    choose_runtime,
    image_architecture,
    image_fault,
)
from hpo_pilot.transformation.job import ExitCode, ImageFault, TransformationFailure
from tests.programs import program


def elf(machine: int, order: str = "<") -> bytes:
    """An ELF header, 64 bits."""
    ident = b"\x7fELF" + bytes([2, 1 if order == "<" else 2, 1]) + bytes(9)
    return ident + struct.pack(order + "HHIQQQIHHHHHH", 2, machine, 1, 0x1000, 64, 0, 2, 64, 56, 0, 64, 0, 0)


def make_root(root: Path, header: bytes, name: str = "bin/sh") -> str:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header)
    path.chmod(0o755)
    return str(root)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A machine with x86_64 that emulates nothing and has charliecloud."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(container, "_EMULATORS", tmp_path / "emulators")
    provide(tmp_path / "programs", monkeypatch, "ch-run")


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (elf(62), "x86_64"),
        (elf(21), "ppc64le"),
        (elf(21, ">"), "ppc64"),
        (elf(183), "aarch64"),
        (elf(999), "ELF machine 999"),
        (b"#!/bin/bash\n" + bytes(64), None),
        (elf(62)[:10], None),
        (b"", None),
    ],
    ids=["x86_64", "ppc64le", "ppc64", "aarch64", "unknown", "script", "short", "empty"],
)
def test_what_a_program_s_header_says(tmp_path, header, found):
    assert image_architecture(make_root(tmp_path, header)) == found


def test_this_machine_s_own_root():
    assert image_architecture("/") == platform.machine()


def test_links_are_followed_inside_of_the_image(tmp_path):
    """Debian's /bin is a link, and its sh one to dash; an absolute one must not lead to this machine's own."""
    root, shell = tmp_path / "root", tmp_path / "root" / "usr" / "bin" / "sh"
    make_root(root, elf(21), "usr/bin/dash")
    (root / "bin").symlink_to("usr/bin")
    for target, found in (
        ("/usr/bin/dash", "ppc64le"),
        ("../../../../../../usr/bin/dash", "ppc64le"),  # no higher than the image's root
        ("sh", None),
    ):
        shell.unlink(missing_ok=True)
        shell.symlink_to(target)
        assert image_architecture(str(root)) == found, target


def test_an_image_without_a_shell(tmp_path):
    assert image_architecture(make_root(tmp_path, elf(183), "usr/local/bin/python3")) == "aarch64"
    assert image_architecture(str(tmp_path / "none")) is None
    assert image_architecture("docker://python:3.11-slim") is None


def test_sif_files(tmp_path):
    file = tmp_path / "x.sif"
    for code, found in ((b"02", "x86_64"), (b"06", "ppc64le"), (b"00", None)):
        file.write_bytes(b"#!/usr/bin/env run-singularity\n\0" + b"SIF_MAGIC\0" + b"01\0" + code + bytes(100))
        assert image_architecture(str(file)) == found
    file.write_bytes(b"something else")
    assert image_architecture(str(file)) is None


@pytest.mark.usefixtures("here")
def test_an_image_of_another_processor_is_refused_with_both_names(tmp_path):
    root = make_root(tmp_path / "root", elf(21))
    for name in ("auto", "charliecloud"):
        with pytest.raises(TransformationFailure, match="is of ppc64le, and this machine is x86_64") as caught:
            choose_runtime(name, root)
        assert caught.value.code is ExitCode.NO_CONTAINER_RUNTIME
    (tmp_path / "emulators").mkdir()
    (tmp_path / "emulators" / "qemu-ppc64le").touch()
    assert choose_runtime("auto", root).name == "charliecloud"


@pytest.mark.usefixtures("here")
def test_an_image_that_runs_here_is_accepted(tmp_path):
    check_architecture(make_root(tmp_path / "same", elf(62)))
    check_architecture(make_root(tmp_path / "older", elf(3)))
    check_architecture("docker://x")
    check_architecture(str(tmp_path))


def provide(folder: Path, monkeypatch: pytest.MonkeyPatch, *programs: str) -> None:
    for name in programs:
        program(folder / name)
    monkeypatch.setenv("PATH", str(folder))


def test_without_an_image_nothing_is_wrapped():
    runtime = choose_runtime("auto", "")
    assert runtime.wrap(ContainerStart(["a", "b"], "", [], {}, Path("/w"))) == ["a", "b"]


@pytest.mark.parametrize(
    ("programs", "name", "image", "chosen"),
    [
        ("", "auto", "x.sif", None),
        ("ch-run", "auto", "x.sif", None),  # Charliecloud wants an unpacked root or a .sqfs file
        ("ch-run", "none", "x.sif", None),
        ("ch-run", "docker", "x.sif", None),
        ("ch-run", "auto", "/", None),  # ch-run cannot mount the machine's root over itself
        ("ch-run", "auto", "{folder}", "charliecloud"),
        ("ch-run", "auto", "x.sqfs", "charliecloud"),
        ("singularity", "auto", "x.sif", "apptainer"),
        ("singularity podman", "auto", "docker://python:3.11", "apptainer"),
    ],
)
def test_the_runtime_follows_the_image(tmp_path, monkeypatch, programs, name, image, chosen):
    provide(tmp_path, monkeypatch, *programs.split())
    if chosen is not None:
        assert choose_runtime(name, image.format(folder=tmp_path)).name == chosen
        return
    tried = "apptainer, singularity, ch-run, shifter, podman-hpc, podman" if name == "auto" else name
    with pytest.raises(TransformationFailure, match=f"{image!r}.*{tried}") as caught:
        choose_runtime(name, image)
    assert caught.value.code is ExitCode.NO_CONTAINER_RUNTIME


def test_an_image_that_is_not_there(tmp_path, monkeypatch):
    provide(tmp_path, monkeypatch, "singularity")
    with pytest.raises(ImageFault, match=r"there is no image '/no/such/image\.sif' on ") as caught:
        choose_runtime("auto", "/no/such/image.sif")
    assert caught.value.code is ExitCode.NO_CONTAINER_RUNTIME


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (
            "Trying to pull docker.io/x...\nError: initializing source: reading manifest 1: manifest unknown\n",
            "Error: initializing source: reading manifest 1: manifest unknown",
        ),
        ("exec /usr/bin/python3: Exec format error", "exec /usr/bin/python3: Exec format error"),
        ("FATAL:   could not open image /x.sif: stat /x.sif: no such file or directory", "FATAL:   could not open"),
        ("Error: dial tcp: lookup docker.io: no such host", ""),
        ("", ""),
    ],
)
def test_what_a_runtime_says_of_an_image(said, fault):
    found = image_fault(said)
    assert found.startswith(fault) and bool(found) == bool(fault)
