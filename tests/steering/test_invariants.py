"""`db check` finds each breach of an invariant, and repairs only what is safe."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from sqlalchemy import create_engine, insert, text

from hpo_pilot.errors import InputError
from hpo_pilot.server import database
from hpo_pilot.server.database import Database, engine_of
from hpo_pilot.steering.invariants import check_all
from hpo_pilot.steering.ledger import MAX_RESUBMISSIONS
from hpo_pilot.store import EMBEDDED
from hpo_pilot.store.invariants import TASKS_OF_FOLD, check, repair
from hpo_pilot.store.lease import held_lease
from tests.postgresql import BASE
from tests.steering.memory_panda import finish_all, go

#: Its tests break the invariants.
TRIALS_WITHOUT_JOBS = True

_COPY = "INSERT INTO {0} ({1}) SELECT {2} FROM {0} WHERE {3}"
_JOB = "search_id, task_id, trial, fold, attempt, state, value"
_TRIAL = "search_id, number, generation, point, state, seed, value"
_TASK = "search_id, generation, revision, name, state, jedi_task_id, jobs, created"

OF_A_FILE = pytest.mark.skipif(BASE is not None, reason="PostgreSQL looks after its own files and foreign keys")

#: What is changed in a search with four finished trials of two folds; the invariant, the trial, whether it is repaired.
BREACHES = [
    (_COPY.format("jobs", _JOB, _JOB.replace("attempt", "2"), "trial = 1 AND fold = 1"), "one-value", 1, False),
    ("UPDATE trials SET value = 7 WHERE number = 2", "one-value", 2, False),
    ("UPDATE jobs SET state = 'failed', value = NULL WHERE trial = 3 AND fold = 0", "one-value", 3, False),
    (_COPY.format("trials", _TRIAL, _TRIAL.replace("number", "5"), "number = 4"), "budget", None, False),
    ("UPDATE tasks SET jedi_task_id = NULL, state = 'submitted' WHERE id = 1", "known-tasks", None, False),
    ("UPDATE tasks SET state = 'submitted' WHERE id = 1;"
     + _COPY.format("tasks", _TASK, _TASK.replace("name", "'b'"), "id = 1"), "known-tasks", None, False),
    ("UPDATE tasks SET state = 'submitted' WHERE id = 1", "limbo", None, False),
    ("UPDATE trials SET state = 'running', value = NULL, told = NULL WHERE number = 4", "limbo", None, False),
    ("""UPDATE searches SET state = 'running';
        UPDATE jobs SET state = 'closed', value = NULL WHERE trial = 4 AND fold = 1;
        UPDATE trials SET state = 'running', value = NULL, told = NULL WHERE number = 4""", "limbo", 4, True),
    ("""UPDATE searches SET state = 'running';
        UPDATE trials SET state = 'running', value = NULL, told = NULL WHERE number = 4""", "limbo", 4, True),
    ("UPDATE progress SET finished = 9", "progress", None, True),
    ("DELETE FROM trials WHERE number = 2", "rows", None, False),
    ("UPDATE trials SET told = 9 WHERE told = 4", "rows", None, False),
    ("UPDATE trials SET generation = 99 WHERE number = 4", "rows", 4, False),
    ("INSERT INTO intermediate_values VALUES (1, 77, 0, 1, 0.5, NULL)", "rows", None, True),
    ("INSERT INTO notes VALUES (1, 77, 'n', '[]', 1.0)", "rows", None, True),
    pytest.param("UPDATE events SET search_id = 99 WHERE id = 1", "rows", None, False, marks=OF_A_FILE),
]  # fmt: skip


@pytest.fixture
def searched(steer, panda, store):
    """The steering of a finished search."""
    steering = steer({"folds": 2}, trials=4, parallel=2)
    finish_all(steering, panda)
    assert check(store) == []
    return steering


def change(engine, statements):
    """Changes a database; one in SQLite without a look at foreign keys."""
    plain = create_engine(engine.url)
    with plain.begin() as connection:
        for statement in statements.split(";"):
            connection.execute(text(statement))
    plain.dispose()


@pytest.mark.parametrize(("statements", "invariant", "trial", "is_repaired"), BREACHES)
def test_each_breach_is_found(searched, store, statements, invariant, trial, is_repaired):
    change(store.engine, statements)
    found = check(store)
    breaches = [one for one in found if (one.invariant, one.trial) == (invariant, trial)]
    assert breaches and [one for one in breaches if (one.repair is not None) != is_repaired] == []
    repair(store, found)
    left = {one.invariant for one in check(store)}
    assert (invariant in left) == (not is_repaired or invariant == "limbo")


def test_a_fold_in_limbo_is_submitted_again_once_the_search_is_loaded(steer, store, panda):
    go(steer({"folds": 2}, trials=1, parallel=1), 2)
    panda.finish(1, 1)
    change(store.engine, "UPDATE tasks SET state = 'ended'; UPDATE jobs SET state = 'closed' WHERE fold = 1")
    version = store.search(1).version
    repair(store, check(store))
    assert store.search(1).version == version + 1  # a service that works loads it again
    steering = steer()
    go(steering, 2)
    assert check(store) == []
    finish_all(steering, panda)
    assert store.trial(1, 1).good_folds == 2


@OF_A_FILE
def test_a_damaged_file_is_found(searched, store):
    change(store.engine, "CREATE TABLE waste AS SELECT * FROM jobs")
    store.engine.dispose()  # the last connection empties the journal
    path = Path(store.engine.url.database)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 4096)  # the header of the last page
        file.write(b"\xff" * 100)
    assert "file" in {one.invariant for one in check(store)}


#: What is changed in a server's database with a finished task of two jobs, and the invariant.
AT_SERVER = [
    ("UPDATE jobs SET status = 'activated' WHERE panda_id = 2", "limbo"),
    ("UPDATE tasks SET n_finished = 1", "one-attempt"),
    ("UPDATE jobs SET number = 1", "one-attempt"),
    (
        "UPDATE tasks SET status = 'running'; UPDATE jobs SET status = 'running', number = 1, heartbeat = 4e9",
        "one-attempt",
    ),
    ("UPDATE tasks SET status = 'running', name = replace(name, 'g1/', 'g9/')", "known-tasks"),
    ("DELETE FROM tasks", "known-tasks"),
]


@pytest.fixture
def server(steer, panda, store, panda_place):
    """A server's database with the task of a search whose steering has not looked since its two jobs finished."""
    go(steer({"folds": 2}, trials=1, parallel=1), 2)
    store.bind_server(1, EMBEDDED)
    opened = Database(panda_place)
    common = {
        "task_id": 1,
        "queue": "",
        "label": "user",
        "priority": 1,
        "created": 1,
        "modified": 1,
        "state_changed": 1,
    }
    task = {"name": panda.tasks[1].name, "user_name": "me", "vo": "v", "status": "done", "params": "{}", "change": 1}
    job = {"attempt_nr": 1, "max_attempt": 3, "status": "finished", "core_count": 1, "ram_mb": 1, "max_walltime": 1}
    with opened.writing() as tx:
        tx.connection.execute(insert(database.tasks).values(**common | task, n_jobs=2, n_finished=2))
        tx.connection.execute(insert(database.jobs), [common | job | {"number": number} for number in (1, 2)])
    opened.close()
    assert check_all(store, panda_place) == []
    return panda_place


@pytest.mark.parametrize(("statements", "invariant"), AT_SERVER)
def test_each_breach_at_the_server_is_found(server, store, statements, invariant):
    change(engine_of(server), statements)
    assert invariant in {one.invariant for one in check_all(store, server)}


def test_a_result_that_nobody_collects_is_found(server, store):
    change(store.engine, "UPDATE tasks SET state = 'ended'; UPDATE jobs SET state = 'closed'")
    assert {one.fold for one in check_all(store, server) if one.invariant == "collected-once"} == {0, 1}


@pytest.mark.parametrize(("place", "breaches"), [(EMBEDDED, 2), ("https://panda.example.org", 0), (None, 0)])
def test_a_pilot_is_silent_only_for_a_server_that_runs(server, store, place, breaches):
    change(engine_of(server), "UPDATE tasks SET status = 'running'; UPDATE jobs SET status = 'running', heartbeat = 1")
    with held_lease(store.engine, "serve", place) if place else nullcontext():
        found = [one.what for one in check_all(store, server)]
    assert len([what for what in found if "silent" in what]) == breaches


@pytest.mark.parametrize("url", ["postgresql+psycopg://host:port/x", "oracle://host/x"])
def test_a_wrong_url_of_the_servers_database_is_named(store, url):
    with pytest.raises(InputError, match="server's database"):
        check_all(store, url)


def test_the_tasks_of_a_lost_fold_are_the_ledgers():
    assert TASKS_OF_FOLD == MAX_RESUBMISSIONS + 1
