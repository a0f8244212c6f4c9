"""Checkpoints from which later trials of the same point go on."""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from collections import namedtuple
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import event

from hpo_pilot.server import chains, database
from hpo_pilot.server.chains import make_room, place_of, stored
from hpo_pilot.server.tasks import Housekeeping
from tests.server.conftest import Api
from tests.server.test_retention import _DAY, House, house
from tests.task_parameters import bare_params

__all__ = ["house"]

NAMES = iter(range(1000))


def params(*trials: int, user: str = "me", uid: str = "1a2b3c4d", chain: int | None = None) -> dict[str, Any]:
    """A task with a job for fold 0 of each trial; all but the chain's first go on from it."""
    levels = {trial: {"level": trial} | ({} if chain in (None, trial) else {"chain": chain}) for trial in trials}
    table = {"search": "s", "uid": uid, "generation": 1, "jobs": [[trial, 0, 9] for trial in trials], "levels": levels}
    table["points"] = {trial: {} for trial in trials}
    task = base64.urlsafe_b64encode(zlib.compress(json.dumps(table).encode())).decode()
    arguments = quote(f"python3 -I -S hpo_pilot_runner.py --task {task} --number ")
    return bare_params(f"user.{user}.c{next(NAMES)}/", len(trials), arguments) | {"site": "CHAIN"}


def test_a_later_task_of_the_search_finds_it(server: Any, user: Api) -> None:
    pilot = server.api("pilot")

    def begin(owner: Api, *trials: int, **more: Any) -> int:
        task = owner.submit(params(*trials, **more))
        assert len(pilot.acquire(len(trials), site_name="CHAIN")) == len(trials)
        return task

    def store(task: int, sub_id: str, content: bytes = b"") -> bool:
        return bool(pilot.upload(f"{task}_{sub_id}", content, "upload_hpo_checkpoint")["success"])

    def read(task: int, sub_id: str, by: Api = pilot) -> bytes | int:
        answer = by.session.get(f"{by.url}/cache/hpo_cp_{task}_{sub_id}", timeout=600)
        return answer.content if answer.ok else answer.status_code

    low, high = begin(user, 4, 5), begin(user, 8, chain=4)
    assert store(low, "1.t4f0", b"level 1") and store(low, "2.t5f0", b"another point")
    assert (read(low, "1.t4f0"), read(high, "1.t8f0")) == (b"level 1", b"level 1")
    for task, sub_id in ((high, "1.t4f0"), (high, "2.t8f0"), (987654, "1.t8f0"), (10**19, "1.t8f0")):
        assert read(task, sub_id) == 404
    # A user with a search of the same identity, and the files' own names.
    you = server.api("you")
    theirs = begin(you, 8, chain=4, user="you")
    assert read(theirs, "1.t8f0") == 404
    assert read(high, "1.t8f0", you) == 403
    files = [path.name for path in (server.folder / "files" / "cache").glob("hpo_cp_of_*")]
    assert {read(0, name.removeprefix("hpo_cp_0_")) for name in files} == {404}
    # The next level replaces it, and a late job of the lower one changes nothing.
    assert store(high, "1.t8f0", b"level 2")
    assert not store(low, "1.t4f0", b"late")
    assert (read(high, "1.t8f0"), read(low, "1.t4f0"), read(low, "2.t5f0")) == (b"level 2", 404, b"another point")
    # Its pilot deletes it, also when the job has ended; another job's pilot does not.
    delete = {"task_id": str(high), "sub_id": "1.t8f0"}
    assert not you.post("file_server/delete_hpo_checkpoint", **delete)["success"]
    assert pilot.post("file_server/delete_hpo_checkpoint", **delete)["success"]
    assert read(high, "1.t8f0") == 404
    # The search is done.
    for by, keep, left in ((you, [], b"another point"), (user, [50, 5], b"another point"), (user, [50], 404)):
        assert by.post("hpo_pilot/forget", uid="1a2b3c4d", keep=keep)["success"]
        assert read(low, "2.t5f0") == left


def put(house: House, task: int, number: int, trial: int) -> str:
    """Stores the checkpoint of a trial's fold 0: a byte."""
    with house.queue.database.writing() as tx:
        place = place_of(tx, task, f"{number}.t{trial}f0")
        assert place is not None
    house.write(house.cache, place.name)
    with house.queue.database.writing() as tx:
        chains_owner = database.cache_files.update().where(database.cache_files.c.name == place.name)
        tx.connection.execute(chains_owner.values(user_name="me", created=tx.now, size=1))
    house.queue.clock.now += 1
    return place.name


def test_the_longest_stored_go_first(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the free space is for checkpoints: here two of one byte each."""
    task = house.queue.submit(4, **params(1, 2, 3, 4))
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(5 - len(list(house.cache))))
    names = []
    for number in (1, 2, 3):
        names.append(put(house, task, number, number))
        with house.queue.database.writing() as tx:
            place = place_of(tx, task, f"{number}.t{number}f0")
            assert place is not None and make_room(tx, house.cache, place)
            assert stored(tx, place) == [names[-1]]
    assert {path.name for path in house.cache} == set(names[1:])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(-9))  # another user's files
    names.append(put(house, task, 4, 4))
    with house.queue.database.writing() as tx:
        place = place_of(tx, task, "4.t4f0")
        assert place is not None and not make_room(tx, house.cache, place)
    assert {path.name for path in house.cache} == set(names[1:3]), "to remove them would not help"


def test_those_of_searches_that_are_over_go_first(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of other users; but not if the search goes on."""
    task = house.queue.submit(2, **params(1, 2))
    over = {uid: house.queue.submit(1, **params(9, uid=uid)) for uid in ("old", "again")}
    mine, old, again = put(house, task, 1, 1), *(put(house, number, 1, 9) for number in over.values())
    with house.queue.database.writing() as tx:
        theirs = database.cache_files.c.name.in_([old, again])
        tx.connection.execute(database.cache_files.update().where(theirs).values(user_name="you"))
        for uid in over:
            chains.forget(tx, house.cache, "me", uid, [9])
        place = place_of(tx, over["again"], "1.t9f0")
        assert place is not None and stored(tx, place, touch=True) == [again]
    usage = namedtuple("usage", "free")
    new = put(house, task, 2, 2)
    for free, gone in ((2, {old}), (1, {old, mine})):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(free))
        with house.queue.database.writing() as tx:
            place = place_of(tx, task, "2.t2f0")
            assert place is not None and make_room(tx, house.cache, place)
        assert {path.name for path in house.cache} == {mine, old, again, new} - gone


def test_one_that_is_refused_leaves_that_of_the_level_below(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = house.queue.submit(1, **params(1)), house.queue.submit(1, **params(2, chain=1))
    usage = namedtuple("usage", "free")
    below = put(house, low, 1, 1)
    for free in (-1, 0):
        new = put(house, high, 1, 2)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(free))
        with house.queue.database.writing() as tx:
            place = place_of(tx, high, "1.t2f0")
            assert place is not None and make_room(tx, house.cache, place) is (free == 0)
        assert [path.name for path in house.cache] == [below if free else new]


def test_what_is_stored_costs_little_while_there_is_room(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search is noted as used once a day, and the files of all users are not listed."""
    task = house.queue.submit(2, **params(1, 2))
    put(house, task, 1, 1)
    put(house, task, 2, 2)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9))
    changed: list[int] = []
    read: list[str] = []

    def note(*call: Any) -> None:
        cursor, statement = call[1:3]
        changed.append(cursor.rowcount) if statement.startswith("UPDATE") else read.append(statement)

    for days in (0.5, 1, 0.5):
        house.queue.clock.now += days * _DAY
        with house.queue.database.writing() as tx:
            place = place_of(tx, task, "2.t2f0")
            assert place is not None
            event.listen(tx.connection, "after_cursor_execute", note)
            assert make_room(tx, house.cache, place)
    assert changed == [0, 2, 0]
    assert not any("ORDER BY" in statement for statement in read)
    if not house.queue.database.is_postgresql:
        assert not any("LIKE" in statement for statement in read), "it uses no index"


def test_those_of_a_search_stay_while_one_of_it_is_used(house: House) -> None:
    task = house.queue.submit(3, **params(1, 2)), house.queue.submit(3, **params(1, uid="other"))
    names = [put(house, task[0], 1, 1), put(house, task[0], 2, 2), put(house, task[1], 1, 1)]
    house.queue.clock.now += 20 * _DAY
    with house.queue.database.writing() as tx:
        place = place_of(tx, task[0], "2.t2f0")
        assert place is not None and stored(tx, place, touch=True)
    house.queue.clock.now += chains.KEPT_SECONDS - 20 * _DAY
    house.sweep()
    assert {path.name for path in house.cache} == set(names[:2])
    house.queue.clock.now += 21 * _DAY
    house.sweep()
    assert list(house.cache) == []


def test_they_outlive_the_records_of_their_task(house: House) -> None:
    house.keeping = Housekeeping(house.queue.database, house.cache, house.storage, 7)
    name = put(house, house.queue.submit(1, **params(1)), 1, 1)
    house.write(house.cache, "sources.unused.tar.gz")
    for days, left in ((29, [name]), (2, [])):
        house.queue.clock.now += days * _DAY
        house.sweep()
        assert [path.name for path in house.cache] == left
