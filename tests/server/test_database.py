"""The database: full disks, two threads, lost connections, other processes."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.exc import DBAPIError

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import ASKED_QUEUE, JobState
from hpo_pilot.server import file_calls, tasks
from hpo_pilot.server.app import Server
from hpo_pilot.server.attempts import Report, record_report, record_reports
from hpo_pilot.server.database import Database, Transaction, jobs
from hpo_pilot.server.database import tasks as task_table
from hpo_pilot.server.dispatch import JobRequest, acquire
from hpo_pilot.server.helpers import Helpers
from hpo_pilot.server.state import ServerState
from hpo_pilot.server.tokens import Caller, Tokens
from tests.bearer import make_token_folder
from tests.server.conftest import bearer
from tests.server.test_points import encode, with_points
from tests.task_parameters import make_params


def test_a_full_disk_rolls_back_only_its_transaction(database: Database, me: Caller) -> None:
    if database.is_postgresql:
        pytest.skip("the size of a PostgreSQL database has no limit")
    with database.writing() as tx:
        tasks.submit(tx, me, make_params("user.me.before/", 1))
        pages = tx.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    database._writing.connection.driver_connection.execute(f"PRAGMA max_page_count={pages + 2}")  # type: ignore[union-attr]
    database._writing.rollback()
    with pytest.raises(DBAPIError, match="full"), database.writing() as tx:
        tasks.submit(tx, me, make_params("user.me.large/", 5000))
    with database.writing() as tx:
        assert len(acquire(tx, JobRequest(site="LOCAL", n_jobs=9))) == 1


def test_readers_see_whole_transactions(database: Database, me: Caller) -> None:
    async def scenario() -> None:
        def write(tx: Transaction) -> None:
            tasks.submit(tx, me, make_params(f"user.me.{tx.next_change()}/", 20))

        def read(tx: Transaction) -> int:
            first = tx.connection.scalar(select(func.count()).select_from(jobs))
            assert first == tx.connection.scalar(select(func.count()).select_from(jobs))
            return int(first or 0)

        counts = await asyncio.gather(*(database.write(write) if i % 2 else database.read(read) for i in range(60)))
        assert all(count is None or count % 20 == 0 for count in counts)

    asyncio.run(scenario())


def test_what_a_caller_was_told_is_on_the_disk(database: Database, tmp_path: Path) -> None:
    """Pilots send heartbeats and requests for jobs again: they do not wait for the disk."""
    if database.is_postgresql:
        pytest.skip("PostgreSQL's commits are on the disk, unless its operator decides otherwise")
    levels: list[Any] = []

    @event.listens_for(database._engine, "commit")
    def _note(connection: Any) -> None:
        if connection is database._writing:
            levels.append(connection.connection.driver_connection.execute("PRAGMA synchronous").fetchone()[0])

    state = ServerState(database, tmp_path / "files", Tokens(make_token_folder(tmp_path / "tokens")), 60.0, 0, None)
    transport = httpx.ASGITransport(Server(state, Helpers([], [])).application())

    async def scenario() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://panda") as client:

            async def call(who: str, path: str, **request: Any) -> tuple[Any, set[int]]:
                """Returns the answer and the levels of its commits: 1 is NORMAL, 2 is FULL."""
                levels.clear()
                headers = {"Authorization": f"Bearer {bearer(f'token-of-{who}')}"}
                answer = (await client.post(f"/api/v1/{path}", headers=headers, **request)).json()
                assert answer["success"], answer
                return answer["data"], set(levels)

            async def report(path: str, *states: str) -> set[int]:
                said = [{"job_id": panda_id, "job_status": state} for panda_id, state in zip(ids, states, strict=True)]
                arguments = said[0] if path == "pilot/update_job" else {"job_list": said}
                return (await call("pilot", path, json=arguments))[1]

            for queue, n_jobs in (("LOCAL", 2), (f"{ASKED_QUEUE}u", 1)):
                points = {"search": "s", "uid": "u", "generation": 1, "jobs": [[1, 0, 5], [2, 0, 6]][:n_jobs]}
                encoded = encode(points | {"points": {str(one[0]): {"x": 1} for one in points["jobs"]}})
                params = with_points(make_params(f"user.me.{n_jobs}/", n_jobs, site=queue, campaign="s.u"), encoded)
                assert (await call("me", "task/submit", json={"task_parameters": params}))[1] == {2}
            data, levels_of = await call("pilot", "pilot/acquire_jobs", json={"site_name": "LOCAL", "n_jobs": 2})
            ids = [job["PandaID"] for job in data["jobs"]]
            assert levels_of == {1}
            assert await report("pilot/update_jobs_bulk", "running", "running") == {1}
            assert await report("pilot/update_jobs_bulk", "running", "finished") == {2}
            del ids[1]
            assert await report("pilot/update_job", "running") == {1}
            assert await report("pilot/update_job", "finished") == {2}
            asked = {"search": "s", "uid": "u", "most": 1, "asks": [{"key": "k", "lease": 9, "node": "n"}]}
            assert (await call("me", "hpo_pilot/ask", json=asked))[1] == {1}
            told = {"task": "user.me.1/", "number": 1, "values": [0.5], "message": "", "metrics": {}, "node": "n"}
            assert (await call("me", "hpo_pilot/tell", json=told))[1] == {2}
            file = {"file": ("sources.1.tar.gz", gzip.compress(b"x"))}
            assert (await call("me", "file_server/upload_cache_file", files=file))[1] == {2}

    asyncio.run(scenario())


def test_a_file_that_is_not_registered_can_be_sent_again(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ServerState(database, tmp_path / "files", Tokens(make_token_folder(tmp_path / "tokens")), 60.0, 0, None)
    transport = httpx.ASGITransport(Server(state, Helpers([], [])).application())
    registered, fails = file_calls.register_file, [True]

    def register(*arguments: Any) -> None:
        registered(*arguments)
        if fails:
            raise DBAPIError("COMMIT", {}, Exception(fails.pop()))

    monkeypatch.setattr(file_calls, "register_file", register)

    async def send(client: httpx.AsyncClient) -> httpx.Response:
        headers = {"Authorization": f"Bearer {bearer('token-of-me')}"}
        file = {"file": ("sources.x.tar.gz", b"content")}
        return await client.post("/api/v1/file_server/upload_cache_file", headers=headers, files=file)

    async def scenario() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://panda") as client:
            assert (await send(client)).status_code == 503
            assert (await send(client)).json()["success"]

    asyncio.run(scenario())


def test_the_query_for_changes_uses_an_index(database: Database) -> None:
    """Its cost does not grow with the number of tasks."""
    if database.is_postgresql:
        pytest.skip("PostgreSQL's plans depend on the number of rows")
    with database.reading() as tx:
        for column in ("change", "outcome"):
            query = f"SELECT task_id, {column} FROM tasks WHERE user_name = 'me' AND {column} > 5 ORDER BY {column}"
            plan = str(tx.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}").all())
            assert f"user_name=? AND {column}>?" in plan, plan
            assert "TEMP B-TREE" not in plan


def test_a_lost_connection_keeps_its_lock_and_isolation(
    database: Database, place: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not database.is_postgresql:
        pytest.skip("a file needs no connection")
    for connection in (database._writing, database._reading):
        with pytest.raises(DBAPIError), connection.begin():
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        with connection.begin():
            assert connection.scalar(text("SHOW idle_in_transaction_session_timeout")) == "20s"
    with database.reading() as tx:
        assert tx.connection.scalar(text("SHOW transaction_isolation")) == "repeatable read"
    monkeypatch.setattr("hpo_pilot.server.database._LOCK_WAIT", 0.2)
    with pytest.raises(TryAgainError, match="another"):
        Database(place)
    Database(place, alone=False).close()


def test_other_processes_learn_of_new_jobs_once(database: Database, place: Path | str, me: Caller) -> None:
    if not database.is_postgresql:
        pytest.skip("a file has one process")
    other = Database(place, alone=False)

    def look() -> list[int]:
        with database.reading() as tx:
            return list(database._look(tx).activated.values())

    try:
        with other.writing() as tx:
            tasks.submit(tx, me, make_params("user.me.new/", 5))
        assert look() == [5] and look() == []
        with other.writing(rows=True) as tx:
            (job,) = acquire(tx, JobRequest(site="LOCAL"))
        assert look() == [0]
        with other.writing(rows=True) as tx:
            acquire(tx, JobRequest(site="LOCAL"))
            record_report(tx, JobState.FAILED, {"job_id": job["PandaID"]}, None)
        assert look() == [1], "the number is the same, but one is new"
        database._full_look = 0.0
        assert look() == [0]
    finally:
        other.close()


def test_reports_on_several_jobs_lock_their_tasks_first(database: Database, place: Path | str, me: Caller) -> None:
    if not database.is_postgresql:
        pytest.skip("a file has one process")
    with database.writing() as tx:
        for name in "abc":
            tasks.submit(tx, me, make_params(f"user.me.{name}/", 600))
    other = Database(place, alone=False)
    free = {table: select(table).with_for_update(skip_locked=True) for table in (jobs, task_table)}
    try:
        with database.writing(rows=True) as tx, other.writing(rows=True) as another:
            reports = [Report(JobState.RUNNING, {"job_id": panda_id}, None) for panda_id in range(1100, 0, -1)]
            assert set(record_reports(tx, reports)) == {"tobekilled"}
            assert [len(another.connection.execute(query).all()) for query in free.values()] == [700, 1]
    finally:
        other.close()
