"""What moves searches on in the store: their states, their definitions, and the points that users ask for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Row, func, insert, select, update

from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.store import tables as t
from hpo_pilot.store.engine import reading, writing
from hpo_pilot.store.lease import holder_in
from hpo_pilot.store.records import EMBEDDED, NewWish, SearchRecord, SearchState, TaskStage, Wish
from hpo_pilot.store.rows import search_record, trial_record, wish_record

#: Makes the new definition of a search, the points that are asked for, and a text for the log, from the present
#: record, its trials (without folds) and the points that wait.
Asking = Callable[[SearchRecord, list[Trial], list[Wish]], tuple[Search, Sequence[NewWish], str]]


class SearchLife:
    """The part of the store that changes searches."""

    engine: Engine

    def set_state(
        self,
        search_id: int,
        state: SearchState,
        who: str,
        message: str = "",
        *,
        only_from: Sequence[SearchState] = (),
        version: int | None = None,
    ) -> bool:
        """Moves a search to another state and logs it.

        Args:
            only_from: if given, nothing happens where its state is none of these.
            version: if given, nothing happens where the search has changed since.

        Returns:
            Whether the state was changed.
        """
        now = time.time()
        values: dict[str, Any] = {"state": state, "message": message, "ended": now if state.is_over else None}
        with writing(self.engine) as connection:
            change = update(t.searches).where(t.searches.c.id == search_id)
            if only_from:
                change = change.where(t.searches.c.state.in_([s.value for s in only_from]))
            if version is not None:
                change = change.where(t.searches.c.version == version)
            if not connection.execute(change.values(**values)).rowcount:
                return False
            if state is SearchState.RUNNING:
                self._note_start(connection, search_id, now)
            self._event(connection, search_id, who, state.value + (f": {message}" if message else ""))
        return True

    def stop_idle(self, search_id: int, who: str, message: str) -> bool:
        """Ends a search that is not over, that nothing steers and that has neither open tasks nor open trials.

        Returns:
            Whether it was ended.
        """
        over = [state.value for state in TrialState if state.is_over]
        tasks = select(t.tasks.c.id).where(t.tasks.c.search_id == search_id, t.tasks.c.state != TaskStage.ENDED.value)
        trials = select(t.trials.c.id).where(t.trials.c.search_id == search_id, t.trials.c.state.not_in(over))
        with writing(self.engine) as connection:
            row = self._locked(connection, search_id)
            steers = holder_in(connection)
            if SearchState(row.state).is_over or (steers is not None and steers.steers(search_id, row.server)):
                return False
            if connection.execute(tasks.limit(1)).first() or connection.execute(trials.limit(1)).first():
                return False
            values = {"state": SearchState.STOPPED, "message": message, "ended": time.time()}
            connection.execute(update(t.searches).where(t.searches.c.id == search_id).values(**values))
            self._event(connection, search_id, who, f"{SearchState.STOPPED.value}: {message}")
        return True

    @staticmethod
    def _note_start(connection: Connection, search_id: int, now: float) -> None:
        first = (t.searches.c.id == search_id) & t.searches.c.started.is_(None)
        connection.execute(update(t.searches).where(first).values(started=now, clock=now))

    def reopen(
        self,
        search_id: int,
        who: str,
        what: str,
        *,
        only_from: Sequence[SearchState],
        sandbox: str | None = None,
    ) -> bool:
        """Lets a search go on, and logs it; its failures so far no longer count in a row.

        Args:
            only_from: nothing happens where its state is none of these.
            sandbox: a new payload archive; None: as it was.

        Returns:
            Whether it goes on.
        """
        with writing(self.engine) as connection:
            row = self._locked(connection, search_id)
            if SearchState(row.state) not in only_from:
                return False
            self._reopen(connection, row, {} if sandbox is None else {"sandbox": sandbox})
            self._event(connection, search_id, who, what)
        return True

    def _reopen(self, connection: Connection, row: Row[Any], more: dict[str, Any]) -> None:
        now = time.time()
        last = select(func.max(t.trials.c.told)).where(t.trials.c.search_id == row.id)
        values = {
            "state": SearchState.RUNNING,
            "message": "",
            "ended": None,
            "forgiven": connection.execute(last).scalar() or 0,
            "version": row.version + 1,
            # The time that it lay ended is not the search's.
            "clock": row.clock + now - row.ended if row.clock and row.ended else row.clock,
            **more,
        }
        connection.execute(update(t.searches).where(t.searches.c.id == row.id).values(**values))
        self._note_start(connection, row.id, now)

    def redefine(
        self,
        search_id: int,
        change: Callable[[SearchRecord], tuple[Search, str]],
        who: str,
        *,
        filed: Search | None = None,
        goes_on: bool = True,
    ) -> SearchRecord:
        """Replaces a search's definition, in one transaction with reading it; a search that was over goes on.

        Args:
            search_id: the search.
            change: makes the new definition, and says for the log what changed, from the present record.
            who: for the log.
            filed: what its file now says; None: as before.
            goes_on: False where a search that was over stays so.
        """
        with writing(self.engine) as connection:
            row = self._locked(connection, search_id)
            search, what = change(search_record(row))
            values = {"definition": search.to_dict(), "filed": filed.to_dict() if filed else row.filed}
            self._redefine(connection, row, values, goes_on=goes_on)
            self._event(connection, search_id, who, what)
            return search_record(self._locked(connection, search_id))

    def _redefine(self, connection: Connection, row: Row[Any], values: dict[str, Any], *, goes_on: bool = True) -> None:
        if SearchState(row.state).is_over and goes_on:
            self._reopen(connection, row, values)
            return
        values["version"] = row.version + 1
        connection.execute(update(t.searches).where(t.searches.c.id == row.id).values(**values))

    @staticmethod
    def _locked(connection: Connection, search_id: int) -> Row[Any]:
        """A search's row; whoever else wants to change it waits until this transaction is over."""
        return connection.execute(select(t.searches).where(t.searches.c.id == search_id).with_for_update()).one()

    # --- points that users ask for ---

    def ask_for(self, search_id: int, asking: Asking, who: str, *, key: str | None = None) -> int:
        """Adds points that become trials ahead of others, in one transaction with looking at the search.

        A search that was over goes on.

        Args:
            search_id: the search.
            asking: says what is added, and how the definition grows by it; raises where that cannot be.
            who: for the log.
            key: of this call; the same call again adds nothing.

        Returns:
            How many points the call has added, now or before.
        """
        with writing(self.engine) as connection:
            row = self._locked(connection, search_id)
            if key is not None:
                again = select(func.count()).where(t.wishes.c.search_id == search_id, t.wishes.c.key == key)
                if before := connection.execute(again).scalar_one():
                    return int(before)
            of_search = select(t.trials).where(t.trials.c.search_id == search_id).order_by(t.trials.c.number)
            trials = [trial_record(trial, {}) for trial in connection.execute(of_search)]
            search, wishes, what = asking(search_record(row), trials, self._waiting(connection, search_id))
            now = time.time()
            connection.execute(
                insert(t.wishes),
                [
                    {
                        "search_id": search_id,
                        "point": wish.point,
                        "retries": wish.retries,
                        "who": who,
                        "key": key,
                        "created": now,
                    }
                    for wish in wishes
                ],
            )
            self._redefine(connection, row, {"definition": search.to_dict()})
            self._event(connection, search_id, who, what)
        return len(wishes)

    def wishes(self, search_id: int) -> list[Wish]:
        """The points that users asked for and that are no trials yet, the next one first."""
        with reading(self.engine) as connection:
            return self._waiting(connection, search_id)

    @staticmethod
    def _waiting(connection: Connection, search_id: int) -> list[Wish]:
        query = select(t.wishes).where(t.wishes.c.search_id == search_id, t.wishes.c.trial.is_(None))
        return [wish_record(row) for row in connection.execute(query.order_by(t.wishes.c.id))]

    # --- where it is ---

    def bind_server(self, search_id: int, server: str) -> str:
        """Ties a search to a PanDA server, for good, unless it is tied to one already: its tasks are nowhere else.

        Args:
            search_id: the search.
            server: the server's URL, or `EMBEDDED`.

        Returns:
            The server that it is tied to.
        """
        with writing(self.engine) as connection:
            bound: str | None = connection.execute(
                select(t.searches.c.server).where(t.searches.c.id == search_id)
            ).scalar_one()
            if bound is not None:
                return bound
            tasks = select(t.tasks.c.id).where(t.tasks.c.search_id == search_id).limit(1)
            if connection.execute(tasks).first():
                server = EMBEDDED  # it began when there were no others
            connection.execute(update(t.searches).where(t.searches.c.id == search_id).values(server=server))
        return server

    @staticmethod
    def _event(connection: Any, search_id: int, who: str, what: str) -> None:
        connection.execute(insert(t.events).values(search_id=search_id, time=time.time(), who=who, what=what))
