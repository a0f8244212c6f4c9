from __future__ import annotations

import gzip
import io
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.transformation import sandbox
from hpo_pilot.transformation.sandbox import UnsafeArchive, check_bounds, unpack
from tests.pilot.conftest import archive_of

LIMIT = 1 << 20


@pytest.fixture(params=[True, False], ids=["with Python's filter", "without"], autouse=True)
def python_s_filter(request, monkeypatch):
    """Pythons before 3.12 and the security releases of 2023 have none: our own checks must be enough."""
    if not request.param:
        monkeypatch.setattr(sandbox, "_FILTER", {})


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def put(folder: Path, packed: bytes) -> tuple[Path, Path]:
    archive, target = folder / "a.tar.gz", folder / "target"
    archive.write_bytes(packed)
    target.mkdir()
    return archive, target


def test_a_good_archive(tmp_path):
    packed = archive_of(
        (member("train.py", mode=0o755), b"print(1)"),
        (member("d", tarfile.DIRTYPE, mode=0o755), b""),
        (member("d/x"), b"x"),
        (member("d/link", tarfile.SYMTYPE, "../train.py"), b""),
        (member("tool", mode=0o6777), b"t"),
    )
    archive, target = put(tmp_path, packed)
    unpack(str(archive), str(target), LIMIT)
    assert (target / "d" / "link").read_text() == "print(1)"
    assert (target / "train.py").stat().st_mode & 0o100
    assert not (target / "tool").stat().st_mode & 0o6022


@pytest.mark.parametrize(
    "bad",
    [
        member("/etc/evil"),
        member("../evil"),
        member("d/../../evil"),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("link", tarfile.SYMTYPE, "../../etc/passwd"),
        member("hard", tarfile.LNKTYPE, "/etc/passwd"),
        member("hard", tarfile.LNKTYPE, "../evil"),
        member("device", tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("block", tarfile.BLKTYPE, devmajor=7, devminor=0),
        member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name}-{info.type.decode()}",
)
def test_what_leads_out_or_is_no_file_is_refused(tmp_path, bad):
    archive, target = put(tmp_path, archive_of((member("good"), b"g"), (bad, b"x")))
    with pytest.raises(UnsafeArchive, match="is refused"):
        unpack(str(archive), str(target), LIMIT)
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar.gz", "target"}
    assert {path.name for path in target.iterdir()} <= {"good"}


def test_writing_through_a_link_is_refused(tmp_path):
    archive, target = put(tmp_path, archive_of((member("d", tarfile.SYMTYPE, ".."), b""), (member("d/evil"), b"x")))
    with pytest.raises(UnsafeArchive):
        unpack(str(archive), str(target), LIMIT)
    assert not (tmp_path / "evil").exists()


def test_bombs_are_refused(tmp_path):
    archive, target = put(tmp_path, archive_of((member("zeros"), bytes(LIMIT + 1))))
    with pytest.raises(UnsafeArchive, match="1 MB"):
        unpack(str(archive), str(target), LIMIT)
    # Many small ones.
    archive.write_bytes(archive_of(*[(member(f"f{i}"), bytes(1000)) for i in range(1100)]))
    with pytest.raises(UnsafeArchive, match="1 MB"):
        unpack(str(archive), str(target), LIMIT)


def test_too_many_members_are_refused_before_any_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("hpo_pilot.transformation.sandbox._MEMBERS", 10)
    archive, target = put(tmp_path, archive_of(*[(member(f"f{i}"), b"") for i in range(11)]))
    with pytest.raises(UnsafeArchive, match="more than 10 members"):
        check_bounds(str(archive), LIMIT)
    with pytest.raises(UnsafeArchive, match="more than 10 members"):
        unpack(str(archive), str(target), LIMIT)
    archive.write_bytes(archive_of((member("x"), bytes(LIMIT + 1))))
    with pytest.raises(UnsafeArchive, match="1 MB"):
        check_bounds(str(archive), LIMIT)
    archive.write_bytes(archive_of(*[(member(f"f{i}"), b"") for i in range(10)]))
    check_bounds(str(archive), LIMIT)


def test_a_header_that_eats_memory_is_refused(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member("x", pax_headers={"comment": "c" * (3 << 20)}))
    archive, target = put(tmp_path, buffer.getvalue())
    with pytest.raises(UnsafeArchive, match="header"):
        unpack(str(archive), str(target), 100 << 20)


CUT = archive_of((member("x"), random.Random(1).randbytes(200_000)))[:100_000]


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip at all", gzip.compress(b"no tar at all" * 100, mtime=0), CUT],
    ids=["empty", "no gzip", "no tar", "cut"],
)
def test_what_is_no_archive_is_refused(tmp_path, content):
    archive, target = put(tmp_path, content)
    with pytest.raises(UnsafeArchive, match=r"a\.tar\.gz is refused"):
        unpack(str(archive), str(target), LIMIT)
