"""Fetched outputs are what a job packed: nothing of them lands elsewhere, and broken ones are called so."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from hpo_pilot.errors import GiveUpError
from hpo_pilot.web.operations import unpack_outputs


def archive(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for member in members:
            packed.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


def test_outputs_go_into_a_folder_per_trial_and_fold(tmp_path: Path) -> None:
    packed = archive(tmp_path / "a.tar.gz", member("model.npz", size=3))
    (file,) = unpack_outputs({0: packed}, tmp_path / "out", 7, folds=1)
    assert file == tmp_path / "out" / "trial7" / "model.npz"
    assert file.read_bytes() == bytes(3)
    (file,) = unpack_outputs({1: packed}, tmp_path / "out", 7, folds=2)
    assert file == tmp_path / "out" / "trial7" / "fold1" / "model.npz"


@pytest.mark.parametrize(
    "members",
    [
        [member("../escaped")],
        [member("/escaped")],
        [member("l", tarfile.SYMTYPE, "/etc"), member("l/escaped")],
        [member("l", tarfile.LNKTYPE, "l")],
        [member("a", tarfile.DIRTYPE), member("a", tarfile.SYMTYPE, "a")],
        [member("p", tarfile.FIFOTYPE)],
    ],
    ids=["above", "absolute", "through a link", "its own link", "folder becomes link", "pipe"],
)
def test_what_a_malicious_job_packs_stays_in_its_folder(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    packed = archive(tmp_path / "a.tar.gz", *members)
    try:
        unpack_outputs({0: packed}, tmp_path / "out", 1, folds=1)
    except GiveUpError as error:
        assert "cannot be unpacked" in str(error)
    inside = tmp_path / "out" / "trial1"
    assert all(path.is_relative_to(inside) for path in tmp_path.rglob("escaped"))
    assert not Path("/escaped").exists() and not Path("/etc/escaped").exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "no archive", "empty"])
def test_a_damaged_archive_is_called_so(tmp_path: Path, damage: str) -> None:
    packed = archive(tmp_path / "a.tar.gz", member("model.npz", size=100_000))
    content = packed.read_bytes()
    damaged = {
        "cut": content[:-20],
        "flipped": content[:40] + bytes(b ^ 255 for b in content[40:60]) + content[60:],
        "no archive": b"<html>",
        "empty": b"",
    }
    packed.write_bytes(damaged[damage])
    with pytest.raises(GiveUpError, match=r"a\.tar\.gz cannot be unpacked"):
        unpack_outputs({0: packed}, tmp_path / "out", 1, folds=1)
