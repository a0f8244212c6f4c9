"""All operations on searches: each is one method, for a store of this process and for a service."""

from __future__ import annotations

import itertools
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.operations.asking import LEASE, LONGEST_CALL, AskedSearch
from hpo_pilot.operations.families import family_document, family_progress, family_status, for_each, segments_of
from hpo_pilot.operations.here import Here, User
from hpo_pilot.operations.operation import operation, operations_of
from hpo_pilot.operations.outputs import unpack_outputs
from hpo_pilot.report.documents import (
    OVER_SEARCHES,
    AskedDocument,
    EventDocument,
    ExaminationDocument,
    FindingDocument,
    ProgressDocument,
    RunDocument,
    SearchDocument,
    StatusDocument,
    ToldDocument,
    event_document,
    is_unsteered,
)
from hpo_pilot.report.exports import text_form
from hpo_pilot.report.formatting import quotas_text
from hpo_pilot.report.json_text import in_parts
from hpo_pilot.report.trial_documents import (
    IntermediateDocument,
    RecommendationDocument,
    TrialDocument,
    add_annotation,
    all_intermediate,
    trial_documents,
)
from hpo_pilot.steering.workdir import WorkDir

if TYPE_CHECKING:
    from hpo_pilot.operations.remote import RemoteService
    from hpo_pilot.store import SearchRecord, Store

#: Seconds to wait for a store or service that is out of reach, and between two tries.
_PATIENCE = 120.0
_PAUSE = 2.0
#: Seconds of one call that waits for a trial.
_ASK_SECONDS = 1.0

#: Trials of a page, and of a page with intermediate values; characters of a part of an export.
_PAGE = 500
_CURVES_PAGE = 100
_PART = 1 << 17

_SAFE_NAME = re.compile(r"[\w.-]+")

#: Called after every change, or about twice a second.
OnProgress = Callable[[ProgressDocument], None]

#: Called with the PanDA server of the search: its URL, or `embedded`.
OnServer = Callable[[str], None]


def connect(url: str, token_file: str | Path, *, ca: str | Path | None = None) -> SearchClient:
    """Returns a client of the service at `url`.

    Args:
        url: URL of the service, such as ``https://hpo.example.org:8443``.
        token_file: file with your token.
        ca: PEM file with the authority of the service's certificate, if the system does not know it.

    Raises:
        InputError: the URL or a file is wrong.
    """
    from hpo_pilot.operations.remote import RemoteService

    return SearchClient(RemoteService(url, Path(token_file), ca=None if ca is None else Path(ca)))


class SearchClient:
    """All operations on searches, for a store that this process opens (`Here`) or for a service (`RemoteService`).

    `identity` is the name of a search, or its number as text. When a method that changes a search returns, the change
    is complete. When it raises, nothing has changed, unless the error says that the outcome is unknown. The steering
    service reacts to a change within a second; methods do not wait for it. Results are JSON documents
    (`hpo_pilot.report.documents`); the caller may keep and modify them.

    Every method may raise:
        InputError: the search does not exist, the caller may not change it, or its state does not allow the call.
        TryAgainError: the store or the service is out of reach; the same call may succeed later.
        GiveUpError: the call can never succeed.

    Several threads may use a client, one call at a time.

    A method declared with `operation` has a body for a store; through a service it is one HTTP call. The bodies import
    what they need: the command line starts quickly, and users of a service need no SQLAlchemy.
    """

    def __init__(self, at: Here | RemoteService) -> None:
        """Opens nothing yet."""
        self.at = at

    @classmethod
    def local(
        cls,
        workdir: str | Path | None = None,
        store: str | None = None,
        *,
        user: User | None = None,
        opened: Store | None = None,
    ) -> SearchClient:
        """Returns a client of a store; arguments as for `Here`."""
        return cls(Here(workdir, store, user=user, opened=opened))

    def close(self) -> None:
        """Closes connections; the client must not be used afterwards."""
        self.at.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def here(self) -> Here:
        """The place of a local client, as in the bodies of operations."""
        assert isinstance(self.at, Here)
        return self.at

    # --- search files ---

    def validate(self, file: Path) -> ExaminationDocument:
        """Checks a search file and registers nothing.

        The result lists all mistakes of the file, each with its place; the call does not raise for them.
        """
        if not isinstance(self.at, Here):
            return self.at.sender.examine(file).document
        from hpo_pilot.steering.search_file import examination_document, examine

        return examination_document(self.at.examined(examine(file), file.parent))

    def rehearse(self, file: Path, *, server: str | None = None) -> dict[str, Any]:
        """Returns the task parameters of the first generation, as PanDA would get them; registers and submits nothing.

        Raises:
            InputError: the file is wrong; the message lists all mistakes with their places, one per line.
        """
        if not isinstance(self.at, Here):
            _refuse_server(server)
            return cast(dict[str, Any], self.at.sender.send("rehearsals", file))
        from hpo_pilot.steering.registration import first_task

        return first_task(file, server, self.at.store_if_any)

    def submit(self, file: Path, *, server: str | None = None) -> SearchDocument:
        """Registers the search of a file, with the present files of its payload.

        When the method returns, the search is in the store in state `submitted`; its file and its payload folder are
        no longer needed. The call is repeated if its answer is lost; the search is still registered only once.

        Args:
            file: the search file.
            server: the PanDA server of the search, as for `run`; None: the one that the steering service uses.

        Raises:
            InputError: the file or its payload is wrong, or a search of that name exists.
        """
        if not isinstance(self.at, Here):
            _refuse_server(server)
            return cast(SearchDocument, self.at.register(file, go_on=False))
        from hpo_pilot.steering.embedded import chosen_server
        from hpo_pilot.steering.registration import pack_searches

        target = None if server is None else chosen_server(server)
        return self.at.register(pack_searches(file, WorkDir.make(self.at.workdir)), go_on=False, server=target)

    def run(
        self,
        file: Path,
        on_progress: OnProgress,
        *,
        slots: int | None = None,
        server: str | None = None,
        on_server: OnServer = lambda _server: None,
    ) -> RunDocument:
        """Runs the search of a file to its end and writes its report; continues an interrupted search.

        Args:
            file: the search file.
            on_progress: called while the search runs, and once at its end.
            slots: number of jobs at once, if this process runs them.
            server: the PanDA server, if this process submits to it: a URL, or `embedded`. None: the server that already
                has tasks of the search, else the one that the environment names, else the embedded one.
            on_server: called with that server before the first request to it.

        Raises:
            InputError: the file is wrong, or it differs from the registered search in more than a larger budget.
            TryAgainError: interrupted; the same call continues the search.
        """
        if isinstance(self.at, Here):
            family, documents = self._run_here(self.at, file, on_progress, slots, server, on_server)
        else:
            _refuse_server(server)
            if slots is not None:
                raise InputError("--slots: the service sets the number of jobs at the same time: leave --slots out")
            family, documents = self._run_there(self.at, file, on_progress)
        if family is None:
            return documents[0]
        return {**family_document(family, documents), "report": ", ".join(document["report"] for document in documents)}

    def _run_here(
        self,
        here: Here,
        file: Path,
        on_progress: OnProgress,
        slots: int | None,
        server: str | None,
        on_server: OnServer,
    ) -> tuple[str | None, list[RunDocument]]:
        """Runs the searches of a file in this process; returns the name of their family, and their documents."""
        from hpo_pilot.operations.documents import run_document, search_progress
        from hpo_pilot.steering.service import run_all

        def show(store: Store, record: SearchRecord) -> None:
            if record.family is None:
                on_progress(search_progress(store, record))
            elif (members := store.family(record.family))[0].id == record.id:  # once for all of them
                on_progress(family_progress(record.family, [search_progress(store, member) for member in members]))

        results = run_all(
            file, here.workdir, store=here.url, slots=slots, server=server, on_server=on_server, on_progress=show
        )
        return results[0].record.family, [run_document(result) for result in results]

    def _run_there(
        self, service: RemoteService, file: Path, on_progress: OnProgress
    ) -> tuple[str | None, list[RunDocument]]:
        """Lets the service run the searches of a file, and writes their reports; results as of `_run_here`."""
        name = service.register(file, go_on=True)["name"]
        try:
            for now in self.watch(name):
                on_progress(now)
        except KeyboardInterrupt:
            raise TryAgainError(f"no longer watching; the service continues search {name!r}") from None
        status: SearchDocument = self.status(name)
        return name if "segments" in status else None, [self._ended(service, one) for one in segments_of(status)]

    def _ended(self, service: RemoteService, search: SearchDocument) -> RunDocument:
        """Writes the report of a finished search and returns its document."""
        path = self.report_path(search["name"])
        html = self.report(search["name"])
        try:
            service.folder.make_private(path.parent)
            path.write_text(html, encoding="utf-8")
        except OSError as error:
            raise TryAgainError(
                f"the search is over, but its report cannot be written to {path}: {error.strerror}; "
                f"`hpo-pilot report {search['name']} -o FILE` writes it elsewhere"
            ) from error
        known = {key: value for key, value in search.items() if key in RunDocument.__annotations__}
        return cast(RunDocument, {**known, "report": str(path)})

    # --- looking ---

    @operation("GET", "searches")
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
        """Returns all searches, or those that match the filters, oldest first; every user sees all of them.

        Args:
            text: a part of the name, the note or a tag.
            owner: the owner.
            tag: a tag.
            state: a state, or `active` or `over`.
            limit: most searches of a page; 0: all.
            page: the page, from 1; the first one has the newest searches.
            costs: with the costs of the best trials.

        Raises:
            InputError: there is no such state.
        """
        from hpo_pilot.operations.documents import search_documents
        from hpo_pilot.store.lease import lease_holder
        from hpo_pilot.store.queries import FILTER_STATES, SearchFilter, records_of, search_heads

        if state and state not in FILTER_STATES:
            raise InputError(f"state: {state!r} is none of {', '.join(FILTER_STATES)}")
        store, wanted = self.here.store, SearchFilter(text, owner, state, tag=tag)
        found = [head.id for head in search_heads(store.engine) if wanted.matches(head)]
        if limit:
            found = found[max(0, page - 1) * limit :][:limit]
        return search_documents(store, records_of(store.engine, found), lease_holder(store.engine), costs=costs)

    @operation("GET", "searches/{identity}")
    def status(self, identity: str) -> StatusDocument:
        """Returns all that is known of a search, except its trials."""
        from hpo_pilot.operations.documents import search_status

        store, root = self.here.store, self.here.folder.root
        if family := store.family(identity):
            return family_status(identity, [search_status(store, record, root) for record in family])
        return search_status(store, store.search(identity), root)

    def how_to_steer(self, identity: str) -> str:
        """Returns advice for a search that no process steers: a sentence with the commands that would steer it."""
        if not isinstance(self.at, Here):
            url = self.at.connection.url
            return f"`hpo-pilot serve` has to run on the service's machine: tell those who run {url}"
        from hpo_pilot.steering.status import steering_commands

        return steering_commands(self.at.family(identity)[0])

    def watch(self, identity: str) -> Iterator[ProgressDocument]:
        """Yields the progress of a search, at once and after every change; ends when the search is over.

        It waits up to two minutes for a store or service that is out of reach.
        """
        look = self.at.progress_calls(identity)
        shown: ProgressDocument | None = None
        seen = time.monotonic()
        while shown is None or shown["state"] not in OVER_SEARCHES:
            try:
                now = look()
            except TryAgainError:
                if time.monotonic() - seen > _PATIENCE:
                    raise
                time.sleep(_PAUSE)
                continue
            seen = time.monotonic()
            if now is not None and now != shown:
                yield now
                shown = now

    def trials(
        self, identity: str, *, after: int = 0, limit: int | None = None, logs: bool = True, where: str = ""
    ) -> Iterator[TrialDocument]:
        """Yields trials by number; reads them in pages, so that few are in memory.

        Errors may also be raised by the iterator. A trial may change between two pages.

        Args:
            identity: the search.
            after: only trials with larger numbers.
            limit: most trials; None: all.
            logs: with the log tails of folds.
            where: only trials with this condition, such as `loss < 0.1 and layers == 2`; see
                `hpo_pilot.store.trial_expressions`.

        Raises:
            InputError: `where` is no such condition.
        """
        if not isinstance(self.at, Here):
            size = _PAGE if limit is None else max(1, min(_PAGE, limit))
            query = {"logs": "true" if logs else "false", **({"where": where} if where else {})}
            return itertools.islice(self.at.pages(identity, "trials", size, after=after, query=query), limit)
        from hpo_pilot.store.annotations import trial_annotations
        from hpo_pilot.store.trial_expressions import condition_of

        record, store = self.at.search(identity), self.at.store
        annotations = trial_annotations(store.engine, record.id)
        wanted = condition_of(store.engine, record.search, where) if where else None
        without = () if logs else ("log_tail",)
        found = store.stored_trials(record.id, after=after, limit=limit, without=without, where=wanted)

        def annotated(document: TrialDocument) -> TrialDocument:
            add_annotation(document, annotations.get(document["number"]))
            return document

        return map(annotated, trial_documents(record.search, found, logs=logs))

    def trial(self, identity: str, number: int, *, logs: bool = True) -> TrialDocument:
        """Returns a trial; `logs`: with the log tails of folds.

        Raises:
            InputError: there is no such trial.
        """
        found = next(self.trials(identity, after=number - 1, limit=1, logs=logs), None)
        if found is None or found["number"] != number:
            raise InputError(f"search {identity!r} has no trial {number}: `hpo-pilot trials {identity}` lists them")
        return found

    def intermediate(self, identity: str) -> list[IntermediateDocument]:
        """Returns the intermediate values of trials, by number, without trials that reported none."""
        if not isinstance(self.at, Here):
            return list(self.at.pages(identity, "intermediate", _CURVES_PAGE))
        return all_intermediate(self.at.store, self.at.search(identity).id)

    @operation("GET", "searches/{identity}/best")
    def best(self, identity: str) -> TrialDocument | list[TrialDocument] | None:
        """Returns the best trial, or the Pareto front of several objectives; null while no trial has a figure of merit.

        Confirmed trials rank before others. The trials of a front are sorted by the first objective.
        """
        from hpo_pilot.operations.documents import best_documents

        return best_documents(self.here.store, self.here.search(identity))

    @operation("GET", "searches/{identity}/recommendation")
    def recommend(self, identity: str) -> RecommendationDocument | None:
        """Returns the trial that is probably the best, by a model of all results where they are noisy, else as `best`.

        With noise the best value is partly luck. The model is used if it finds noise and predicts left-out results as
        well as it expects. It takes about a second. Null while no trial has a figure of merit.

        Raises:
            InputError: the search has several objectives.
        """
        from hpo_pilot.operations.documents import recommendation_document

        return recommendation_document(self.here.store, self.here.search(identity))

    @operation("GET", "searches/{identity}/events")
    def events(self, identity: str) -> list[EventDocument]:
        """Returns the events of a search, oldest first: time, user and action."""
        return [event_document(event) for event in self.here.store.events(self.here.search(identity).id)]

    def report(self, identity: str) -> str:
        """Returns the report as one self-contained HTML document."""
        if not isinstance(self.at, Here):
            return self.at.get(identity, "report").content.decode()
        from hpo_pilot.steering.results import render_search_report

        return render_search_report(self.at.store, self.at.search(identity), self.at.folder.place(self.at.url))

    def report_path(self, name: str) -> Path:
        """Returns the default path of a search's report."""
        if not _SAFE_NAME.fullmatch(name):  # of a service
            raise InputError(f"{name!r} is not the name of a search")
        return self.at.folder.report(name)

    def export(self, identity: str, form: str) -> Iterator[str]:
        """Yields the text of a search and its trials in another format, in parts; the iterator may raise errors too.

        Raises:
            InputError: the format is unknown; the message lists the known ones.
        """
        if isinstance(self.at, Here):
            chosen, record = text_form(form), self.at.search(identity)
            without = () if chosen.logs else ("log_tail",)
            return in_parts(chosen.write(record.search, self.at.store.stored_trials(record.id, without=without)))
        with tempfile.TemporaryDirectory(prefix="hpo-pilot-") as scratch:
            whole = Path(scratch, "export")  # if the service breaks off, nothing has been printed
            self.at.download(whole, identity, "export", query={"format": form})
            text = whole.open(encoding="utf-8", newline="")  # without its name it is there until it is closed

        def parts() -> Iterator[str]:
            with text:
                yield from iter(lambda: text.read(_PART), "")

        return parts()

    def fetch(self, identity: str, which: str, destination: Path) -> list[Path]:
        """Fetches the kept outputs of a trial into ``destination/trial<N>/[fold<K>/]``.

        Args:
            identity: the search.
            which: `best`, or the number of a trial.
            destination: folder; created if missing.

        Returns:
            The files, in order.

        Raises:
            InputError: the trial does not exist or has no outputs; the message lists the trials that have some.
        """
        if isinstance(self.at, Here):
            from hpo_pilot.steering.results import fetched_outputs, kept_outputs

            record = self.at.search(identity)
            trial, outputs = kept_outputs(self.at.store, record, which)
            with fetched_outputs(self.at.folder, outputs, server=record.server) as archives:
                return unpack_outputs(archives, destination, trial, folds=record.search.folds.k)
        kept = self.at.ask(identity, "outputs", which)
        with tempfile.TemporaryDirectory(prefix="hpo-pilot-") as scratch:
            archives = {int(fold): Path(scratch, f"{int(fold)}.tar.gz") for fold in kept["folds"]}
            for fold, path in archives.items():
                self.at.download(path, identity, "outputs", str(kept["trial"]), str(fold))
            return unpack_outputs(archives, destination, int(kept["trial"]), folds=int(kept["of"]))

    def doctor(self, server: str | None = None) -> list[FindingDocument]:
        """Examines this machine, or the connection to the service.

        Args:
            server: PanDA server to try from this machine, with every call that a search makes; None: no server.

        Raises:
            InputError: `server` is given to a client of a service.
        """
        if isinstance(self.at, Here):
            from hpo_pilot.steering.doctor import examine

            workdir = None if self.at.workdir is None else Path(self.at.workdir)
            return [asdict(finding) for finding in examine(workdir, self.at.url, server)]  # type: ignore[misc]  # the same fields
        if server is not None:
            raise InputError("--server tries a PanDA server from this machine: leave --service out")
        try:
            about = self.at.connection.ask("GET", "service")
        except HpoPilotError as error:
            return [{"what": "service", "ok": False, "detail": str(error), "needed": True}]
        steering = "searches are steered" if about["steering"] else "nothing steers the searches: is `serve` running?"
        version = f"hpo-pilot {about['version']} at {self.at.connection.url}"
        you, quotas = f"{about['user']['name']}, {about['user']['role']}", quotas_text(about.get("quotas", {}))
        return [
            {"what": "service", "ok": True, "detail": version, "needed": True},
            {"what": "token", "ok": True, "detail": you, "needed": True},
            {"what": "steering", "ok": about["steering"], "detail": steering, "needed": False},
            {"what": "store", "ok": True, "detail": f"{about['searches']} searches", "needed": True},
            *([{"what": "quotas", "ok": True, "detail": quotas, "needed": False}] if quotas else []),  # type: ignore[list-item]
        ]

    # --- trials of a search without payload ---

    def search(self, identity: str) -> AskedSearch:
        """Returns a search without payload, for a worker that asks for trials and tells results."""
        return AskedSearch(self, identity)

    @operation("POST", "searches/{identity}/ask")
    def ask(
        self, identity: str, wait: float = 0.0, lease: float = LEASE, node: str = "", *, key: str | None = None
    ) -> AskedDocument:
        """Gives a trial of a search without payload to this client; `AskedSearch.ask` waits for longer.

        Args:
            identity: the search.
            wait: seconds to wait for a trial, at most `LONGEST_CALL`.
            lease: seconds without report or result after which another client gets the trial.
            node: name of the client's machine.

        Raises:
            InputError: the search has a payload.
        """
        from hpo_pilot.operations.asked_trials import ask_trials, checked_ask

        ask = checked_ask(lease, node, key or secrets.token_urlsafe(12))
        end = time.monotonic() + min(wait, LONGEST_CALL)
        while True:  # the embedded server does not know that the search has ended
            left = max(0.0, end - time.monotonic())
            (found,) = ask_trials(self.here, identity, [ask], min(left, _ASK_SECONDS))
            if found["trial"] is not None or found["over"] or not left:
                return found

    @operation("POST", "searches/{identity}/tell")
    def tell(
        self,
        identity: str,
        trial: int,
        values: list[float | None] | None = None,
        failed: str = "",
        metrics: dict[str, float] | None = None,
        step: int | None = None,
        attempt: int | None = None,
        node: str = "",
    ) -> ToldDocument:
        """Tells the result of a trial that a client asked for, or an intermediate value, which renews its lease.

        The first result counts, whichever client tells it, and the same one again is no error.

        Args:
            identity: the search.
            trial: number of the trial.
            values: a value for each objective; None: it is not finite, and the trial has failed.
            failed: or why there is none.
            metrics: further figures.
            step: the step of an intermediate value, from 0; None: it is the result.
            attempt: with `step`, the attempt that the client has; None: the last one.
            node: name of the client's machine.

        Raises:
            InputError: another result counts already; there is no such trial; a value is missing.
        """
        from hpo_pilot.operations.asked_trials import tell_result

        more = {"failed": failed, "metrics": metrics or {}, "attempt": attempt, "node": node}
        return tell_result(self.here, identity, trial, values or (), step, **more)

    # --- changing ---

    @operation(
        "POST",
        "searches/{identity}/pause",
        reached=("paused",),
        button="Pause",
        done="Paused: no new trials start until you resume the search.",
    )
    def pause(self, identity: str) -> SearchDocument:
        """Pauses a search: no new trials start; running trials continue to their end.

        Raises:
            InputError: the search is not running.
        """
        from hpo_pilot.steering.changes import pause

        return self.here.change(identity, pause)[0]

    def resume(self, identity: str, *, new_payload: bool = False, file: Path | None = None) -> SearchDocument:
        """Continues a paused, stopped or failed search.

        Args:
            identity: the search.
            new_payload: send corrected files of the payload; a running search uses them from its next trial on.
            file: the search file; the path of the payload is relative to its folder. None: the file that was submitted.

        Raises:
            InputError: the search is running or over, or the files of the payload are missing.
        """
        if isinstance(self.at, Here):
            if not new_payload:
                return self.at.resume(identity)
            from hpo_pilot.steering.registration import note_environment, pack_payload

            here = self.at

            def send_and_resume(record: SearchRecord) -> None:
                sandbox = pack_payload(record.search, file or Path(record.source), here.folder)
                note_environment(here.folder.environments, record.uid)
                here.resume(record.name, sandbox)

            for_each(here.own_family(identity), send_and_resume)
            return here.document(identity)
        return cast(SearchDocument, self.at.resume(identity, new_payload=new_payload, file=file))

    @operation("POST", "searches/{identity}/stop", reached=("stopping", "stopped"))
    def stop(self, identity: str) -> SearchDocument:
        """Stops a search and kills its jobs; its results stay.

        If no process steers the search and it has no jobs, it stops at once. If it has jobs, a local client kills them
        itself, provided that their server answers within a minute. Otherwise the search stays `stopping` until a
        process steers it; the same call tries again.

        Raises:
            InputError: the search is over, or is being stopped.
        """
        from hpo_pilot.steering.changes import stop

        stopped, _ = self.here.change(identity, stop)
        if not (self.here.owns_store and is_unsteered(stopped)):
            return stopped
        self.here.end_stopping(identity)
        return self.here.document(identity)

    def extend(
        self, identity: str, changes: Mapping[str, float], *, seen: Mapping[str, float | None] | None = None
    ) -> SearchDocument:
        """Adds to the budget of a search, once; a search that was over continues.

        Args:
            identity: the search.
            changes: amounts to add, by limit: trials, hours, gpu_hours, core_hours, fidelity, failures; and `high`, the
                new highest level itself.
            seen: the limits of one search as the user saw them, for a local store: a repeated call adds only once.

        Raises:
            InputError: an amount does not extend the budget, or the budget has no such limit.
        """
        if isinstance(self.at, Here):
            from hpo_pilot.steering.changes import extend

            if seen is not None:
                self.at.search(identity)  # it is the budget of one search
            return self.at.change(identity, partial(extend, changes=changes, seen=seen), resumes=True)[0]
        service, found = self.at, self.status(identity)
        # The limits that the user saw let the service recognize a repeated call; each search has its own.
        answers = for_each(segments_of(found), lambda one: service.extend(one, changes))
        return self.status(identity) if "segments" in found else answers[0]

    @operation("POST", "searches/{identity}/retry")
    def retry(self, identity: str, trials: Sequence[int] | None = None, *, key: str | None = None) -> SearchDocument:
        """Tries the points of failed trials again, each as a new trial, before new points of the optimizer.

        The budget grows by one trial for each. A search that was over continues; a paused search stays paused. In the
        result `added` is the number of new trials. `retries` of a new trial is the number of the failed one.

        Args:
            identity: the search, or a family: then every search of it retries its failed trials.
            trials: numbers of failed trials; None: all failed trials that have not been retried.

        Raises:
            InputError: there is no such trial, it did not fail, or its point is running again or has a result;
                the hours or GPU-hours of the search are spent; the search is stopping.
        """
        from hpo_pilot.steering.changes import retry

        if trials is not None:
            self.here.search(identity)  # these are numbers of one search's trials
        document, added = self.here.change(identity, partial(retry, trials=trials, key=key), resumes=True)
        return {**document, "added": sum(added)}

    @operation("POST", "searches/{identity}/points")
    def add_point(self, identity: str, point: Mapping[str, Any], *, key: str | None = None) -> SearchDocument:
        """Tries a given point before new points of the optimizer, which learns from it as from any other.

        The budget grows by one trial. A search that was over continues; a paused search stays paused.

        Args:
            identity: the search, or a family: then every search whose space contains the point tries it.
            point: values of the parameters that are active at the point, by name.

        Raises:
            InputError: the point is outside the space (the message has all reasons), or the search has it already;
                the hours or GPU-hours of the search are spent; the search is stopping.
        """
        from hpo_pilot.steering.changes import add_point

        document, added = self.here.change(identity, partial(add_point, point=point, key=key), resumes=True)
        return {**document, "added": sum(added)}

    @operation(
        "POST",
        "searches/{identity}/parallel",
        button="Parallel trials",
        done="The number of parallel trials was changed.",
    )
    def set_parallel(self, identity: str, parallel: int) -> SearchDocument:
        """Changes the number of trials at once; running trials are not affected.

        A search that is over stays over.

        Raises:
            InputError: `parallel` is below one.
        """
        from hpo_pilot.steering.changes import set_parallel

        return self.here.change(identity, partial(set_parallel, parallel=parallel))[0]

    @operation("POST", "searches/{identity}/note")
    def annotate(
        self, identity: str, note: str | None = None, tags: Sequence[str] | None = None, trial: int = 0
    ) -> SearchDocument:
        """Writes a note and tags on a search, or on one of its trials.

        Args:
            identity: the search, or a family: then every search of it.
            note: the note; empty: none; None: unchanged.
            tags: all tags; None: unchanged.
            trial: number of the trial; 0: the search itself.

        Raises:
            InputError: there is no such trial; the note or a tag is too long.
        """
        from hpo_pilot.steering.changes import annotate

        if trial:
            self.here.search(identity)  # it is the number of one search's trial
        return self.here.change(identity, partial(annotate, note=note, tags=tags, trial=trial))[0]


#: The declared operations, in the order of the class.
OPERATIONS = operations_of(SearchClient)


def _refuse_server(server: str | None) -> None:
    if server is not None:
        raise InputError("--server: the service chooses the PanDA server: leave --server out")
