"""The client that works on a store in this process, and the documents that it makes from the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.operations.families import family_document, family_progress, family_status, for_each, of_one_segment
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
    add_annotation,
    all_intermediate,
    event_document,
    in_parts,
    is_unsteered,
    trial_documents,
)
from hpo_pilot.report.exports import text_form
from hpo_pilot.web.operations import OnProgress, OnServer, Operation, SearchClient, User, unpack_outputs

if TYPE_CHECKING:
    from hpo_pilot.steering.registration import PackedSearch
    from hpo_pilot.steering.search_file import Examination
    from hpo_pilot.steering.workdir import WorkDir
    from hpo_pilot.store import SearchRecord, Store


class NoStoreError(InputError):
    """The store does not exist yet."""


#: Seconds between two looks at a watched search, and seconds to wait for a store that is out of reach.
_LOOK_SECONDS = 0.5
_PATIENCE = 120.0


class LocalClient(SearchClient):
    """Works on a store in this process. Its methods import what they need, so that the command line starts quickly."""

    runner = "`hpo-pilot serve`"
    environment = "the environment active here"

    def __init__(
        self,
        workdir: str | Path | None = None,
        store: str | None = None,
        *,
        user: User | None = None,
        opened: Store | None = None,
    ) -> None:
        """Prepares a client; the store is opened at the first call that needs it.

        Args:
            workdir: the work folder; default ./hpo-pilot.
            store: SQLAlchemy URL of another store.
            user: the user of the client; default: the user of this process, who may change all searches.
            opened: the store, if the caller has opened it and will close it.
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
        """Returns a search as the store has it."""
        return self._search(identity)[1]

    @property
    def user(self) -> User:
        """The user of the client."""
        from hpo_pilot.steering.workdir import nickname

        return self._user_given or User(nickname(), changes_all=True)

    def _folder(self) -> WorkDir:
        from hpo_pilot.steering.workdir import WorkDir

        return WorkDir.at(self._root)

    def _made_folder(self) -> WorkDir:
        from hpo_pilot.steering.workdir import WorkDir

        return WorkDir.make(self._root)

    def _opened(self, *, make: bool = False) -> Store:
        """Returns the opened store.

        Args:
            make: create the store if it does not exist.

        Raises:
            NoStoreError: it does not exist, and `make` is not set.
            InputError: it cannot be opened.
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
        """Returns the store, or None if it does not exist yet."""
        try:
            return self._opened()
        except NoStoreError:
            return None

    def _change(self, identity: str, change: Callable[[SearchRecord], object]) -> SearchDocument:
        """Changes a search, or every search of a family whose state allows the change."""
        store, family = self._opened(), self.own_family(identity)
        for_each(family, change)
        return self._documents([store.search(record.id) for record in family])

    def own_family(self, identity: str) -> list[SearchRecord]:
        """Returns the searches of a family, or a single search, after checking that the user may change them."""
        family = self._family(identity)
        for record in family:
            self.user.check(record.name, record.owner)
        return family

    def _family(self, identity: str) -> list[SearchRecord]:
        """Returns the searches of a family, or a single search."""
        store = self._opened()
        return store.family(identity) or [store.search(identity)]

    def _search(self, identity: str) -> tuple[Store, SearchRecord]:
        store = self._opened()
        if family := store.family(identity):
            raise of_one_segment(identity, [record.name for record in family])
        return store, store.search(identity)

    def document(self, identity: str) -> SearchDocument:
        """Returns the document of a search or a family."""
        return self._documents(self._family(identity))

    def _documents(self, records: Sequence[SearchRecord]) -> SearchDocument:
        """Returns the document of a search, or of a family."""
        from hpo_pilot.operations.documents import search_documents
        from hpo_pilot.store.lease import lease_holder

        store, family = self._opened(), records[0].family
        documents = search_documents(store, records, lease_holder(store.engine))
        if family is None or len(records) == 1 != len(store.family(family)):
            return documents[0]
        return family_document(family, documents)

    # --- search files ---

    @override
    def validate(self, file: Path) -> ExaminationDocument:
        from hpo_pilot.steering.search_file import examination_document, examine

        return examination_document(self.examined(examine(file), file.parent))

    def examined(self, found: Examination, base: Path | None) -> Examination:
        """Adds to the check of a search file that of the earlier searches it names; `base`: its folder, if local."""
        if not found.earlier:
            return found
        from hpo_pilot.steering.registration import examine_earlier_searches

        return examine_earlier_searches(self._store_if_any(), found, base)

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
        """Registers the packed searches of a file; see `hpo_pilot.steering.registration.register_family`."""
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
        from hpo_pilot.operations.documents import run_document, search_progress
        from hpo_pilot.steering.service import run_all

        def show(store: Store, record: SearchRecord) -> None:
            if record.family is None:
                on_progress(search_progress(store, record))
            elif (members := store.family(record.family))[0].id == record.id:  # once for all of them
                on_progress(family_progress(record.family, [search_progress(store, member) for member in members]))

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
    def searches(
        self,
        text: str = "",
        owner: str = "",
        tag: str = "",
        state: str = "",
        limit: int = 0,
        page: int = 1,
        costs: bool = True,
    ) -> list[SearchDocument]:
        from hpo_pilot.operations.documents import search_documents
        from hpo_pilot.store.lease import lease_holder
        from hpo_pilot.store.queries import FILTER_STATES, SearchFilter, records_of, search_heads

        if state and state not in FILTER_STATES:
            raise InputError(f"state: {state!r} is none of {', '.join(FILTER_STATES)}")
        store, wanted = self._opened(), SearchFilter(text, owner, state, tag=tag)
        found = [head.id for head in search_heads(store.engine) if wanted.matches(head)]
        if limit:
            found = found[max(0, page - 1) * limit :][:limit]
        records = sorted(records_of(store.engine, found), key=lambda record: record.id)
        return search_documents(store, records, lease_holder(store.engine), costs=costs)

    @override
    def status(self, identity: str) -> StatusDocument:
        from hpo_pilot.operations.documents import search_status

        if family := self._opened().family(identity):
            members = [search_status(self._opened(), record, self._folder().root) for record in family]
            return family_status(identity, members)
        return search_status(*self._search(identity), self._folder().root)

    def progress(self, identity: str) -> ProgressDocument:
        """Returns the progress of a search."""
        from hpo_pilot.operations.documents import search_progress

        if family := self._opened().family(identity):
            store = self._opened()
            return family_progress(identity, [search_progress(store, record) for record in family])
        return search_progress(*self._search(identity))

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
    def trials(
        self, identity: str, *, after: int = 0, limit: int | None = None, logs: bool = True
    ) -> Iterator[TrialDocument]:
        store, record = self._search(identity)
        annotations = store.annotations(record.id)
        found = store.stored_trials(record.id, after=after, limit=limit, without=() if logs else ("log_tail",))

        def annotated(document: TrialDocument) -> TrialDocument:
            add_annotation(document, annotations.get(document["number"]))
            return document

        return map(annotated, trial_documents(record.search, found, logs=logs))

    @override
    def intermediate(self, identity: str) -> list[IntermediateDocument]:
        store, record = self._search(identity)
        return all_intermediate(store, record.id)

    @override
    def best(self, identity: str) -> TrialDocument | list[TrialDocument] | None:
        from hpo_pilot.operations.documents import best_documents

        return best_documents(*self._search(identity))

    @override
    def events(self, identity: str) -> list[EventDocument]:
        store, record = self._search(identity)
        return [event_document(event) for event in store.events(record.id)]

    @override
    def report(self, identity: str) -> str:
        from hpo_pilot.steering.results import render_search_report

        store, record = self._search(identity)
        return render_search_report(store, record, self._folder().place(self._url))

    @override
    def report_path(self, name: str) -> Path:
        return self._folder().report(name)

    @override
    def export(self, identity: str, form: str) -> Iterator[str]:
        chosen = text_form(form)
        store, record = self._search(identity)
        return in_parts(
            chosen.write(record.search, store.stored_trials(record.id, without=() if chosen.logs else ("log_tail",)))
        )

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
    def perform(self, operation: Operation, fields: Mapping[str, Any], *, key: str | None = None) -> Any:
        from hpo_pilot.steering import operations

        store, who, identity = self._opened(), self.user.name, fields["identity"]
        given = {name: value for name, value in fields.items() if name != "identity"}
        if (given.get("trials") is not None or given.get("trial")) and (family := store.family(identity)):
            # These are numbers of one search's trials.
            raise of_one_segment(identity, [record.name for record in family])
        if operation.keyed:
            given["key"] = key
        change = getattr(operations, operation.name)
        added: list[Any] = []
        changed = self._change(identity, lambda record: added.append(change(store, record, who, **given)))
        return {**changed, "added": sum(added)} if operation.keyed else changed

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
        # A service that answers for its users (`opened`) must not steer: another process may begin to at any moment.
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

        return steering_commands(self._family(identity)[0])

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
