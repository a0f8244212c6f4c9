from __future__ import annotations

import os
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.pilot.client import JobServer
from hpo_pilot.pilot.job import JobFailure, PilotErrorCode
from hpo_pilot.pilot.job_files import SandboxCache
from hpo_pilot.transformation.job import Arguments
from tests.pilot.conftest import TOKEN, FakePanda, archive_of, sandbox


@pytest.fixture
def cache(tmp_path, panda, make_settings):
    return SandboxCache(tmp_path / "cache", JobServer(make_settings(panda.url)), limit_mb=1, unpacked=2 << 20)


def job_of(panda: FakePanda, name: str) -> Arguments:
    return Arguments("true", archive=name, source_url=panda.url)


def copied(cache: SandboxCache, job: Arguments, folder: Path) -> dict[str, str]:
    folder.mkdir()
    cache.copy_to(job, folder)
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_fetched_once_copied_for_each(panda, cache, tmp_path):
    name, packed = sandbox("true", {"d/e/train.py": "print(1)"})
    panda.cache[name] = packed
    first = copied(cache, job_of(panda, name), tmp_path / "1")
    (tmp_path / "1" / "d" / "e" / "train.py").write_text("changed by the payload")
    assert copied(cache, job_of(panda, name), tmp_path / "2") == first
    assert first["d/e/train.py"] == "print(1)"
    assert [fetched for fetched, _ in panda.fetched] == [name]


def _damage(path: Path, size: int) -> None:
    """As a power cut leaves a file whose content was not yet on the disk."""
    os.truncate(path, size)


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_damaged_one_is_fetched_again_by_the_next_pilot(panda, cache, tmp_path, make_settings, part):
    name, panda.cache[name] = sandbox("true", {"d/train.py": "print(1)"})
    first = copied(cache, job_of(panda, name), tmp_path / "1")
    cached = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(cached) > len(first)
    for number, path in enumerate(cached):
        _damage(path, int(path.stat().st_size * part))
        panda.fetched.clear()
        after = SandboxCache(tmp_path / "cache", JobServer(make_settings(panda.url)), limit_mb=1)
        assert copied(after, job_of(panda, name), tmp_path / f"after{number}") == first, path
        assert len(panda.fetched) == 1
        assert copied(after, job_of(panda, name), tmp_path / f"later{number}") == first
        assert len(panda.fetched) == 1
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {name}


def test_a_job_knows_whether_its_copy_was_damaged(panda, cache, tmp_path):
    """Also if another job has found the damage first, and a third has fetched the sandbox again."""
    name, panda.cache[name] = sandbox("true", {"train.py": "print(1)"})
    before = time.monotonic()
    first = copied(cache, job_of(panda, name), tmp_path / "1")
    assert not cache.is_damaged(name, before) and not cache.is_damaged("", before)
    next((tmp_path / "cache").rglob("train.py")).unlink()
    assert cache.is_damaged(name, before)
    later = time.monotonic()
    assert copied(cache, job_of(panda, name), tmp_path / "2") == first
    assert cache.is_damaged(name, before) and not cache.is_damaged(name, later)


def test_the_least_recently_used_goes_first(panda, cache, tmp_path):
    names = []
    for number in range(3):
        name, panda.cache[name] = sandbox("true", {"big": str(number) * 350_000})
        names.append(name)
        copied(cache, job_of(panda, name), tmp_path / f"{number}")
        os.utime(tmp_path / "cache" / name, (number, number))
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert left == {names[1], names[2]}
    assert "big" in copied(cache, job_of(panda, names[0]), tmp_path / "again")


def test_a_wrong_checksum_is_not_used(panda, cache, tmp_path):
    name, _ = sandbox("true")
    panda.cache[name] = sandbox("false")[1]
    with pytest.raises(JobFailure, match="wrong checksum") as caught:
        copied(cache, job_of(panda, name), tmp_path / "1")
    assert caught.value.code is PilotErrorCode.STAGE_IN_FAILED
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("content", "why"),
    [(archive_of((tarfile.TarInfo("../x"), b"")), "refused"), (None, "404"), (b"x" * (3 << 20), "larger than 2 MB")],
    ids=["unsafe", "missing", "too large"],
)
def test_what_cannot_be_had_fails_the_job(panda, cache, tmp_path, content, why):
    panda.cache |= {} if content is None else {"s.tar.gz": content}
    with pytest.raises(JobFailure, match=why):
        copied(cache, job_of(panda, "s.tar.gz"), tmp_path / "1")
    assert not list((tmp_path / "cache").iterdir())


def test_the_token_goes_to_our_own_server_alone(panda, cache, tmp_path):
    other = FakePanda()
    name, packed = sandbox("true")
    other.cache[name] = panda.cache[name] = packed
    copied(cache, job_of(other, name), tmp_path / "1")
    assert other.fetched == [(name, None)]
    other.down()
    own_name, panda.cache[own_name] = sandbox("false")
    copied(cache, job_of(panda, own_name), tmp_path / "2")
    assert panda.fetched == [(own_name, f"Bearer {TOKEN}")]


def test_no_sandbox_is_needed(cache, panda, tmp_path):
    job: Any = job_of(panda, "")
    assert copied(cache, job, tmp_path / "1") == {}


def test_what_killed_pilots_were_fetching_is_removed_a_day_later(panda, cache, tmp_path):
    folder = tmp_path / "cache"
    left = [folder / ".a.tar.gz.7", folder / ".gone.b.7", folder / ".young.8"]
    for path in left[1:]:
        path.mkdir()
    left[0].write_bytes(b"half")
    for path in left[:2]:
        os.utime(path, (1e9, 1e9))
    name, packed = sandbox("true")
    panda.cache[name] = packed
    copied(cache, job_of(panda, name), tmp_path / "1")
    assert [path.exists() for path in left] == [False, False, True]
