"""Secrets that users keep here, for their own jobs: those of tasks with ``useSecrets`` get them with the job."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import insert, select, update

from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import secrets


def secrets_of(tx: Transaction, user_name: str) -> dict[str, str]:
    """A user's secrets by their names."""
    text = tx.connection.scalar(select(secrets.c.data).where(secrets.c.user_name == user_name))
    found: dict[str, str] = json.loads(text or "{}")
    return found


def keep_secrets(tx: Transaction, user_name: str, data: Mapping[str, str]) -> None:
    """Keeps these secrets of a user, and no others."""
    values = {"data": json.dumps(data), "updated": tx.now}
    if not tx.connection.execute(update(secrets).where(secrets.c.user_name == user_name).values(values)).rowcount:
        tx.connection.execute(insert(secrets).values(user_name=user_name, **values))
