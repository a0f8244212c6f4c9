"""The store: reads searches and trials, and changes their states. Values in, copies out."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

from sqlalchemy import Connection, Engine, Row, func, insert, select, update

from hpo_pilot.databases import make_tables, tables_are_current
from hpo_pilot.errors import InputError
from hpo_pilot.search import Generation, Search, Trial, TrialState
from hpo_pilot.search.earlier_results import EarlierResults
from hpo_pilot.store import tables as t
from hpo_pilot.store.database import (
    NameTakenError,
    database_errors,
    open_engine,
    reading,
    taken_names,
    url_without_password,
    writing,
)
from hpo_pilot.store.lease import lease_holder_in
from hpo_pilot.store.records import (
    EMBEDDED,
    Event,
    NewPointRequest,
    PointRequest,
    SearchRecord,
    SearchState,
    TaskStage,
    add_earlier,
    earlier_of,
    from_seconds,
    point_request,
    search_record,
    trial_record,
)

#: Makes the new definition of a search, the points that are asked for, and a text for the log, from the present
#: record, its trials (without folds) and the points that wait.
RequestCheck = Callable[[SearchRecord, list[Trial], list[PointRequest]], tuple[Search, Sequence[NewPointRequest], str]]


class SearchUpdates:
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
            steers = lease_holder_in(connection)
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

    def ask_for(self, search_id: int, asking: RequestCheck, who: str, *, key: str | None = None) -> int:
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

    def wishes(self, search_id: int) -> list[PointRequest]:
        """The points that users asked for and that are no trials yet, the next one first."""
        with reading(self.engine) as connection:
            return self._waiting(connection, search_id)

    @staticmethod
    def _waiting(connection: Connection, search_id: int) -> list[PointRequest]:
        query = select(t.wishes).where(t.wishes.c.search_id == search_id, t.wishes.c.trial.is_(None))
        return [point_request(row) for row in connection.execute(query.order_by(t.wishes.c.id))]

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


# The store: all that lasts of searches. Values in, copies out.
#
# Every method is one transaction: what it says has either happened or not, also after ``kill -9``. Methods may be
# called
# from any thread and any process; only the holder of the steering lease may call those of `SteeringStore`.


class Store(SearchUpdates):
    """The searches of one database."""

    def __init__(self, engine: Engine) -> None:
        """Wraps an engine whose tables are up to date; `Store.open` makes sure of that."""
        self.engine = engine

    @classmethod
    def open(cls, url: str) -> Self:
        """Opens the store at a SQLAlchemy URL; makes or migrates its tables.

        Raises:
            InputError: the URL is wrong, the place cannot be written, or the store is of a newer version or too old.
            TryAgainError: the database is locked or out of reach.
        """
        engine = open_engine(url)
        named = f"store {url_without_password(engine.url)}"
        with database_errors(engine):
            with engine.connect() as connection:
                current = tables_are_current(connection, "store", named)
            if not current:
                # The write lock first: of two processes that find a new store, the second finds the tables made.
                with writing(engine) as connection:
                    make_tables(connection, "store", t.metadata, named)
        return cls(engine)

    def close(self) -> None:
        """Closes its connections."""
        self.engine.dispose()

    # --- searches ---

    def create_search(
        self,
        search: Search,
        *,
        source: str,
        sandbox: str | None,
        owner: str,
        family: str | None = None,
        uid: str | None = None,
        earlier: Sequence[EarlierResults] = (),
    ) -> SearchRecord:
        """Registers a search.

        Args:
            search: the search.
            source: where its file was.
            sandbox: its packed payload.
            owner: who registers it.
            family: the search file whose segments it is one of.
            uid: its random identity, 8 hexadecimal digits; None: a fresh one.
            earlier: what it has from earlier searches.

        Raises:
            NameTakenError: there is one of that name.
        """
        taken = NameTakenError(f"the store already has a search {search.name!r}: give this one another name")
        with writing(self.engine) as connection, taken_names(taken):
            if connection.execute(select(t.searches.c.id).where(t.searches.c.name == search.name)).first():
                raise taken
            row_id = connection.execute(
                insert(t.searches).values(
                    name=search.name,
                    uid=uid or secrets.token_hex(4),
                    owner=owner,
                    family=family,
                    state=SearchState.SUBMITTED,
                    message="",
                    definition=search.to_dict(),
                    filed=search.to_dict(),
                    source=source,
                    sandbox=sandbox,
                    created=time.time(),
                )
            ).inserted_primary_key
            assert row_id is not None
            add_earlier(connection, row_id[0], earlier)
            self._event(connection, row_id[0], owner, "submitted")
            for one in earlier:
                self._event(connection, row_id[0], owner, str(one))
        return self.search(row_id[0])

    def search(self, identity: int | str) -> SearchRecord:
        """The search of that number or name.

        Raises:
            UnknownSearchError: there is none; the message lists those that are.
        """
        with reading(self.engine) as connection:
            wanted = t.searches.c.name == identity
            if isinstance(identity, int) or is_search_number(identity):
                wanted = t.searches.c.id == int(identity)
            row = connection.execute(select(t.searches).where(wanted)).one_or_none()
            if row is None:
                names = (
                    connection.execute(select(t.searches.c.name).order_by(t.searches.c.id.desc()).limit(10))
                    .scalars()
                    .all()
                )
                there = f"there are {', '.join(names)}" if names else "the store is empty"
                where = url_without_password(self.engine.url)
                raise UnknownSearchError(str(identity), there, where)
        return search_record(row)

    def find_search(self, name: str) -> SearchRecord | None:
        """The search of that name, or None."""
        with reading(self.engine) as connection:
            row = connection.execute(select(t.searches).where(t.searches.c.name == name)).one_or_none()
        return None if row is None else search_record(row)

    def earlier_results(self, search_id: int) -> list[EarlierResults]:
        """What a search has from earlier ones (`warm_start`), in the order of its file."""
        with reading(self.engine) as connection:
            return earlier_of(connection, search_id)

    def searches(self) -> list[SearchRecord]:
        """All searches, oldest first."""
        with reading(self.engine) as connection:
            return [search_record(row) for row in connection.execute(select(t.searches).order_by(t.searches.c.id))]

    def family(self, name: str) -> list[SearchRecord]:
        """The searches of the segments of one search file, by its search's name; empty where there are none."""
        wanted = select(t.searches).where(t.searches.c.family == name).order_by(t.searches.c.id)
        with reading(self.engine) as connection:
            return [search_record(row) for row in connection.execute(wanted)]

    def search_states(self) -> dict[int, tuple[SearchState, int]]:
        """State and version of every search that is not over, by number: what a service polls, so it stays cheap."""
        with reading(self.engine) as connection:
            over = [state.value for state in SearchState if state.is_over]
            columns = (t.searches.c.id, t.searches.c.state, t.searches.c.version)
            rows = connection.execute(select(*columns).where(t.searches.c.state.not_in(over)))
            return {row.id: (SearchState(row.state), row.version) for row in rows}

    # --- trials ---

    def trials(self, search_id: int, *, after: int = 0, limit: int | None = None, folds: bool = True) -> list[Trial]:
        """The trials with their folds, by number.

        Args:
            search_id: the search.
            after: only trials with larger numbers.
            limit: at most so many; None: all.
            folds: False leaves the folds out, which is quicker.
        """
        wanted = select(t.trials).where(t.trials.c.search_id == search_id).order_by(t.trials.c.number).limit(limit)
        of_jobs = select(t.jobs).where(t.jobs.c.search_id == search_id)
        if after:
            wanted = wanted.where(t.trials.c.number > after)
        with reading(self.engine) as connection:
            rows = connection.execute(wanted).all()
            if rows and (after or limit is not None):
                of_jobs = of_jobs.where(t.jobs.c.trial.between(rows[0].number, rows[-1].number))
            of_jobs = of_jobs.order_by(t.jobs.c.fold, t.jobs.c.task_id, t.jobs.c.attempt)
            jobs = connection.execute(of_jobs).all() if folds else []
        attempts: dict[int, dict[int, list[Row[Any]]]] = defaultdict(lambda: defaultdict(list))
        for job in jobs:
            attempts[job.trial][job.fold].append(job)
        return [trial_record(row, attempts.get(row.number, {})) for row in rows]

    def generations(self, search_id: int) -> list[Generation]:
        """All generations, by number."""
        with reading(self.engine) as connection:
            rows = connection.execute(
                select(t.generations).where(t.generations.c.search_id == search_id).order_by(t.generations.c.number)
            ).all()
            members: dict[int, list[int]] = defaultdict(list)
            numbers = select(t.trials.c.generation, t.trials.c.number).where(t.trials.c.search_id == search_id)
            for generation, number in connection.execute(numbers.order_by(t.trials.c.number)):
                members[generation].append(number)
        return [
            Generation(r.number, r.history, tuple(r.pending), tuple(members[r.number]), r.asked, r.budget) for r in rows
        ]

    def counts(self, search_id: int) -> dict[TrialState, int]:
        """How many trials are in each state."""
        with reading(self.engine) as connection:
            rows = connection.execute(
                select(t.trials.c.state, func.count())
                .where(t.trials.c.search_id == search_id)
                .group_by(t.trials.c.state)
            )
            return {TrialState(state): count for state, count in rows}

    def best_so_far(self, search_id: int, sign: int) -> tuple[int, float, float | None] | None:
        """Number, value and spread of the best finished trial, confirmation runs aside; cheap, for it is asked often.

        Args:
            sign: +1 where smaller is better, -1 where larger is.
        """
        best = (
            select(t.trials.c.number, t.trials.c.value, t.trials.c.std)
            .where(t.trials.c.search_id == search_id, t.trials.c.value.is_not(None), t.trials.c.confirms.is_(None))
            .where(t.trials.c.state == TrialState.FINISHED.value)
            .order_by(t.trials.c.value if sign > 0 else t.trials.c.value.desc(), t.trials.c.number)
            .limit(1)
        )
        with reading(self.engine) as connection:
            row = connection.execute(best).one_or_none()
        return None if row is None else (row.number, row.value, row.std)

    def job_seconds(self, search_id: int) -> float:
        """Seconds that all jobs of the search ran, retries included."""
        with reading(self.engine) as connection:
            total = connection.execute(
                select(func.sum(t.jobs.c.seconds)).where(t.jobs.c.search_id == search_id)
            ).scalar()
        return float(total or 0.0)

    def outputs(self, search_id: int, trial: int) -> dict[int, str]:
        """The logical file names of a trial's kept outputs, by fold."""
        with reading(self.engine) as connection:
            rows = connection.execute(
                select(t.jobs.c.fold, t.jobs.c.output).where(
                    t.jobs.c.search_id == search_id, t.jobs.c.trial == trial, t.jobs.c.output.is_not(None)
                )
            )
            return {row.fold: row.output for row in rows}

    def intermediate_values(
        self, search_id: int, trials: Collection[int]
    ) -> dict[int, dict[int, list[tuple[int, float]]]]:
        """What trials reported while they ran: (step, value) by trial and fold; infinity is no number."""
        table = t.intermediate_values
        values: dict[int, dict[int, list[tuple[int, float]]]] = {}
        with reading(self.engine) as connection:
            query = select(table.c.trial, table.c.fold, table.c.step, table.c.value).where(
                table.c.search_id == search_id, table.c.trial.in_(trials)
            )
            for trial, fold, step, value in connection.execute(query.order_by(*query.selected_columns[:3])):
                values.setdefault(trial, {}).setdefault(fold, []).append((step, value))
        return values

    # --- events ---

    def events(self, search_id: int) -> list[Event]:
        """Who did what when, oldest first."""
        with reading(self.engine) as connection:
            rows = connection.execute(select(t.events).where(t.events.c.search_id == search_id).order_by(t.events.c.id))
            return [Event(from_seconds(row.time), row.who, row.what) for row in rows]


class UnknownSearchError(InputError):
    """There is no search of that name or number.

    Attributes:
        identity: what was asked for.
        there: what is there, for people.
    """

    def __init__(self, identity: str, there: str, where: str) -> None:
        super().__init__(f"no search {identity!r} in {where}: {there}")
        self.identity = identity
        self.there = there


def is_search_number(text: str) -> bool:
    """Whether a user's word is the number of a search or trial, and not a name."""
    return text.isascii() and text.isdigit() and len(text) <= 9
