"""The database: full disks, two threads."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from hpo_pilot.server import tasks
from hpo_pilot.server.database import Database, Transaction, jobs
from hpo_pilot.server.dispatch import JobRequest, acquire
from hpo_pilot.server.tokens import Caller
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
