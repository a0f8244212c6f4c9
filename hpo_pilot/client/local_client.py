"""The client of whoever has the store: the work folder's, or another that a URL names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from hpo_pilot.client.documents import (
    OVER_SEARCHES,
    EventDocument,
    ExaminationDocument,
    FindingDocument,
    ProgressDocument,
    RunDocument,
    SearchDocument,
    StatusDocument,
    TrialDocument,
    event_document,
    is_unsteered,
)
from hpo_pilot.client.exports import exporter
from hpo_pilot.client.families import family_cost, family_document, family_progress, latest_eta, of_one_segment
from hpo_pilot.client.intermediate import IntermediateDocument, all_intermediate
from hpo_pilot.client.local_documents import (
    best_documents,
    document_of,
    progress_of,
    run_document,
    status_of,
    trial_documents,
)
from hpo_pilot.client.local_store import LocalStore
from hpo_pilot.client.outputs import unpack_outputs
from hpo_pilot.client.search_client import OnProgress, OnServer
from hpo_pilot.errors import HpoPilotError, TryAgainError

if TYPE_CHECKING:
    from hpo_pilot.config import Examination
    from hpo_pilot.service.registration import PackedSearch
    from hpo_pilot.store import SearchRecord, Store

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
        from hpo_pilot.config import examine
        from hpo_pilot.config.payload_files import python_here

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
        from hpo_pilot.service.warm_start import examined

        return examined(self._store_if_any(), found, base) if found.earlier else found

    @override
    def rehearse(self, file: Path, *, server: str | None = None) -> dict[str, Any]:
        from hpo_pilot.service.rehearsal import first_task

        return first_task(file, server, self._store_if_any)

    @override
    def submit(self, file: Path, *, server: str | None = None) -> SearchDocument:
        from hpo_pilot.service.registration import pack_searches
        from hpo_pilot.service.target import chosen_server

        target = None if server is None else chosen_server(server)
        return self.register(pack_searches(file, self._made_folder()), go_on=False, server=target)

    def register(
        self, family: Sequence[PackedSearch], *, go_on: bool, uid: str | None = None, server: str | None = None
    ) -> SearchDocument:
        """Registers the searches of a file, packed already; see `hpo_pilot.service.families.register_family`."""
        from hpo_pilot.service.families import register_family

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
        from hpo_pilot.service.run import run_all

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
        from hpo_pilot.store.lease import holder

        store = self._opened()
        steers = holder(store.engine)
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
        from hpo_pilot.service.result import render

        store, record = self._search(identity)
        return render(store, record, store.trials(record.id), self._folder().place(self._url))

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
        from hpo_pilot.service.outputs import fetched, kept_outputs

        store, record = self._search(identity)
        trial, outputs = kept_outputs(store, record, which)
        with fetched(self._folder(), outputs, server=record.server) as archives:
            return unpack_outputs(archives, destination, trial, folds=record.search.folds.k)

    @override
    def doctor(self, server: str | None = None) -> list[FindingDocument]:
        from hpo_pilot.service.doctor import examine

        workdir = None if self._root is None else Path(self._root)
        findings = examine(workdir, self._url, server)
        return [asdict(finding) for finding in findings]  # type: ignore[misc]  # the same fields

    # --- changing ---

    @override
    def pause(self, identity: str) -> SearchDocument:
        from hpo_pilot.service import registration

        store = self._opened()
        return self._change(identity, lambda record: registration.pause(store, record, self.user.name))

    @override
    def resume(self, identity: str, *, new_payload: bool = False, file: Path | None = None) -> SearchDocument:
        from hpo_pilot.service.registration import note_environment, pack_payload

        if not new_payload:
            return self.resume_with(identity, None)
        for record in self.own_family(identity):
            sandbox = pack_payload(record.search, file or Path(record.source), self._folder())
            note_environment(self._folder().environments, record.uid)
            self.resume_with(record.name, sandbox)
        return self.document(identity)

    def resume_with(self, identity: str, sandbox: Path | None) -> SearchDocument:
        """Lets a search go on, with a new packed payload where one is given."""
        from hpo_pilot.service import registration

        store = self._opened()
        return self._change(
            identity, lambda record: registration.resume(store, record, self.user.name, sandbox=sandbox)
        )

    @override
    def stop(self, identity: str) -> SearchDocument:
        from hpo_pilot.service import registration

        store = self._opened()
        stopped = self._change(identity, lambda record: registration.stop(store, record, self.user.name))
        # A service that answers for its users (`opened`) cannot steer beside the one that may begin at any moment.
        if not self._owns_store or not is_unsteered(stopped):
            return stopped
        from hpo_pilot.service.run import end_stopping

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
        from hpo_pilot.service.steered import steering_commands

        store = self._opened()
        return steering_commands((store.family(identity) or [store.search(identity)])[0])

    @override
    def extend(
        self, identity: str, changes: Mapping[str, float], *, seen: Mapping[str, float | None] | None = None
    ) -> SearchDocument:
        """Adds to the budget; `seen`: as `hpo_pilot.service.registration.extend` takes it."""
        from hpo_pilot.service import registration

        store = self._opened()
        if store.family(identity):
            seen = None  # it is the budget of one search
        return self._change(
            identity, lambda record: registration.extend(store, record, self.user.name, changes, seen=seen)
        )

    @override
    def retry(self, identity: str, trials: Sequence[int] | None = None, *, key: str | None = None) -> SearchDocument:
        """Tries failed trials again; `key`: as `hpo_pilot.service.wishes.retry` takes it."""
        from hpo_pilot.service import wishes

        store, who = self._opened(), self.user.name
        if trials is not None and (family := store.family(identity)):
            raise of_one_segment(identity, [record.name for record in family])
        return self._ask_for(identity, lambda record: wishes.retry(store, record, who, trials, key=key))

    @override
    def add_point(self, identity: str, point: Mapping[str, Any], *, key: str | None = None) -> SearchDocument:
        """Has a point tried; `key`: as `hpo_pilot.service.wishes.add_point` takes it."""
        from hpo_pilot.service import wishes

        store, who = self._opened(), self.user.name
        return self._ask_for(identity, lambda record: wishes.add_point(store, record, who, point, key=key))

    @override
    def set_parallel(self, identity: str, parallel: int) -> SearchDocument:
        from hpo_pilot.service import wishes

        store, who = self._opened(), self.user.name
        return self._change(identity, lambda record: wishes.set_parallel(store, record, who, parallel))

    def _ask_for(self, identity: str, ask: Callable[[SearchRecord], int]) -> SearchDocument:
        added: list[int] = []
        changed = self._change(identity, lambda record: added.append(ask(record)))
        return {**changed, "added": sum(added)}
