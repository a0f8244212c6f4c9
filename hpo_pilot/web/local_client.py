"""The client that works on a store in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.report.documents import (
    OVER_SEARCHES,
    EventDocument,
    ExaminationDocument,
    FindingDocument,
    IntermediateDocument,
    ProgressDocument,
    RunDocument,
    SearchDocument,
    StatusDocument,
    TrialDocument,
    all_intermediate,
    event_document,
    family_cost,
    family_document,
    family_progress,
    for_each,
    is_unsteered,
    latest_eta,
    of_one_segment,
)
from hpo_pilot.report.exports import exporter
from hpo_pilot.web.local_documents import (
    best_documents,
    document_of,
    progress_of,
    run_document,
    status_of,
    trial_documents,
)
from hpo_pilot.web.operations import OnProgress, OnServer, SearchClient, User, unpack_outputs

if TYPE_CHECKING:
    from hpo_pilot.steering.registration import PackedSearch
    from hpo_pilot.steering.search_file import Examination
    from hpo_pilot.steering.workdir import WorkDir
    from hpo_pilot.store import SearchRecord, Store


class NoStoreError(InputError):
    """There is no store yet."""


class LocalStore(SearchClient):
    """Holds the store, and finds searches and families in it."""

    def __init__(
        self,
        workdir: str | Path | None = None,
        store: str | None = None,
        *,
        user: User | None = None,
        opened: Store | None = None,
    ) -> None:
        """Prepares; the store is opened when it is needed.

        Args:
            workdir: the work folder; default ./hpo-pilot.
            store: another store's SQLAlchemy URL.
            user: for whom; default: this process's user, who may change everything.
            opened: the store, where the caller has it open and closes it.
        """
        self._root = workdir
        self._url = store
        self._user_given = user
        self._store: Store | None = opened
        self._owns_store = opened is None

    @override
    def close(self) -> None:
        if self._owns_store and self._store is not None:
            self._store.close()
            self._store = None

    def record(self, identity: str) -> SearchRecord:
        """A search as the store has it."""
        return self._search(identity)[1]

    @property
    def user(self) -> User:
        """For whom."""
        from hpo_pilot.steering.workdir import nickname

        return self._user_given or User(nickname(), changes_all=True)

    def _folder(self) -> WorkDir:
        from hpo_pilot.steering.workdir import WorkDir

        return WorkDir.at(self._root)

    def _made_folder(self) -> WorkDir:
        from hpo_pilot.steering.workdir import WorkDir

        return WorkDir.make(self._root)

    def _opened(self, *, make: bool = False) -> Store:
        """The store.

        Raises:
            InputError: there is none yet and it is not to be made, or it cannot be opened.
        """
        from hpo_pilot.store import Store

        if self._store is None:
            url = self._folder().store_url(self._url)
            path = Path(url.removeprefix("sqlite:///"))
            if not make and url.startswith("sqlite:///") and not path.exists():
                if path.parent.is_file():
                    raise InputError(f"the work folder {path.parent} is a file; name another --workdir")
                raise NoStoreError(
                    f"there is no store at {path}: run or submit a search first, or name another --workdir or --store"
                )
            self._store = Store.open(url)
        return self._store

    def _store_if_any(self) -> Store | None:
        """The store; None where there is none yet."""
        try:
            return self._opened()
        except NoStoreError:
            return None

    def _change(self, identity: str, change: Callable[[SearchRecord], object]) -> SearchDocument:
        """Changes a search, or every search of a family whose state allows it."""
        store, family = self._opened(), self.own_family(identity)
        for_each(family, change)
        return self._documents([store.search(record.id) for record in family])

    def own_family(self, identity: str) -> list[SearchRecord]:
        """The searches of a family, or the one search, that the user may change."""
        store = self._opened()
        family = store.family(identity) or [store.search(identity)]
        for record in family:
            self.user.check(record.name, record.owner)
        return family

    def _search(self, identity: str) -> tuple[Store, SearchRecord]:
        store = self._opened()
        if family := store.family(identity):
            raise of_one_segment(identity, [record.name for record in family])
        return store, store.search(identity)

    def document(self, identity: str) -> SearchDocument:
        """A search, or a family, with its progress."""
        store = self._opened()
        return self._documents(store.family(identity) or [store.search(identity)])

    def _documents(self, records: Sequence[SearchRecord]) -> SearchDocument:
        """The document of a search, or of all of a family."""
        from hpo_pilot.store.lease import lease_holder

        store, family = self._opened(), records[0].family
        steers = lease_holder(store.engine)
        if family is None or len(records) == 1 != len(store.family(family)):
            return document_of(store, records[0], steers)
        return family_document(family, [document_of(store, record, steers) for record in records])


#: How often a watched search is looked at, and how long a store that is away is waited for, in seconds.
_LOOK_SECONDS = 0.5
_PATIENCE = 120.0


class LocalClient(LocalStore):
    """Works on a store in this process. What it needs is imported when it is used: the command line starts light."""

    runner = "`hpo-pilot serve`"
    environment = "the environment active here"

    # --- search files ---

    @override
    def validate(self, file: Path) -> ExaminationDocument:
        from hpo_pilot.files import python_here
        from hpo_pilot.steering.search_file import examine

        found = self.examined(examine(file), file.parent)
        return {
            "valid": found.search is not None,
            "problems": [asdict(problem) for problem in found.problems],  # type: ignore[misc]  # the same fields
            "notes": [asdict(note) for note in found.notes],  # type: ignore[misc]
            "search": None if found.search is None else found.search.to_dict(),
            "python": None if found.search is None else python_here(found.search),
        }

    def examined(self, found: Examination, base: Path | None) -> Examination:
        """What was found in a search file, and in the earlier searches that it names; `base` is its folder, if here."""
        from hpo_pilot.steering.registration import examine_earlier_searches

        return examine_earlier_searches(self._store_if_any(), found, base) if found.earlier else found

    @override
    def rehearse(self, file: Path, *, server: str | None = None) -> dict[str, Any]:
        from hpo_pilot.steering.registration import first_task

        return first_task(file, server, self._store_if_any)

    @override
    def submit(self, file: Path, *, server: str | None = None) -> SearchDocument:
        from hpo_pilot.steering.embedded import chosen_server
        from hpo_pilot.steering.registration import pack_searches

        target = None if server is None else chosen_server(server)
        return self.register(pack_searches(file, self._made_folder()), go_on=False, server=target)

    def register(
        self, family: Sequence[PackedSearch], *, go_on: bool, uid: str | None = None, server: str | None = None
    ) -> SearchDocument:
        """Registers the searches of a file, packed already; see `hpo_pilot.steering.registration.register_family`."""
        from hpo_pilot.steering.registration import register_family

        records = register_family(
            self._opened(make=True),
            family,
            go_on=go_on,
            who=self.user.name,
            uid=uid,
            check=lambda found: self.user.check(found.name, found.owner),
        )
        if server is not None:
            for record in records:
                self._opened().bind_server(record.id, server)
        return self._documents(records)

    @override
    def run(
        self,
        file: Path,
        on_progress: OnProgress,
        *,
        slots: int | None = None,
        server: str | None = None,
        on_server: OnServer = lambda _server: None,
    ) -> RunDocument:
        from hpo_pilot.steering.service import run_all

        def show(store: Store, record: SearchRecord) -> None:
            if record.family is None:
                on_progress(progress_of(store, record))
            elif (members := store.family(record.family))[0].id == record.id:  # once for all of them
                on_progress(family_progress(record.family, [progress_of(store, member) for member in members]))

        options = {"store": self._url, "slots": slots, "server": server}
        results = run_all(file, self._root, **options, on_server=on_server, on_progress=show)  # type: ignore[arg-type]
        documents = [run_document(result) for result in results]
        family = results[0].record.family
        if family is None:
            return documents[0]
        reports = ", ".join(document["report"] for document in documents)
        return {**family_document(family, documents), "report": reports}

    # --- looking ---

    @override
    def searches(self) -> list[SearchDocument]:
        from hpo_pilot.store.lease import lease_holder

        store = self._opened()
        steers = lease_holder(store.engine)
        return [document_of(store, record, steers) for record in store.searches()]

    @override
    def status(self, identity: str) -> StatusDocument:
        if family := self._opened().family(identity):
            members = [status_of(self._opened(), record, self._folder().root) for record in family]
            return {
                **family_document(identity, members),
                "remarks": [f"{one['name']}: {remark}" for one in members for remark in one.get("remarks", ())],
                "job_seconds": sum(member["job_seconds"] for member in members),
                "gpu_hours": sum(member["gpu_hours"] for member in members),
                "gain": None,
                "wishes": [wish for member in members for wish in member.get("wishes", ())],
                "eta": latest_eta(members),
                "last_failure": None,
                "course": None,
                "optimizer_state": None,
                "monitor": None,
                "hours_used": None,
                "cost": family_cost([member["cost"] for member in members]),
                "source": members[0]["source"],
                "definition": members[0]["definition"],
            }
        return status_of(*self._search(identity), self._folder().root)

    def progress(self, identity: str) -> ProgressDocument:
        """How far a search is, now."""
        if family := self._opened().family(identity):
            store = self._opened()
            return family_progress(identity, [progress_of(store, record) for record in family])
        return progress_of(*self._search(identity))

    @override
    def watch(self, identity: str) -> Iterator[ProgressDocument]:
        shown: ProgressDocument | None = None
        seen = time.monotonic()
        while shown is None or shown["state"] not in OVER_SEARCHES:
            if shown is not None:
                time.sleep(_LOOK_SECONDS)
            try:
                now = self.progress(identity)
            except TryAgainError:
                if time.monotonic() - seen > _PATIENCE:
                    raise
                time.sleep(_LOOK_SECONDS)
                continue
            seen = time.monotonic()
            if now != shown:
                yield now
                shown = now

    @override
    def trials(self, identity: str, *, logs: bool = True) -> list[TrialDocument]:
        store, record = self._search(identity)
        return trial_documents(record.search, store.trials(record.id), logs=logs)

    @override
    def intermediate(self, identity: str) -> list[IntermediateDocument]:
        store, record = self._search(identity)
        return all_intermediate(store, record.id)

    def some_trials(self, identity: str, after: int, limit: int, *, logs: bool) -> list[TrialDocument]:
        """At most `limit` trials with numbers above `after`."""
        store, record = self._search(identity)
        found = store.trials(record.id, after=after, limit=limit)
        return trial_documents(record.search, found, logs=logs)

    @override
    def best(self, identity: str) -> TrialDocument | list[TrialDocument] | None:
        return best_documents(*self._search(identity))

    @override
    def events(self, identity: str) -> list[EventDocument]:
        store, record = self._search(identity)
        return [event_document(event) for event in store.events(record.id)]

    @override
    def report(self, identity: str) -> str:
        from hpo_pilot.steering.results import render_search_report

        store, record = self._search(identity)
        return render_search_report(store, record, store.trials(record.id), self._folder().place(self._url))

    @override
    def report_path(self, name: str) -> Path:
        return self._folder().report(name)

    @override
    def export(self, identity: str, form: str) -> str:
        export = exporter(form)
        store, record = self._search(identity)
        return export(record.search, store.trials(record.id))

    @override
    def fetch(self, identity: str, which: str, destination: Path) -> list[Path]:
        from hpo_pilot.steering.results import fetched_outputs, kept_outputs

        store, record = self._search(identity)
        trial, outputs = kept_outputs(store, record, which)
        with fetched_outputs(self._folder(), outputs, server=record.server) as archives:
            return unpack_outputs(archives, destination, trial, folds=record.search.folds.k)

    @override
    def doctor(self, server: str | None = None) -> list[FindingDocument]:
        from hpo_pilot.steering.doctor import examine

        workdir = None if self._root is None else Path(self._root)
        findings = examine(workdir, self._url, server)
        return [asdict(finding) for finding in findings]  # type: ignore[misc]  # the same fields

    # --- changing ---

    @override
    def pause(self, identity: str) -> SearchDocument:
        from hpo_pilot.steering import operations

        store = self._opened()
        return self._change(identity, lambda record: operations.pause(store, record, self.user.name))

    @override
    def resume(self, identity: str, *, new_payload: bool = False, file: Path | None = None) -> SearchDocument:
        from hpo_pilot.steering.registration import note_environment, pack_payload

        if not new_payload:
            return self.resume_with(identity, None)
        for record in self.own_family(identity):
            sandbox = pack_payload(record.search, file or Path(record.source), self._folder())
            note_environment(self._folder().environments, record.uid)
            self.resume_with(record.name, sandbox)
        return self.document(identity)

    def resume_with(self, identity: str, sandbox: Path | None) -> SearchDocument:
        """Lets a search go on, with a new packed payload where one is given."""
        from hpo_pilot.steering import operations

        store = self._opened()
        return self._change(identity, lambda record: operations.resume(store, record, self.user.name, sandbox=sandbox))

    @override
    def stop(self, identity: str) -> SearchDocument:
        from hpo_pilot.steering import operations

        store = self._opened()
        stopped = self._change(identity, lambda record: operations.stop(store, record, self.user.name))
        # A service that answers for its users (`opened`) cannot steer beside the one that may begin at any moment.
        if not self._owns_store or not is_unsteered(stopped):
            return stopped
        from hpo_pilot.steering.service import end_stopping

        try:
            url = store.engine.url.render_as_string(hide_password=False)
            end_stopping(url, self._folder(), self.own_family(identity))
        except HpoPilotError as error:
            raise TryAgainError(
                f"search {identity!r} is stopping, but its jobs cannot be ended now: {error}; "
                "the same command tries again"
            ) from error
        return self.document(identity)

    @override
    def how_to_steer(self, identity: str) -> str:
        from hpo_pilot.steering.status import steering_commands

        store = self._opened()
        return steering_commands((store.family(identity) or [store.search(identity)])[0])

    @override
    def extend(
        self, identity: str, changes: Mapping[str, float], *, seen: Mapping[str, float | None] | None = None
    ) -> SearchDocument:
        """Adds to the budget; `seen`: as `hpo_pilot.steering.operations.extend` takes it."""
        from hpo_pilot.steering import operations

        store = self._opened()
        if store.family(identity):
            seen = None  # it is the budget of one search
        return self._change(
            identity, lambda record: operations.extend(store, record, self.user.name, changes, seen=seen)
        )

    @override
    def retry(self, identity: str, trials: Sequence[int] | None = None, *, key: str | None = None) -> SearchDocument:
        """Tries failed trials again; `key`: as `hpo_pilot.steering.operations.retry` takes it."""
        from hpo_pilot.steering import operations

        store, who = self._opened(), self.user.name
        if trials is not None and (family := store.family(identity)):
            raise of_one_segment(identity, [record.name for record in family])
        return self._ask_for(identity, lambda record: operations.retry(store, record, who, trials, key=key))

    @override
    def add_point(self, identity: str, point: Mapping[str, Any], *, key: str | None = None) -> SearchDocument:
        """Has a point tried; `key`: as `hpo_pilot.steering.operations.add_point` takes it."""
        from hpo_pilot.steering import operations

        store, who = self._opened(), self.user.name
        return self._ask_for(identity, lambda record: operations.add_point(store, record, who, point, key=key))

    @override
    def set_parallel(self, identity: str, parallel: int) -> SearchDocument:
        from hpo_pilot.steering import operations

        store, who = self._opened(), self.user.name
        return self._change(identity, lambda record: operations.set_parallel(store, record, who, parallel))

    def _ask_for(self, identity: str, ask: Callable[[SearchRecord], int]) -> SearchDocument:
        added: list[int] = []
        changed = self._change(identity, lambda record: added.append(ask(record)))
        return {**changed, "added": sum(added)}
