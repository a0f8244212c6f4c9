"""Small questions about a search that are asked often, each answered by the database without reading its trials."""

from __future__ import annotations

import sys

from sqlalchemy import Engine, func, select

from hpo_pilot.search import TrialState
from hpo_pilot.store import tables as t
from hpo_pilot.store.engine import reading


def confirmations_over(engine: Engine, search_id: int) -> int:
    """How many confirmation runs of a search are over: its budget does not count them."""
    over = [state.value for state in TrialState if state.is_over]
    query = (
        select(func.count())
        .select_from(t.trials)
        .where(t.trials.c.search_id == search_id, t.trials.c.confirms.is_not(None), t.trials.c.state.in_(over))
    )
    with reading(engine) as connection:
        return int(connection.execute(query).scalar_one())


def reported_a_number(engine: Engine, search_id: int) -> bool:
    """Whether any trial of a search reported a number while it ran."""
    values = t.intermediate_values.c
    query = select(values.trial).where(values.search_id == search_id, values.value <= sys.float_info.max).limit(1)
    with reading(engine) as connection:
        return connection.execute(query).first() is not None
