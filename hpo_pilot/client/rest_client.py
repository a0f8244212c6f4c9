"""The client of a service at a URL. It needs `requests` and nothing of what the service is made of."""

from __future__ import annotations

import re
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import requests
from typing_extensions import override

from hpo_pilot.client.connection import Connection, LostAnswerError
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
)
from hpo_pilot.client.families import family_document
from hpo_pilot.client.intermediate import IntermediateDocument
from hpo_pilot.client.outputs import unpack_outputs
from hpo_pilot.client.search_client import OnProgress, OnServer, SearchClient
from hpo_pilot.client.search_sender import SearchSender
from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.service.workdir import WorkDir

#: How long one question for news lasts, and how long a service that is away is waited for, in seconds.
_WAIT_SECONDS = 20
_PATIENCE = 120.0
_PAUSE = 2.0

#: Trials in one answer, and in one with all values that they reported.
_PAGE = 500
_CURVES_PAGE = 100

_SAFE_NAME = re.compile(r"[\w.-]+")


def connect(url: str, token_file: str | Path, *, ca: str | Path | None = None) -> RestClient:
    """A client of the service at `url`.

    Args:
        url: of the service, such as ``https://hpo.example.org:8443``.
        token_file: holds your token.
        ca: PEM file of the authority that the service's certificate comes from, where it is not a usual one.

    Raises:
        InputError: the URL or a file is wrong.
    """
    return RestClient(url, Path(token_file), ca=None if ca is None else Path(ca))


class RestClient(SearchClient):
    """Everything that a user does with searches, through a service's REST API.

    Calls that may be repeated are, where their answers are lost; nothing is done twice.
    """

    runner = "the service"
    environment = "the environment in which the service was started"

    def __init__(
        self, url: str, token_file: Path, *, ca: Path | None = None, workdir: str | Path | None = None
    ) -> None:
        """Prepares; nothing is sent yet.

        Args:
            url: the service's.
            token_file: holds the user's token; read again at every call.
            ca: where the authority is that its certificate comes from; None: a usual one.
            workdir: where reports go; default ./hpo-pilot.

        Raises:
            InputError: the URL or a file is wrong.
        """
        self._service = Connection(url, token_file, ca)
        self._sender = SearchSender(self._service)
        self._workdir = WorkDir.at(workdir)

    # --- search files ---

    @override
    def validate(self, file: Path) -> ExaminationDocument:
        return self._sender.examine(file).document

    @override
    def rehearse(self, file: Path, *, server: str | None = None) -> dict[str, Any]:
        _refuse_server(server)
        return cast(dict[str, Any], self._sender.send("rehearsals", file))

    @override
    def submit(self, file: Path, *, server: str | None = None) -> SearchDocument:
        _refuse_server(server)
        return self._register(file, go_on=False)

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
        _refuse_server(server)
        if slots is not None:
            raise InputError("--slots: how many jobs run side by side is the service's to say, not its users'")
        name = self._register(file, go_on=True)["name"]
        try:
            with _interrupts():
                for now in self.watch(name):
                    on_progress(now)
        except KeyboardInterrupt:
            raise TryAgainError(f"no longer watching; the service goes on with search {name!r}") from None
        status: SearchDocument = self.status(name)
        if "segments" not in status:
            return self._ended(status)
        ended = [self._ended(segment) for segment in status["segments"]]
        return {**family_document(name, ended), "report": ", ".join(document["report"] for document in ended)}

    def _ended(self, search: SearchDocument) -> RunDocument:
        """What came of a search, its report written."""
        name = search["name"]
        path = self.report_path(name)
        html = self.report(name)
        try:
            self._workdir.make_private(path.parent)
            path.write_text(html, encoding="utf-8")
        except OSError as error:
            raise TryAgainError(
                f"the search is over, but its report cannot be written to {path}: {error.strerror}; "
                f"`hpo-pilot report {name} -o FILE` writes it elsewhere"
            ) from error
        known = {key: value for key, value in search.items() if key in RunDocument.__annotations__}
        return cast(RunDocument, {**known, "report": str(path)})

    def _register(self, file: Path, *, go_on: bool) -> SearchDocument:
        # The key makes a repeated call the same one.
        headers = {"Idempotency-Key": secrets.token_urlsafe(24)}
        query = {"source": str(file.absolute()), "go_on": "true" if go_on else "false"}
        return cast(SearchDocument, self._sender.send("searches", file, query, headers))

    # --- looking ---

    @override
    def searches(self) -> list[SearchDocument]:
        return cast(list[SearchDocument], self._ask("searches"))

    @override
    def status(self, identity: str) -> StatusDocument:
        return cast(StatusDocument, self._ask(_of(identity)))

    @override
    def how_to_steer(self, identity: str) -> str:
        return f"`hpo-pilot serve` has to run on the service's machine: tell those who run {self._service.url}"

    @override
    def watch(self, identity: str) -> Iterator[ProgressDocument]:
        tag, state = "", ""
        seen = time.monotonic()
        while state not in OVER_SEARCHES:
            try:
                answer = self._service.call(
                    "GET",
                    _of(identity, "progress"),
                    query={"timeout": _WAIT_SECONDS},
                    headers={"If-None-Match": tag} if tag else {},
                )
            except TryAgainError:
                if time.monotonic() - seen > _PATIENCE:
                    raise
                time.sleep(_PAUSE)
                continue
            seen = time.monotonic()
            if answer.status_code == requests.codes.ok:
                tag = answer.headers.get("ETag", "")
                now = cast(ProgressDocument, answer.json())
                state = now["state"]
                yield now

    @override
    def trials(self, identity: str, *, logs: bool = True) -> list[TrialDocument]:
        return self._pages(identity, "trials", {"limit": _PAGE, "logs": "true" if logs else "false"})

    @override
    def intermediate(self, identity: str) -> list[IntermediateDocument]:
        return self._pages(identity, "intermediate", {"limit": _CURVES_PAGE})

    def _pages(self, identity: str, what: str, query: Mapping[str, str | int]) -> list[Any]:
        """All trials' documents of a kind that come a page at a time."""
        found: list[Any] = []
        after: int | None = 0
        while after is not None:
            page = self._ask(_of(identity, what), {**query, "after": after})
            found += page["trials"]
            after = page["next"]
        return found

    @override
    def best(self, identity: str) -> TrialDocument | list[TrialDocument] | None:
        return cast("TrialDocument | list[TrialDocument] | None", self._ask(_of(identity, "best")))

    @override
    def events(self, identity: str) -> list[EventDocument]:
        return cast(list[EventDocument], self._ask(_of(identity, "events")))

    @override
    def report(self, identity: str) -> str:
        return self._get(_of(identity, "report")).content.decode()

    @override
    def report_path(self, name: str) -> Path:
        if not _SAFE_NAME.fullmatch(name):
            raise InputError(f"{name!r} is no search's name")
        return self._workdir.report(name)

    @override
    def export(self, identity: str, form: str) -> str:
        return self._get(_of(identity, "export"), {"format": form}).content.decode()

    @override
    def fetch(self, identity: str, which: str, destination: Path) -> list[Path]:
        kept = self._ask(_of(identity, "outputs", which))
        with tempfile.TemporaryDirectory(prefix="hpo-pilot-") as scratch:
            archives = {int(fold): Path(scratch, f"{int(fold)}.tar.gz") for fold in kept["folds"]}
            for fold, path in archives.items():
                self._service.download(_of(identity, "outputs", str(kept["trial"]), str(fold)), path)
            return unpack_outputs(archives, destination, int(kept["trial"]), folds=int(kept["of"]))

    @override
    def doctor(self, server: str | None = None) -> list[FindingDocument]:
        if server is not None:
            raise InputError("--server tries a PanDA server from this machine: leave --service out")
        try:
            about = self._ask("service")
        except HpoPilotError as error:
            return [{"what": "service", "ok": False, "detail": str(error), "needed": True}]
        steering = "searches are steered" if about["steering"] else "nothing steers the searches: is `serve` running?"
        version = f"hpo-pilot {about['version']} at {self._service.url}"
        you = f"{about['user']['name']}, {about['user']['role']}"
        return [
            {"what": "service", "ok": True, "detail": version, "needed": True},
            {"what": "token", "ok": True, "detail": you, "needed": True},
            {"what": "steering", "ok": about["steering"], "detail": steering, "needed": False},
            {"what": "store", "ok": True, "detail": f"{about['searches']} searches", "needed": True},
        ]

    # --- changing ---

    @override
    def pause(self, identity: str) -> SearchDocument:
        return self._change(identity, "pause", reached=("paused",))

    @override
    def resume(self, identity: str, *, new_payload: bool = False, file: Path | None = None) -> SearchDocument:
        if not new_payload:
            return self._change(identity, "resume", reached=("submitted", "running", "done"))
        query = {}
        if (named := (search := self.status(identity))["definition"]["payload"]["files"]) is not None:
            query = {"payload": self._sender.send_payload_of(search, named, file)}
        # To send the same files again changes nothing.
        query["new_payload"] = "true"
        return cast(SearchDocument, self._service.ask("POST", _of(identity, "resume"), query=query))

    @override
    def stop(self, identity: str) -> SearchDocument:
        return self._change(identity, "stop", reached=("stopping", "stopped"))

    @override
    def extend(self, identity: str, changes: Mapping[str, float]) -> SearchDocument:
        search: SearchDocument = self.status(identity)
        if "segments" in search:
            for segment in search["segments"]:
                self.extend(segment["name"], changes)
            return self.status(identity)
        # What was seen makes a repeated call the same one.
        body = {"add": dict(changes), "seen": {name: search["budget"].get(name) for name in changes}}
        return cast(SearchDocument, self._service.ask("POST", _of(identity, "extend"), json=body))

    @override
    def retry(self, identity: str, trials: Sequence[int] | None = None) -> SearchDocument:
        return self._ask_for(_of(identity, "retry"), {"trials": None if trials is None else list(trials)})

    @override
    def add_point(self, identity: str, point: Mapping[str, Any]) -> SearchDocument:
        return self._ask_for(_of(identity, "points"), {"point": dict(point)})

    @override
    def set_parallel(self, identity: str, parallel: int) -> SearchDocument:
        # The same twice changes nothing.
        body = {"parallel": parallel}
        return cast(SearchDocument, self._service.ask("POST", _of(identity, "parallel"), json=body))

    def _ask_for(self, path: str, body: Mapping[str, Any]) -> SearchDocument:
        # The key makes a repeated call the same one.
        headers = {"Idempotency-Key": secrets.token_urlsafe(24)}
        return cast(SearchDocument, self._service.ask("POST", path, json=body, headers=headers))

    def _change(self, identity: str, what: str, *, reached: Collection[str]) -> SearchDocument:
        try:
            return cast(SearchDocument, self._service.ask("POST", _of(identity, what), repeat=False))
        except LostAnswerError:
            # Look first: done once, the same call would be refused.
            now = self.status(identity)
            if now["state"] in reached:
                return now
            return cast(SearchDocument, self._service.ask("POST", _of(identity, what), repeat=False))

    # --- end ---

    @override
    def close(self) -> None:
        self._service.close()

    def _ask(self, path: str, query: Mapping[str, str | int] | None = None) -> Any:
        return self._service.ask("GET", path, query=query)

    def _get(self, path: str, query: Mapping[str, str | int] | None = None) -> requests.Response:
        return self._service.call("GET", path, query=query)


def _of(identity: str, *more: str) -> str:
    """The path of a search, or of something of it.

    Raises:
        InputError: a word of it cannot be a name.
    """
    for word in (identity, *more):
        if not word.strip(".") or "/" in word or not word.isprintable():
            raise InputError(f"{word!r} is no name or number of a search or trial")
    return "/".join(["searches", *(quote(word, safe="") for word in (identity, *more))])


@contextmanager
def _interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt for the length of a block, whatever it does otherwise."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old: Callable[..., Any] | int | None = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)


def _refuse_server(server: str | None) -> None:
    if server is not None:
        raise InputError("--server: the PanDA server is the service's to choose, not its users'")
