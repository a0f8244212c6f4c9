"""Reads searches and trials, and changes the states of searches."""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, Unpack

from sqlalchemy import ColumnElement, Connection, Engine, Row, Text, cast, func, insert, or_, select, update

from hpo_pilot.databases import among, database_bytes, make_tables, tables_are_current
from hpo_pilot.errors import InputError
from hpo_pilot.search.mistakes import closest, listing
from hpo_pilot.search.trials import ENDED_TRIALS, Generation, Trial, TrialState
from hpo_pilot.search.values import Point
from hpo_pilot.store import tables as t
from hpo_pilot.store.annotations import Annotation, AnnotationChange, annotation_record
from hpo_pilot.store.database import (
    IN_PARTS,
    ROWS_AT_ONCE,
    NameTakenError,
    database_errors,
    open_engine,
    read_rows,
    read_values,
    reading,
    taken_names,
    url_without_password,
    writing,
)
from hpo_pilot.store.lease import lease_holder_in
from hpo_pilot.store.progress import add_progress
from hpo_pilot.store.records import (
    EMBEDDED,
    ENDED_SEARCHES,
    Event,
    NewPointRequest,
    PointRequest,
    SearchRecord,
    SearchState,
    TaskStage,
    add_earlier,
    columns_without,
    earlier_of,
    from_seconds,
    one_or_more,
    point_request,
    search_record,
    trial_record,
    trial_records,
)
from hpo_pilot.store.trial_queries import json_parts

if TYPE_CHECKING:
    from hpo_pilot.search.earlier_results import EarlierResults
    from hpo_pilot.search.search import Search

#: Returns the new definition of a search, the requested points and a text for the log, from the search's record, its
#: trials and the waiting points.
RequestCheck = Callable[
    [SearchRecord, "KnownTrials", list[PointRequest]], "tuple[Search, Sequence[NewPointRequest], str]"
]


class OpenSearch(NamedTuple):
    """A search that is not over; for `holder` see `hpo_pilot.store.lease`, for the others `SearchRecord`."""

    state: SearchState
    version: int
    holder: str | None
    server: str | None
    sandbox: str | None


@dataclass(frozen=True)
class KnownTrials:
    """Reads trials of a search within a transaction, without folds, by number.

    Attributes:
        connection: the connection of the transaction.
        search_id: the search.
    """

    connection: Connection
    search_id: int

    def __len__(self) -> int:
        return int(self.connection.scalar(select(func.count()).where(t.trials.c.search_id == self.search_id)) or 0)

    def failed(self) -> list[Trial]:
        """Returns the failed trials."""
        return self._where(t.trials.c.state == TrialState.FAILED.value)

    def numbered(self, numbers: Collection[int]) -> list[Trial]:
        """Returns the trials with these numbers."""
        return self._where(among(t.trials.c.number, numbers))

    def at(self, points: Iterable[Point]) -> list[Trial]:
        """Returns the trials at these canonical points."""
        texts, found = list(dict.fromkeys(map(json.dumps, points))), []
        for first in range(0, len(texts), _POINTS):  # the stored text is compared: to parse all points takes seconds
            found += self._where(cast(t.trials.c.point, Text).in_(texts[first : first + _POINTS]))
        return sorted(found, key=lambda trial: trial.number)

    def _where(self, condition: ColumnElement[bool]) -> list[Trial]:
        query = t.trial_rows.where(t.trials.c.search_id == self.search_id, condition).order_by(t.trials.c.number)
        return [trial_record(row, {}) for row in self.connection.execute(query)]


#: Points in one query.
_POINTS = 500


class Store:
    """The searches of one database; see the package for its guarantees.

    Attributes:
        durable: whether commits survive a power cut, as users expect of what a command has told them.
    """

    durable: ClassVar = True

    def __init__(self, engine: Engine) -> None:
        """Wraps an engine with current tables, as `Store.open` provides."""
        self.engine = engine

    @classmethod
    def open(cls, url: str) -> Self:
        """Opens the store at a SQLAlchemy URL; makes or upgrades its tables.

        Raises:
            InputError: the URL is wrong, the store cannot be written, or its version is newer or too old.
            TryAgainError: the database is locked or out of reach.
        """
        engine = open_engine(url, durable=cls.durable)
        named = f"store {url_without_password(engine.url)}"
        with database_errors(engine):
            with engine.connect() as connection:
                current = tables_are_current(connection, "store", named)
            if not current:
                # Under the write lock: if two processes open a new store, the second one finds the tables.
                with writing(engine) as connection:
                    make_tables(connection, "store", t.metadata, named)
        return cls(engine)

    @property
    def size(self) -> int:
        """Size of the store in bytes, its journal included."""
        with reading(self.engine) as connection:
            return database_bytes(connection)

    def close(self) -> None:
        """Closes the connections."""
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
            source: the path of its file.
            sandbox: its packed payload.
            owner: the user who registers it.
            family: the name of the search file with segments, if it is one of these.
            uid: its random identity, 8 hexadecimal digits; None: a new one.
            earlier: its results of earlier searches.

        Raises:
            NameTakenError: another search has that name.
            InputError: another search has that identity.
        """
        taken = NameTakenError(f"the store already has a search {search.name!r}: give this one another name")
        with writing(self.engine) as connection, taken_names(taken):
            if connection.execute(select(t.searches.c.id).where(t.searches.c.name == search.name)).first():
                raise taken
            uid = uid or secrets.token_hex(4)
            if connection.execute(select(t.searches.c.id).where(t.searches.c.uid == uid)).first():
                anew = "submit this one anew, from a new form or with another Idempotency-Key"
                raise InputError(f"another search has the same random identity, {uid}: {anew}")
            row_id = connection.execute(
                insert(t.searches).values(
                    name=search.name,
                    uid=uid,
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
            add_progress(connection, row_id[0])
            add_earlier(connection, row_id[0], earlier)
            self._event(connection, row_id[0], owner, "submitted")
            for one in earlier:
                self._event(connection, row_id[0], owner, str(one))
        return self.search(row_id[0])

    def search(self, identity: int | str) -> SearchRecord:
        """Returns the search with that number or name.

        Raises:
            UnknownSearchError: there is none; the message lists the existing ones.
        """
        with reading(self.engine) as connection:
            wanted = t.searches.c.name == identity
            if isinstance(identity, int) or is_search_number(identity):
                wanted = t.searches.c.id == int(identity)
            row = connection.execute(select(t.searches).where(wanted)).one_or_none()
            if row is None:
                newest = select(t.searches.c.name).order_by(t.searches.c.id.desc()).limit(1000)
                names = connection.scalars(newest).all()
                there = f"there is {listing(names[:10])}" if names else "the store is empty"
                if (meant := closest(str(identity), names)) is not None:
                    there = f"did you mean {meant}?"
                where = url_without_password(self.engine.url)
                raise UnknownSearchError(str(identity), there, where)
        return search_record(row)

    def find_search(self, name: str) -> SearchRecord | None:
        """Returns the search of that name; None: there is none."""
        rows = read_rows(self.engine, select(t.searches).where(t.searches.c.name == name))
        return search_record(rows[0]) if rows else None

    def earlier_results(self, search_id: int) -> list[EarlierResults]:
        """Returns the results that a search takes from earlier ones (`warm_start`), in the order of its file."""
        with reading(self.engine) as connection:
            return earlier_of(connection, search_id)

    def searches(self) -> list[SearchRecord]:
        """Returns all searches, oldest first."""
        return [search_record(row) for row in read_rows(self.engine, select(t.searches).order_by(t.searches.c.id))]

    def family(self, name: str) -> list[SearchRecord]:
        """Returns the searches of all segments of the search file `name`; empty if it has no segments."""
        wanted = select(t.searches).where(t.searches.c.family == name).order_by(t.searches.c.id)
        return [search_record(row) for row in read_rows(self.engine, wanted)]

    def search_states(self) -> dict[int, OpenSearch]:
        """Returns the searches that are not over, by number, the oldest first; cheap, because a service polls it."""
        s = t.searches.c
        query = select(s.id, s.state, s.version, s.holder, s.server, s.sandbox).where(s.state.not_in(ENDED_SEARCHES))
        rows = read_rows(self.engine, query.order_by(s.id))
        return {number: OpenSearch(SearchState(state), *more) for number, state, *more in rows}

    # --- trials ---

    def trials(
        self,
        search_id: int,
        *,
        after: int = 0,
        limit: int | None = None,
        folds: bool = True,
        without: Collection[str] = (),
        where: ColumnElement[bool] | None = None,
    ) -> list[Trial]:
        """Returns the trials with their folds, by number.

        Args:
            search_id: the search.
            after: only trials with larger numbers.
            limit: most trials; None: all.
            folds: False: without folds, which is quicker.
            without: fields of `Attempt` that are not read: `log_tail`, `metrics`, `metadata`.
            where: a condition of `hpo_pilot.store.trial_expressions`; None: none.
        """
        wanted = t.trial_rows.where(t.trials.c.search_id == search_id).order_by(t.trials.c.number).limit(limit)
        of_jobs = select(*columns_without(without)).where(t.jobs.c.search_id == search_id)
        if after > 0:
            wanted = wanted.where(t.trials.c.number > after)
        if where is not None:
            wanted = wanted.where(where)
        options = IN_PARTS if limit is None else {}  # to read a page at once is quicker
        with reading(self.engine) as connection:
            rows: Iterable[Row[Any]] = connection.execute(wanted, execution_options=options)
            if not folds:
                return [trial_record(row, {}) for row in rows]
            if after or limit is not None or where is not None:
                rows = page = list(rows)
                if not page:
                    return []
                of_jobs = of_jobs.where(t.jobs.c.trial.between(page[0].number, page[-1].number))
                if where is not None:
                    of_jobs = of_jobs.where(among(t.jobs.c.trial, [row.number for row in page]))
            of_jobs = of_jobs.order_by(t.jobs.c.fold, t.jobs.c.task_id, t.jobs.c.attempt)
            return trial_records(rows, connection.execute(of_jobs, execution_options=options))

    def results(
        self,
        search_id: int,
        places: Sequence[int],
        *,
        points: bool = True,
        folds: bool = False,
        figures: Collection[str] = (),
    ) -> Iterator[list[Trial]]:
        """Yields results of a search in their order, at most a thousand at a time.

        Promotions are left out, and folds too, but not the numbers of good ones.

        Args:
            search_id: the search.
            places: the places of the results in their order, ascending, from 1.
            points: False: without points and numbers of good folds, which is quicker.
            folds: with folds, as `trials` without `log_tail`, `metrics` and `metadata`.
            figures: metrics that are read with the folds.
        """
        told, jobs = t.trials.c.told, t.jobs.c
        some = json_parts(self.engine, jobs.metrics, figures) if figures else None
        of_jobs = select(*columns_without(("log_tail", "metrics", "metadata"), some)).where(jobs.search_id == search_id)
        of_jobs = of_jobs.order_by(jobs.fold, jobs.task_id, jobs.attempt)
        query = t.counted_rows if points else t.pointless_rows
        query = query.where(t.trials.c.search_id == search_id).order_by(told)
        for first in range(0, len(places), ROWS_AT_ONCE):
            with reading(self.engine) as connection:
                page = connection.execute(query.where(among(told, places[first : first + ROWS_AT_ONCE]))).all()
                of_page = of_jobs.where(among(jobs.trial, [row.number for row in page]))
                found = trial_records(page, connection.execute(of_page) if folds else ())
            yield found

    def brief_results(self, search_id: int, last: int) -> Iterator[tuple[Point, tuple[float, ...]]]:
        """Yields the results of a search up to the last one in their order, as points and figures of merit.

        Trials that were stopped early have no figures.
        """
        c = t.trials.c
        stopped = (c.state == TrialState.STOPPED.value) & c.stop_look.is_not(None)
        query = select(c.point, c.figures, c.value, stopped).where(c.search_id == search_id).order_by(c.told)
        for first in range(1, last + 1, ROWS_AT_ONCE):
            some = c.told.between(first, min(last, first + ROWS_AT_ONCE - 1))
            for point, figures, value, is_stopped in read_rows(self.engine, query.where(some)):
                yield point, () if is_stopped else one_or_more(value, figures)

    def trials_without_result(self, search_id: int, *, folds: bool = False) -> list[Trial]:
        """Returns the trials without a place in the order of results, and confirmation runs; `folds`: with folds."""
        wanted = or_(t.trials.c.told.is_(None), t.trials.c.confirms.is_not(None))
        return self.trials(search_id, folds=folds, without=("log_tail", "metrics", "metadata"), where=wanted)

    def trials_at(self, search_id: int, points: Collection[Point]) -> list[Trial]:
        """Returns the trials at these canonical points, without folds."""
        with reading(self.engine) as connection:
            return KnownTrials(connection, search_id).at(points)

    def trial(self, search_id: int, number: int) -> Trial | None:
        """Returns one trial with its folds; None: there is none with that number."""
        found = self.trials(search_id, after=number - 1, limit=1)
        return found[0] if found and found[0].number == number else None

    def stored_trials(
        self,
        search_id: int,
        *,
        after: int = 0,
        limit: int | None = None,
        without: Collection[str] = (),
        where: ColumnElement[bool] | None = None,
    ) -> StoredTrials:
        """Returns the trials for loops that need few of them in memory; arguments as for `trials`."""
        return StoredTrials(self, search_id, after, limit, without, where)

    def generations(self, search_id: int) -> list[Generation]:
        """Returns all generations, by number."""
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

    def trials_with_outputs(self, search_id: int) -> set[int]:
        """Returns the trials with outputs at the server."""
        query = select(t.jobs.c.trial).where(t.jobs.c.search_id == search_id, t.jobs.c.output.is_not(None))
        return set(read_values(self.engine, query.distinct()))

    def outputs(self, search_id: int, trial: int) -> dict[int, str]:
        """Returns the logical file names of a trial's kept outputs, by fold."""
        j = t.jobs.c
        query = select(j.fold, j.output).where(j.search_id == search_id, j.trial == trial, j.output.is_not(None))
        return {row.fold: row.output for row in read_rows(self.engine, query)}

    def intermediate_values(
        self, search_id: int, trials: Collection[int]
    ) -> dict[int, dict[int, list[tuple[int, float]]]]:
        """Returns the intermediate values of trials: (step, value) by trial and fold; infinity: not a number."""
        table = t.intermediate_values
        values: dict[int, dict[int, list[tuple[int, float]]]] = {}
        query = select(table.c.trial, table.c.fold, table.c.step, table.c.value).where(
            table.c.search_id == search_id, among(table.c.trial, trials)
        )
        for trial, fold, step, value in read_rows(self.engine, query.order_by(*query.selected_columns[:3])):
            values.setdefault(trial, {}).setdefault(fold, []).append((step, value))
        return values

    # --- events ---

    def events(self, search_id: int) -> list[Event]:
        """Returns the log of the search, oldest entry first."""
        query = select(t.events).where(t.events.c.search_id == search_id).order_by(t.events.c.id)
        return [_event(row) for row in read_rows(self.engine, query)]

    def newest_events(self, search_id: int, most: int) -> tuple[list[Event], int]:
        """Returns the newest entries of the log of the search, newest first, at most `most`, and how many there are."""
        e = t.events.c
        newest = select(t.events).where(e.search_id == search_id).order_by(e.time.desc(), e.id.desc()).limit(most)
        with reading(self.engine) as connection:
            total = connection.scalars(select(func.count()).select_from(t.events).where(e.search_id == search_id)).one()
            rows = connection.execute(newest).all()
        return [_event(row) for row in rows], total

    # --- notes and tags ---

    def annotate(self, search_id: int, trial: int, who: str, **written: Unpack[AnnotationChange]) -> None:
        """Writes a note and tags, and logs the change.

        Args:
            search_id: the search.
            trial: number of the trial; 0: the search itself.
            who: the user, for the log.
            written: the new values.

        Raises:
            InputError: a value is too long, or has characters that cannot be shown.
        """
        a = t.notes.c
        this = (a.search_id == search_id) & (a.trial == trial)
        with writing(self.engine) as connection:
            self._locked(connection, search_id)
            row = connection.execute(select(t.notes).where(this)).one_or_none()
            before = Annotation() if row is None else annotation_record(row)
            after = before.changed(**written)
            if after == before:
                return
            values = {**after.to_dict(), "changed": time.time()}
            if row is None:
                connection.execute(insert(t.notes).values(search_id=search_id, trial=trial, **values))
            else:
                connection.execute(update(t.notes).where(this).values(**values))
            said = f"trial {trial}: " if trial else ""
            self._event(connection, search_id, who, said + after.difference(before))

    # --- changes of searches ---

    @contextmanager
    def _writing(self, search_id: int) -> Iterator[Connection]:
        """Opens a writing transaction for a search; `SteeringStore` checks its lease."""
        with writing(self.engine) as connection:
            yield connection

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
            search_id: the search.
            state: the new state.
            who: the user or service, for the log.
            message: the reason, for the log and the search.
            only_from: if given, does nothing unless the state is one of these.
            version: if given, does nothing if the search has changed since this version.

        Returns:
            True if the state was changed.
        """
        now = time.time()
        values: dict[str, Any] = {"state": state, "message": message, "ended": now if state.is_over else None}
        with self._writing(search_id) as connection:
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
        """Stops a search that is not over, has no service that steers it, and has no open tasks or trials.

        Returns:
            True if it was stopped.
        """
        tasks = select(t.tasks.c.id).where(t.tasks.c.search_id == search_id, t.tasks.c.state != TaskStage.ENDED.value)
        trials = select(t.trials.c.id).where(t.trials.c.search_id == search_id, t.trials.c.state.not_in(ENDED_TRIALS))
        with writing(self.engine) as connection:
            row = self._locked(connection, search_id)
            steers = lease_holder_in(connection)
            if SearchState(row.state).is_over or (steers is not None and steers.steers(search_id, row.server)):
                return False
            if connection.execute(tasks.limit(1)).first() or connection.execute(trials.limit(1)).first():
                return False
            values = {"state": SearchState.STOPPED, "message": message, "ended": time.time()}
            stopped = update(t.searches).where(t.searches.c.id == search_id)
            connection.execute(stopped.values(**values, holder=None))  # a service that was halted may not go on
            self._event(connection, search_id, who, f"{SearchState.STOPPED.value}: {message}")
        return True

    @staticmethod
    def _note_start(connection: Connection, search_id: int, now: float) -> None:
        first = (t.searches.c.id == search_id) & t.searches.c.started.is_(None)
        connection.execute(update(t.searches).where(first).values(started=now, clock=now))

    def reopen(
        self, search_id: int, who: str, what: str, *, only_from: Sequence[SearchState], sandbox: str | None = None
    ) -> bool:
        """Lets a search go on, and logs it; its earlier failures no longer count as failures in a row.

        Args:
            search_id: the search.
            who: the user, for the log.
            what: the text for the log.
            only_from: does nothing unless the state is one of these.
            sandbox: a new payload archive; None: unchanged.

        Returns:
            True if it goes on.
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
            # The time while it was ended does not count.
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
        sandbox: str | None = None,
        goes_on: bool = True,
    ) -> SearchRecord:
        """Replaces a search's definition in one transaction; a search that was over goes on.

        Args:
            search_id: the search.
            change: returns the new definition and a text for the log, from the present record.
            who: the user, for the log.
            filed: the present definition in its file; None: unchanged.
            sandbox: a new payload archive; None: unchanged.
            goes_on: False: a search that was over stays so.

        Returns:
            The changed search.
        """
        with writing(self.engine) as connection:
            row = self._locked(connection, search_id)
            search, what = change(search_record(row))
            values = {
                "definition": search.to_dict(),
                "filed": filed.to_dict() if filed else row.filed,
                "sandbox": sandbox or row.sandbox,
            }
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
        """Reads and locks a search's row: other changes wait for the end of this transaction."""
        return connection.execute(select(t.searches).where(t.searches.c.id == search_id).with_for_update()).one()

    # --- points requested by users ---

    def request_points(self, search_id: int, asking: RequestCheck, who: str, *, key: str | None = None) -> int:
        """Adds points that become trials ahead of others, in one transaction; a search that was over goes on.

        Args:
            search_id: the search.
            asking: returns the points to add and the changed definition; raises an error to refuse.
            who: the user, for the log.
            key: key of this call; the same call again adds nothing.

        Returns:
            The number of points that this call has added, now or before.
        """
        with writing(self.engine) as connection:
            row = self._locked(connection, search_id)
            if key is not None:
                again = select(func.count()).where(t.wishes.c.search_id == search_id, t.wishes.c.key == key)
                if before := connection.execute(again).scalar_one():
                    return int(before)
            trials, waiting = KnownTrials(connection, search_id), self._waiting(connection, search_id)
            search, points, what = asking(search_record(row), trials, waiting)
            common = {"search_id": search_id, "who": who, "key": key, "created": time.time()}
            connection.execute(
                insert(t.wishes),
                [{**common, "point": requested.point, "retries": requested.retries} for requested in points],
            )
            self._redefine(connection, row, {"definition": search.to_dict()})
            self._event(connection, search_id, who, what)
        return len(points)

    def requested_points(self, search_id: int) -> list[PointRequest]:
        """Returns the requested points that are not trials yet, the next one first."""
        with reading(self.engine) as connection:
            return self._waiting(connection, search_id)

    @staticmethod
    def _waiting(connection: Connection, search_id: int) -> list[PointRequest]:
        c = t.trials.c
        stopped = select(c.number).where(c.search_id == search_id, t.ended_with_search(t.trials))  # they go out again
        is_due = or_(t.wishes.c.trial.is_(None), t.wishes.c.trial.in_(stopped))
        query = select(t.wishes).where(t.wishes.c.search_id == search_id, is_due)
        return [point_request(row) for row in connection.execute(query.order_by(t.wishes.c.id))]

    # --- servers ---

    def bind_server(self, search_id: int, server: str) -> str:
        """Binds a search to a PanDA server for ever, unless it is bound: all its tasks are at one server.

        Args:
            search_id: the search.
            server: the server's URL, or `EMBEDDED`.

        Returns:
            The server of the search.
        """
        with writing(self.engine) as connection:
            bound: str | None = connection.execute(
                select(t.searches.c.server).where(t.searches.c.id == search_id)
            ).scalar_one()
            if bound is not None:
                return bound
            tasks = select(t.tasks.c.id).where(t.tasks.c.search_id == search_id).limit(1)
            if connection.execute(tasks).first():
                server = EMBEDDED  # it comes from a version with embedded servers only
            connection.execute(update(t.searches).where(t.searches.c.id == search_id).values(server=server))
        return server

    @staticmethod
    def _event(connection: Any, search_id: int, who: str, what: str) -> None:
        connection.execute(insert(t.events).values(search_id=search_id, time=time.time(), who=who, what=what))


#: Trials that `StoredTrials` reads at once: with all log tails, these are some megabytes.
_PAGE = 200


@dataclass(frozen=True)
class StoredTrials:
    """Trials of a search, by number. Each loop reads them again, page by page; a trial may change between two pages."""

    store: Store
    search_id: int
    after: int
    limit: int | None
    without: Collection[str]
    where: ColumnElement[bool] | None = None

    def __iter__(self) -> Iterator[Trial]:
        after, left = self.after, self.limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            page = self.store.trials(self.search_id, after=after, limit=size, without=self.without, where=self.where)
            yield from page
            if len(page) < size:
                return
            after, left = page[-1].number, None if left is None else left - size


def _event(row: Row[Any]) -> Event:
    return Event(from_seconds(row.time), row.who, row.what)


class UnknownSearchError(InputError):
    """There is no search of that name or number.

    Attributes:
        identity: the name or number asked for.
        there: the existing searches, for messages.
    """

    def __init__(self, identity: str, there: str, where: str) -> None:
        super().__init__(f"no search {identity!r} in {where}: {there}")
        self.identity = identity
        self.there = there


def is_search_number(text: str) -> bool:
    """Returns True if a user's word is a number of a search or trial, and not a name."""
    return text.isascii() and text.isdigit() and len(text) <= 9
