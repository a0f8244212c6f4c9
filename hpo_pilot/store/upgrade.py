"""Brings a store's tables to the version of this program, and refuses stores of a later one."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from hpo_pilot.errors import InputError
from hpo_pilot.store.engine import shown, writing

#: The newest migration (a test keeps it true); known here, it spares most starts the import of alembic.
HEAD = "0010"


def _version(connection: Connection) -> str | None:
    if "alembic_version" not in inspect(connection).get_table_names():
        return None
    version: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return version


def upgrade(engine: Engine) -> None:
    """Makes or migrates the tables, in one transaction.

    Raises:
        InputError: the store was written by a newer version of this program.
    """
    with engine.connect() as connection:
        version = _version(connection)
    if version == HEAD:
        return
    if version is not None and version > HEAD:
        raise InputError(
            f"the store {shown(engine.url)} has version {version}, this program only "
            f"knows up to {HEAD}: upgrade hpo-pilot, or name another store with --store or --workdir"
        )
    from alembic import command  # noqa: PLC0415 - alembic takes 0.3 s to import, and is seldom needed
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    # The write lock first: of two processes that find a new store, the second finds the tables made.
    with writing(engine) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
