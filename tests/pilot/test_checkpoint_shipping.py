"""When checkpoints are sent, fetched and deleted; `test_checkpoints_with_server` does it with a server and pilots."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from hpo_pilot.pilot.checkpoints import CheckpointShipping, remove_old
from hpo_pilot.pilot.client import CallRefused, JobServer, PilotTokenRefused, ServerAway
from hpo_pilot.pilot.job import JobFailure, PilotErrorCode
from hpo_pilot.pilot.settings import PilotWorkDir
from hpo_pilot.transformation.sandbox import UnsafeArchive
from tests.pilot.conftest import in_background
from tests.pilot.test_kept_checkpoint import job, put, read

LOST = JobFailure("the pilot was told to end", PilotErrorCode.SIGTERM)


class Cache(JobServer):
    """A server's cache in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.fail: Exception | None = None
        self.hold = threading.Event()
        self.hold.set()
        self.uploading = threading.Event()

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.fail is not None:
            raise self.fail

    def upload_checkpoint(self, task_id: int, sub_id: str, content: BinaryIO) -> None:
        self._called("upload")
        self.uploading.set()
        assert self.hold.wait(600)
        content.seek(0)
        self.files[f"{task_id}_{sub_id}"] = content.read()

    def download_checkpoint(self, task_id: int, sub_id: str, target: BinaryIO, limit: int) -> bool:
        self._called("download")
        found = self.files.get(f"{task_id}_{sub_id}")
        target.write(found or b"")
        return found is not None

    def delete_checkpoint(self, task_id: int, sub_id: str) -> None:
        self._called("delete")
        if self.files.pop(f"{task_id}_{sub_id}", None) is None:
            raise CallRefused("no such checkpoint")


@pytest.fixture
def cache():
    return Cache()


@pytest.fixture
def ship(tmp_path, cache, make_settings):
    """A pilot's shipping; each with a work folder of its own."""
    numbers = itertools.count(1)

    def start(**more: Any) -> CheckpointShipping:
        settings = make_settings(workdir=tmp_path / f"pilot{next(numbers)}", **more)
        settings.jobs_folder.mkdir(parents=True, exist_ok=True)
        return CheckpointShipping(settings, cache)

    yield start
    cache.hold.set()


def root(tmp_path: Path, number: int = 1) -> Path:
    return tmp_path / f"pilot{number}" / "checkpoints"


def attempt(number: int, panda_id: int = 7) -> Any:
    return job([[3, 1, 99]], attemptNr=number, PandaID=panda_id)[0]


def test_from_pilot_to_pilot(tmp_path, cache, ship):
    one, other = ship(), ship()
    one.begin(attempt(1))
    assert cache.calls == [], "a first attempt asks for nothing"
    put(root(tmp_path), ".kept/w", "epoch 5")
    one.keep(attempt(1), LOST)
    other.begin(attempt(2))
    assert read(root(tmp_path, 2)) == {"t3f1/.kept/w": "epoch 5"}
    other.keep(attempt(2), LOST)
    assert cache.calls == ["upload", "download"], "nothing new: nothing is sent"
    other.begin(attempt(3))
    other.finish(attempt(3))
    assert cache.calls[2:] == ["download", "delete"]
    assert cache.files == {}


def test_the_next_pilot_removes_what_a_killed_one_was_packing(tmp_path, cache, ship, make_settings, monkeypatch):
    workdir = PilotWorkDir(make_settings(workdir=tmp_path / "pilot1"))
    shipping, seen = ship(), []
    monkeypatch.setattr(cache, "upload_checkpoint", lambda *_: seen.extend(tmp_path.rglob("tmp*")))
    shipping.begin(attempt(1))
    put(root(tmp_path), "w", "x")
    shipping.keep(attempt(1), LOST)
    (packed,) = seen
    packed.write_bytes(b"half")
    workdir.stale = list(workdir.jobs.iterdir())
    workdir.remove_stale()
    assert not packed.exists()


def test_short_jobs_cost_no_call(tmp_path, cache, ship):
    shipping = ship()
    shipping.start()
    shipping.begin(attempt(1))
    put(root(tmp_path), "w", "x")
    shipping.finish(attempt(1))
    shipping.begin(attempt(1, 8))
    shipping.keep(attempt(1, 8), JobFailure("killed", PilotErrorCode.PANDA_KILL))
    shipping.keep(attempt(1, 9), LOST)
    shipping.leave((8, 1))
    assert cache.calls == []


def test_a_running_job_is_sent_now_and_then(tmp_path, cache, ship, until):
    shipping = ship(checkpoint_every=0.05)
    shipping.start()
    shipping.begin(attempt(1))
    put(root(tmp_path), "w", "1")
    until(lambda: "5_1" in cache.files)
    first = cache.files["5_1"]
    put(root(tmp_path), "w", "22")
    until(lambda: cache.files["5_1"] != first)
    sent = len(cache.calls)
    threading.Event().wait(0.3)
    assert len(cache.calls) == sent == 2
    shipping.leave((7, 1))
    put(root(tmp_path), "w", "333")
    threading.Event().wait(0.2)
    assert len(cache.calls) == 2


def test_what_is_on_its_way_when_the_result_comes_is_deleted(tmp_path, cache, ship, until):
    shipping = ship(checkpoint_every=0.02)
    shipping.start()
    cache.hold.clear()
    put(root(tmp_path), "w", "1")
    shipping.begin(attempt(1))
    assert cache.uploading.wait(600)
    shipping.finish(attempt(1))
    assert cache.calls == ["upload"]
    cache.hold.set()
    until(lambda: cache.calls == ["upload", "delete"])
    assert cache.files == {}


def test_one_that_is_too_large_is_said_once(tmp_path, cache, ship, caplog):
    shipping = ship(checkpoint_mb=1)
    shipping.begin(attempt(1))
    put(root(tmp_path), "w", os.urandom(1 << 20).hex())
    with caplog.at_level(logging.WARNING):
        shipping.keep(attempt(1), LOST)
    (record,) = caplog.records
    assert "has more than 1 MB packed" in record.message
    assert "--checkpoint-mb" in record.message
    assert str(root(tmp_path)) in record.message
    assert cache.calls == []


@pytest.mark.parametrize("more", [{"checkpoint_mb": 0}, {"checkpoints": Path("shared")}])
def test_nothing_is_sent_where_it_should_not(tmp_path, cache, ship, more):
    shipping = ship(**more)
    put(root(tmp_path), "w", "x")
    shipping.begin(attempt(2))
    shipping.keep(attempt(2), LOST)
    assert cache.calls == []


def test_a_server_that_refuses_costs_no_attempt(tmp_path, cache, ship, caplog):
    cache.fail = CallRefused("production role required")
    shipping = ship()
    shipping.begin(attempt(2))
    put(root(tmp_path), "w", "x")
    shipping.keep(attempt(2), LOST)
    shipping.begin(attempt(3))
    shipping.finish(attempt(3))
    assert cache.calls == ["download", "upload", "download", "delete"]
    assert "production role required" in caplog.text


@pytest.mark.parametrize("trouble", [ServerAway("down"), PilotTokenRefused("its token is under renewal")])
def test_a_server_that_is_away_is_waited_for(tmp_path, cache, ship, until, trouble):
    shipping = ship()
    shipping.begin(attempt(1))
    put(root(tmp_path), "w", "x")
    cache.fail = trouble
    ended = in_background(shipping.keep, attempt(1), LOST)
    until(lambda: len(cache.calls) >= 1)
    cache.fail = None
    ended.result(600)
    assert list(cache.files) == ["5_1"]


def test_attempts_whose_turn_does_not_come_end_with_the_pilot(tmp_path, cache, ship, until):
    shipping = ship()
    attempts = [attempt(1, number) for number in range(1, 7)]
    for each in attempts:
        shipping.begin(each)
    put(root(tmp_path), "w", "x")
    cache.hold.clear()
    ended = [in_background(shipping.keep, each, LOST) for each in attempts]
    until(lambda: len(cache.calls) == 4)
    shipping.end()
    until(lambda: sum(one.done() for one in ended) == 2)
    cache.hold.set()
    assert sorted(one.result(600) for one in ended) == [False] * 2 + [True] * 4
    assert cache.calls == ["upload"] * 4


class Refusing(CheckpointShipping):
    """As between the node's own disk and shared storage, where an archive is unpacked again."""

    def _upload(self, *_: Any) -> None:
        raise UnsafeArchive("the archive has more than 100000 files")


def test_an_archive_that_shared_storage_refuses_fails_no_job(tmp_path, cache, make_settings, caplog):
    settings = make_settings(workdir=tmp_path / "pilot1")
    settings.jobs_folder.mkdir(parents=True)
    shipping = Refusing(settings, cache)
    shipping.begin(attempt(1))
    put(root(tmp_path), "w", "x")
    assert not shipping.keep(attempt(1), LOST)
    assert "is not sent: the archive has" in caplog.text
    shipping.begin(trial(3))
    save(tmp_path, "t3f1", "level 1")
    ((_, why),) = shipping.finish(trial(3)).items()
    assert "more than 100000 files" in why


def test_a_broken_archive_is_no_reason_to_fail(tmp_path, cache, ship, caplog):
    cache.files["5_1"] = b"no archive"
    ship().begin(attempt(2))
    assert "does not get the checkpoint" in caplog.text
    assert read(root(tmp_path)) == {}


def trial(number: int, *, chain: int | None = None, keep: bool = True, fold: int = 1, **more: Any) -> Any:
    """A job of one trial with a level."""
    said = {"level": number, "keep_checkpoint": keep} | ({} if chain is None else {"chain": chain})
    more = {"hpoPilotStorage": True, **more}
    return job([[number, fold, 99]], PandaID=number, levels={number: said}, **more)[0]


def save(tmp_path: Path, name: str, text: str, pilot: int = 1, at: float = 1e9) -> None:
    path = root(tmp_path, pilot) / "1a2b3c4d" / name / ".kept" / "w"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))


def test_a_level_is_stored_before_the_report_and_found_by_the_next(tmp_path, cache, ship):
    one, other = ship(), ship()
    one.begin(trial(3))
    assert cache.calls == []
    save(tmp_path, "t3f1", "level 1")
    assert one.finish(trial(3)) == {}
    assert list(cache.files) == ["5_1.t3f1"]
    assert read(root(tmp_path)) == {"t3f1/.kept/w": "level 1"}, "until it is reported"
    one.drop(trial(3))
    assert read(root(tmp_path)) == {}
    cache.files["5_1.t8f1"] = cache.files.pop("5_1.t3f1")  # as the server finds it for a later trial
    other.begin(trial(8, chain=3, keep=False))
    assert read(root(tmp_path, 2)) == {"t3f1.8/.kept/w": "level 1"}
    save(tmp_path, "t3f1.8", "level 2", 2, 2e9)
    other.begin(trial(8, chain=3, keep=False, attemptNr=2))
    assert read(root(tmp_path, 2)) == {"t3f1.8/.kept/w": "level 2"}, "a repeated attempt has its own later one"
    assert other.finish(trial(8, chain=3, keep=False, attemptNr=2)) == {}
    assert cache.files, "it is needed until the report"
    other.drop(trial(8, chain=3, keep=False, attemptNr=2))
    assert (read(root(tmp_path, 2)), cache.files) == ({}, {})


def test_other_servers_store_no_levels(tmp_path, cache, ship):
    here, first = ship(), trial(3, hpoPilotStorage=False)
    here.begin(first)
    save(tmp_path, "t3f1", "level 1")
    assert here.finish(first) == {}
    here.drop(first)
    here.begin(trial(8, chain=3, hpoPilotStorage=False))
    assert read(root(tmp_path))["t3f1.8/.kept/w"] == "level 1", "the same pilot finds it"
    assert cache.calls == []


def test_a_failed_level_leaves_the_one_below(tmp_path, cache, ship):
    shared = ship(checkpoints=root(tmp_path))
    save(tmp_path, "t3f1", "level 1")
    shared.begin(trial(8, chain=3))
    save(tmp_path, "t3f1.8", "diverged")
    assert shared.finish(trial(8, chain=3), {(8, 1)}) == {}
    shared.drop(trial(8, chain=3), {(8, 1)})
    assert read(root(tmp_path)) == {"t3f1/.kept/w": "level 1"}
    shared.begin(trial(9, chain=3))  # repeats it
    assert read(root(tmp_path))["t3f1.9/.kept/w"] == "level 1"
    assert cache.calls == []


def test_pilots_with_a_folder_in_common_send_nothing(tmp_path, cache, ship):
    one, other = ship(checkpoints=root(tmp_path)), ship(checkpoints=root(tmp_path))
    one.begin(trial(3))
    save(tmp_path, "t3f1", "level 1")
    for other_point in ("t3f10", "t3f0", "t33f1", "t3f1.9"):
        save(tmp_path, other_point, "another's", at=2e9)
    assert one.finish(trial(3)) == {}
    one.drop(trial(3))
    other.begin(trial(8, chain=3))
    assert read(root(tmp_path))["t3f1.8/.kept/w"] == "level 1"
    save(tmp_path, "t3f1", "late", at=3e9)  # a late job of the lower level
    other.begin(trial(8, chain=3, attemptNr=2))
    assert read(root(tmp_path))["t3f1.8/.kept/w"] == "level 1"
    assert other.finish(trial(8, chain=3)) == {}
    other.drop(trial(8, chain=3))
    others = {f"{name}/.kept/w": "another's" for name in ("t3f10", "t3f0", "t33f1", "t3f1.9")}
    assert read(root(tmp_path)) == others | {"t3f1.8/.kept/w": "level 1"}
    other.keep(trial(8, chain=3), LOST)
    assert cache.calls == []


@pytest.mark.parametrize(
    ("size", "fail", "said"),
    [(1 << 20, None, "more than 1 MB"), (1, CallRefused("no room"), "no room"), (1, ServerAway("down"), "down")],
)
def test_a_level_that_cannot_be_stored_is_a_remark(tmp_path, cache, ship, size, fail, said):
    cache.fail = fail
    shipping = ship(checkpoint_mb=1)
    shipping.end()  # else it waits for the server
    shipping.begin(trial(3))
    save(tmp_path, "t3f1", os.urandom(size).hex())
    (((number, fold), why),) = shipping.finish(trial(3)).items()
    assert (number, fold) == (3, 1)
    assert said in why
    shipping.drop(trial(3), unkept={(3, 1)})
    assert read(root(tmp_path)), "this pilot may run the next level"


@pytest.mark.parametrize(
    ("here", "goes_on_from"), [("t3f1.5", "level 2"), ("t3f1", "stored"), ("t3f1.9", "stored"), ("t3f0.5", "stored")]
)
def test_a_level_that_could_not_be_stored_wins_over_a_stored_lower_one(tmp_path, cache, ship, here, goes_on_from):
    one, other = ship(), ship()
    one.begin(trial(3))
    save(tmp_path, "t3f1", "stored")
    assert one.finish(trial(3)) == {}
    cache.files["5_1.t8f1"] = cache.files.pop("5_1.t3f1")  # as the server finds it for a later trial
    save(tmp_path, here, "level 2", 2)
    other.begin(trial(8, chain=3))
    assert read(root(tmp_path, 2))["t3f1.8/.kept/w"] == goes_on_from


def test_old_checkpoints_are_removed(tmp_path):
    names = ("old", "restored.7/old", "young", "foreign", "other.7/empty")
    old, again, young, foreign, empty = (tmp_path / name for name in names)
    empty.mkdir(parents=True)
    for folder in (old / "t1f0" / ".kept", old / "t1f0.5", again / "t1f0", young / "t1f0", foreign / "thesis"):
        folder.mkdir(parents=True)
    for folder in (*old.iterdir(), *again.iterdir(), old, again, empty, young / "t1f0", foreign / "thesis", foreign):
        os.utime(folder, (1e9, 1e9))
    remove_old(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"young", "foreign"}
    assert (young / "t1f0").exists() and (foreign / "thesis").exists()
