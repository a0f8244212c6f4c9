"""Removal of old data."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from hpo_pilot.server import database, tasks
from hpo_pilot.server.file_store import Folder
from hpo_pilot.server.tasks import Housekeeping
from tests.server.queue_driver import Queue

_DAY = 86_400.0
_SANDBOX = {"jobParameters": [{"type": "constant", "value": "-a sources.used.tar.gz"}]}


class House:
    """A queue with its folders."""

    def __init__(self, queue: Queue, folder: Path, days: float = 30) -> None:
        self.queue = queue
        self.cache, self.storage = (Folder(folder / name) for name in ("cache", "storage"))
        self.keeping = Housekeeping(queue.database, self.cache, self.storage, days)

    def write(self, folder: Folder, name: str) -> None:
        path = folder.path / name
        path.write_text("x")
        os.utime(path, (self.queue.clock.now, self.queue.clock.now))
        if folder is self.cache:
            self.queue.upload(name)

    def run_task(self, n_jobs: int = 2, **more: Any) -> int:
        """A task whose jobs all finished, with their outputs."""
        task_id = self.queue.submit(n_jobs, **more)
        for job in self.queue.acquire(n_jobs):
            for name in job["outFiles"].split(","):
                if name:
                    self.write(self.storage, name)
            self.queue.report(job["PandaID"], "finished", meta_data="{}")
        assert self.queue.status(task_id) == "done"
        return task_id

    def wait(self, days: float = 31) -> int:
        """Lets days pass; returns a new task, without which the newest change would stay."""
        self.queue.clock.now += days * _DAY
        return self.queue.submit(1)

    def sweep(self) -> int:
        """Removes old data; returns the number of slices."""
        for slices in range(100):
            with self.queue.database.writing() as tx:
                if not self.keeping.remove_slice(tx):
                    return slices
        raise AssertionError("the sweep does not end")

    def count(self, table: Any) -> int:
        with self.queue.database.reading() as tx:
            return int(tx.connection.scalar(select(func.count()).select_from(table)) or 0)


@pytest.fixture
def house(queue: Queue, tmp_path: Path) -> House:
    return House(queue, tmp_path)


def test_old_tasks_are_removed_and_others_stay(house: House) -> None:
    house.run_task()
    house.queue.clock.now += 31 * _DAY
    young = house.run_task()
    active = house.queue.submit(2)
    assert house.sweep() > 0
    assert {path.name.split(".")[2] for path in house.storage} == {str(young), "t2"}
    assert len(list(house.storage)) == 4
    assert (house.count(database.tasks), house.count(database.jobs), house.count(database.job_documents)) == (2, 4, 2)
    assert house.queue.status(active) == "running"
    assert house.sweep() == 0


def test_slices_are_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SLICE", 3)
    house.run_task(10)
    house.wait()
    assert house.sweep() == 4 + 1
    assert house.count(database.jobs) == 1


def test_a_sandbox_stays_while_a_task_names_it(house: House) -> None:
    house.write(house.cache, "sources.used.tar.gz")
    house.write(house.cache, "sources.unused.tar.gz")
    task_id = house.queue.submit(1, **_SANDBOX)
    house.queue.clock.now += 31 * _DAY
    house.write(house.cache, "sources.new.tar.gz")
    house.sweep()
    assert sorted(path.name for path in house.cache) == ["sources.new.tar.gz", "sources.used.tar.gz"]
    house.queue.command(task_id, "kill")
    house.wait()
    house.sweep()
    assert list(house.cache) == []
    assert house.count(database.cache_files) == 0


def test_a_recently_retried_task_stays(house: House) -> None:
    task_id = house.queue.submit(1, maxAttempt=1)
    house.queue.report(house.queue.acquire()[0]["PandaID"], "failed")
    house.queue.clock.now += 31 * _DAY
    assert house.queue.command(task_id, "retry")[0] == 0
    house.queue.submit(1)
    house.sweep()
    assert house.queue.status(task_id) == "running"


def test_the_newest_change_stays(house: House) -> None:
    """Without it, a restarted server would use its cursors again."""
    house.run_task()
    house.queue.clock.now += 400 * _DAY
    house.sweep()
    assert house.count(database.tasks) == 1


def test_recently_written_outputs_stay(house: House) -> None:
    """Tasks of earlier versions may have outputs of the same name."""
    house.run_task(1)
    (name, *_) = sorted(path.name for path in house.storage)
    house.wait()
    house.write(house.storage, name)
    house.sweep()
    assert [path.name for path in house.storage] == [name]


def test_removal_runs_by_itself(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST", "_PAUSE", "_EVERY"):
        monkeypatch.setattr(tasks, name, 0.001)
    for _ in range(3):
        house.run_task()
    house.wait()

    async def scenario() -> None:
        running = asyncio.create_task(house.keeping.run())
        try:
            async with asyncio.timeout(20):
                while await asyncio.to_thread(house.count, database.tasks) > 1:
                    await asyncio.sleep(0.01)
        finally:
            running.cancel()

    asyncio.run(scenario())
    assert list(house.storage) == []


def test_nothing_is_removed_with_zero_days(queue: Queue, tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(House(queue, tmp_path, days=0).keeping.run(), 5))


def test_checkpoints_are_removed_a_day_after_their_task(house: House) -> None:
    running = house.queue.submit(1)
    house.queue.acquire(1)
    over = house.run_task(1)
    for name in (f"hpo_cp_{running}_1", f"hpo_cp_{over}_1", f"hpo_cp_{over}_2", "hpo_cp_987654_1", "sources.x.tar.gz"):
        house.write(house.cache, name)
    house.queue.clock.now += _DAY / 2
    house.sweep()
    assert {path.name for path in house.cache} == {
        f"hpo_cp_{running}_1",
        f"hpo_cp_{over}_1",
        f"hpo_cp_{over}_2",
        "sources.x.tar.gz",
    }, "nobody's goes at once"
    house.queue.clock.now += _DAY
    house.sweep()
    assert {path.name for path in house.cache} == {f"hpo_cp_{running}_1", "sources.x.tar.gz"}
    assert house.count(database.cache_files) == 2


def test_a_sandbox_that_is_damaged_in_the_cache_is_removed(tmp_path: Path) -> None:
    """Its owner then sends it again; only a digest in the name tells."""
    name = f"sources.{hashlib.sha256(b'whole').hexdigest()}.tar.gz"
    for content, is_whole in ((b"whole", True), (b"half", False)):
        for each in (name, "sources.0123.tar.gz"):
            (tmp_path / each).write_bytes(content)
        assert (Folder(tmp_path).find_whole(name) is not None) is is_whole is (tmp_path / name).exists()
        assert Folder(tmp_path).find_whole("sources.0123.tar.gz") is not None
