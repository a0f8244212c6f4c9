"""The client of a service at a URL; of the product's requirements it needs only `requests`."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import re
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import requests
from typing_extensions import override

from hpo_pilot.errors import HpoPilotError, InputError, Problem, SearchFileError, TryAgainError
from hpo_pilot.files import folder_mistake, payload_notes, read_content, result_mistake, result_path
from hpo_pilot.operations.families import family_document
from hpo_pilot.panda.sandbox import SIZE_LIMIT, add_file, payload_files
from hpo_pilot.report.documents import (
    OVER_SEARCHES,
    ExaminationDocument,
    FindingDocument,
    IntermediateDocument,
    ProblemDocument,
    ProgressDocument,
    RunDocument,
    SearchDocument,
    StatusDocument,
    TrialDocument,
)
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.web.connection import Connection, LostAnswerError
from hpo_pilot.web.operations import OnProgress, OnServer, Operation, SearchClient, unpack_outputs

#: Seconds that a call waits for a change; seconds to wait for a service that is out of reach, and between two tries.
_WAIT_SECONDS = 20
_PATIENCE = 120.0
_PAUSE = 2.0

#: Trials of a page, and of a page with intermediate values; characters of a part of an export.
_PAGE = 500
_PART = 1 << 17
_CURVES_PAGE = 100

_SAFE_NAME = re.compile(r"[\w.-]+")


def connect(url: str, token_file: str | Path, *, ca: str | Path | None = None) -> RestClient:
    """Returns a client of the service at `url`.

    Args:
        url: URL of the service, such as ``https://hpo.example.org:8443``.
        token_file: file with your token.
        ca: PEM file with the authority of the service's certificate, if the system does not know it.

    Raises:
        InputError: the URL or a file is wrong.
    """
    return RestClient(url, Path(token_file), ca=None if ca is None else Path(ca))


class RestClient(SearchClient):
    """Works on the searches of a service, through its REST API.

    A call whose answer is lost is repeated where that is safe; no change is made twice.
    """

    runner = "the service"
    environment = "the environment in which the service was started"

    def __init__(
        self, url: str, token_file: Path, *, ca: Path | None = None, workdir: str | Path | None = None
    ) -> None:
        """Prepares a client; sends nothing.

        Args:
            url: URL of the service.
            token_file: file with the user's token; read again for every call.
            ca: PEM file with the authority of its certificate; None: the system knows it.
            workdir: folder for reports; default ./hpo-pilot.

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
            raise InputError("--slots: the service sets the number of jobs at the same time: leave --slots out")
        name = self._register(file, go_on=True)["name"]
        try:
            for now in self.watch(name):
                on_progress(now)
        except KeyboardInterrupt:
            raise TryAgainError(f"no longer watching; the service continues search {name!r}") from None
        status: SearchDocument = self.status(name)
        if "segments" not in status:
            return self._ended(status)
        ended = [self._ended(segment) for segment in status["segments"]]
        return {**family_document(name, ended), "report": ", ".join(document["report"] for document in ended)}

    def _ended(self, search: SearchDocument) -> RunDocument:
        """Writes the report of a finished search and returns its document."""
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
    def trials(
        self, identity: str, *, after: int = 0, limit: int | None = None, logs: bool = True
    ) -> Iterator[TrialDocument]:
        size = _PAGE if limit is None else max(1, min(_PAGE, limit))
        found = self._pages(identity, "trials", {"limit": size, "logs": "true" if logs else "false"}, after)
        return itertools.islice(found, limit)

    @override
    def intermediate(self, identity: str) -> list[IntermediateDocument]:
        return list(self._pages(identity, "intermediate", {"limit": _CURVES_PAGE}))

    def _pages(self, identity: str, what: str, query: Mapping[str, str | int], after: int = 0) -> Iterator[Any]:
        """Yields the documents of trials with numbers above `after`; the first page is read at once, for its errors."""
        page = self._ask(_of(identity, what), {**query, "after": after})

        def documents(page: dict[str, Any]) -> Iterator[Any]:
            yield from page["trials"]
            while page["next"] is not None:
                page = self._ask(_of(identity, what), {**query, "after": page["next"]})
                yield from page["trials"]

        return documents(page)

    @override
    def report(self, identity: str) -> str:
        return self._service.call("GET", _of(identity, "report")).content.decode()

    @override
    def report_path(self, name: str) -> Path:
        if not _SAFE_NAME.fullmatch(name):
            raise InputError(f"{name!r} is not the name of a search")
        return self._workdir.report(name)

    @override
    def export(self, identity: str, form: str) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="hpo-pilot-") as scratch:
            whole = Path(scratch, "export")  # if the service breaks off, nothing has been printed
            self._service.download(_of(identity, "export"), whole, {"format": form})
            text = whole.open(encoding="utf-8", newline="")  # without its name it is there until it is closed

        def parts() -> Iterator[str]:
            with text:
                yield from iter(lambda: text.read(_PART), "")

        return parts()

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
    def resume(self, identity: str, *, new_payload: bool = False, file: Path | None = None) -> SearchDocument:
        if not new_payload:
            return self._change(_of(identity, "resume"), identity, ("submitted", "running", "done"))
        query = {}
        if (named := (search := self.status(identity))["definition"]["payload"]["files"]) is not None:
            query = {"payload": self._sender.send_payload_of(search, named, file)}
        # To send the same files again changes nothing.
        query["new_payload"] = "true"
        return cast(SearchDocument, self._service.ask("POST", _of(identity, "resume"), query=query))

    @override
    def extend(self, identity: str, changes: Mapping[str, float]) -> SearchDocument:
        search: SearchDocument = self.status(identity)
        if "segments" in search:
            for segment in search["segments"]:
                self.extend(segment["name"], changes)
            return self.status(identity)
        # The limits that the user saw let the service recognize a repeated call.
        body = {"add": dict(changes), "seen": {name: search["budget"].get(name) for name in changes}}
        return cast(SearchDocument, self._service.ask("POST", _of(identity, "extend"), json=body))

    def _change(self, path: str, identity: str, reached: Collection[str]) -> SearchDocument:
        try:
            return cast(SearchDocument, self._service.ask("POST", path, repeat=False))
        except LostAnswerError:
            # Look first: if the change was made, the service would refuse the same call.
            now = self.status(identity)
            if now["state"] in reached:
                return now
            return cast(SearchDocument, self._service.ask("POST", path, repeat=False))

    # --- declared operations, and end ---

    @override
    def perform(self, operation: Operation, fields: Mapping[str, Any], *, key: str | None = None) -> Any:
        body = {name: _json_value(value) for name, value in fields.items() if name != "identity"}
        query = None
        if operation.method == "GET":
            query = {name: value for name, value in body.items() if value != operation.fields()[name][1]}
        path = operation.path
        if "identity" in fields:
            path = _of(fields["identity"]) + path.removeprefix("searches/{identity}")
        if operation.reached:
            return self._change(path, fields["identity"], operation.reached)
        headers = {"Idempotency-Key": key or secrets.token_urlsafe(24)} if operation.keyed else None
        return self._service.ask(
            operation.method, path, query=query, json=body if body and query is None else None, headers=headers
        )

    @override
    def close(self) -> None:
        self._service.close()

    def _ask(self, path: str, query: Mapping[str, str | int] | None = None) -> Any:
        return self._service.ask("GET", path, query=query)


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _of(identity: str, *more: str) -> str:
    """Returns the path of a search, or of a part of it.

    Raises:
        InputError: a word cannot be a name or number.
    """
    for word in (identity, *more):
        if not word.strip(".") or "/" in word or not word.isprintable():
            raise InputError(f"{word!r} is neither a name nor a number of a search or trial")
    return "/".join(["searches", *(quote(word, safe="") for word in (identity, *more))])


def _refuse_server(server: str | None) -> None:
    if server is not None:
        raise InputError("--server: the service chooses the PanDA server: leave --server out")


_YAML = {"Content-Type": "application/yaml"}

#: Seconds to wait for the answer to a payload or a search: the service packs sandboxes.
_LONG = 600.0


@dataclass(frozen=True)
class SentExamination:
    """Result of the check of a search file.

    Attributes:
        document: document for users.
        content: bytes of the file.
        folder: folder of the payload; None: it has none, or the file is wrong.
        results: result files that `warm_start` names, by their index in it.
    """

    document: ExaminationDocument
    content: bytes
    folder: Path | None = None
    results: Mapping[int, Path] = field(default_factory=dict)


class SearchSender:
    """Sends search files to a service.

    The service reads the file and finds its mistakes; this class checks the local files that it names.
    """

    def __init__(self, service: Connection) -> None:
        """Sends to `service`."""
        self._service = service

    def examine(self, file: Path) -> SentExamination:
        """Checks a search file.

        Raises:
            InputError: the file does not contain the payload's folder as plain text.
            TryAgainError: the service is out of reach.
        """
        content = read_content(file, str(file))
        if isinstance(content, Problem):
            return SentExamination(_wrong([_document(content)], []), b"")
        found = self._service.ask("POST", "examinations", query={"file": str(file)}, headers=_YAML, body=content)
        named = found.pop("named_files")
        if named is None:
            return SentExamination(found, content)
        results = _checked_against_files(found, named["results"], content, file)
        if named["files"] is None:
            return SentExamination(found, content, None, results)
        place, command = Problem(**named["files_place"]), Problem(**named["command_place"])
        try:
            folder = _named_folder(named["files"], content, file)
        except InputError:
            if found["valid"]:
                raise
            return SentExamination(found, content)
        mistake = folder_mistake(named["files"], file.parent)
        if mistake is not None:
            problems = [*found["problems"], _document(replace(place, message=mistake[0], suggestion=mistake[1]))]
            return SentExamination(_wrong(_in_order(problems), found["notes"]), content)
        for message, hint in payload_notes(named["files"], named["command"], file.parent):
            note = replace(command, message=message, suggestion=hint)
            found["notes"] = _in_order([*found["notes"], _document(note)])
        return SentExamination(found, content, folder, results)

    def send(
        self, path: str, file: Path, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Sends the payload of a search file, then the file, to a path of the API; returns the answer.

        Raises:
            SearchFileError: the file is wrong.
            InputError: so is something else.
            TryAgainError: the service is out of reach.
        """
        found = self.examine(file)
        if not found.document["valid"]:
            raise SearchFileError([Problem(**problem) for problem in found.document["problems"]])
        sent = {"file": str(file), **(query or {})}
        if found.folder is not None:
            sent["payload"] = self._send_payload(found.folder, file)
        if found.results:
            with tempfile.TemporaryDirectory(prefix="hpo-pilot-") as scratch:
                for index, results in found.results.items():
                    shutil.copyfile(results, Path(scratch, str(index)))
                sent["results"] = self._send_payload(Path(scratch), file)
        return self._service.ask(
            "POST", path, query=sent, headers={**_YAML, **(headers or {})}, body=found.content, timeout=_LONG
        )

    def send_payload_of(self, search: StatusDocument, files: str, file: Path | None) -> str:
        """Sends the payload folder of a registered search; returns its digest.

        Args:
            search: the search.
            files: its `payload.files`.
            file: the search file; None: the path that the service recorded.

        Raises:
            InputError: the files are not on this machine.
        """
        again = f"`hpo-pilot resume {search['name']} --new-payload --file FILE` names the search file"
        if file is None:
            file = Path(search["source"])
            # A path from the service is trusted only below the present folder: most searches were submitted from there.
            if not file.is_relative_to(Path.cwd()):
                raise InputError(f"the search was submitted from {file}, which is not in this folder: {again}")
        content = read_content(file, str(file))
        if isinstance(content, Problem):
            raise InputError(f"{content}; {again}")
        folder = _named_folder(files, content, file)
        if (mistake := folder_mistake(files, file.parent)) is not None:
            raise InputError(f"{file}: payload.files: {mistake[0]}")
        return self._send_payload(folder, file)

    def _send_payload(self, folder: Path, file: Path) -> str:
        """Sends a folder without the search file, if the service does not have it; returns its digest."""
        with _packed(folder, without=file) as (archive, digest):
            path = f"payloads/{digest}"
            if not self._service.ask("GET", path)["present"]:
                self._service.call(
                    "PUT",
                    path,
                    headers={"Content-Type": "application/gzip"},
                    body=lambda: archive.open("rb"),
                    timeout=_LONG,
                )
            return digest


def _document(problem: Problem) -> ProblemDocument:
    return cast(ProblemDocument, asdict(problem))


def _wrong(problems: list[ProblemDocument], notes: list[ProblemDocument]) -> ExaminationDocument:
    return {"valid": False, "problems": problems, "notes": notes, "search": None, "python": None}


def _in_order(problems: list[ProblemDocument]) -> list[ProblemDocument]:
    return sorted(problems, key=lambda problem: (problem["line"] or 0, problem["column"] or 0))


def _checked_against_files(
    found: ExaminationDocument, named: list[dict[str, Any]], content: bytes, file: Path
) -> dict[int, Path]:
    """Returns the result files of `warm_start`, by index; adds their mistakes to `found`."""
    paths: dict[int, Path] = {}
    wrong: list[ProblemDocument] = []
    for entry in named:
        source, place = entry["source"], Problem(**entry["place"])
        path = result_path(source, file.parent)
        mistake = result_mistake(path)
        if not _names_folder("warm_start", source, content):
            mistake = f"write it plainly, as in `warm_start: [{source}]`", "hpo-pilot looks for this text in the file"
        if mistake is not None:
            wrong.append(_document(replace(place, message=mistake[0], suggestion=mistake[1])))
        paths[int(place.path.rpartition("[")[2].rstrip("]"))] = path
    if wrong:
        found["valid"], found["search"] = False, None
        found["problems"] = _in_order([*found["problems"], *wrong])
    return paths


def _names_folder(key: str, text: str, content: bytes) -> bool:
    """Returns True if the search file contains this text, plainly written, after this key.

    The service has read the file and says which files it names. Without this check a service could ask for any file of
    its users.
    """
    plain = rf"""\b{key}["']?\s*:.*?(?<![\w/.~-])(["']?){re.escape(text)}\1\s*(?:[,}}\]#]|$)"""
    return re.search(plain, content.decode("utf-8-sig", "replace"), re.MULTILINE | re.DOTALL) is not None


def _named_folder(files: str, content: bytes, file: Path) -> Path:
    """Returns the payload's folder, if the search file contains its name plainly.

    The service has read the file and says which folder it names. Without this check a service could ask for any folder
    of its users.

    Raises:
        InputError: the file does not contain it.
    """
    text = content.decode("utf-8-sig", "replace")
    plain = rf"""\bfiles["']?\s*:\s*(["']?){re.escape(files)}\1\s*(?:[,}}#]|$)"""
    if not re.search(plain, text, re.MULTILINE):
        raise InputError(
            f"{file}: write payload.files plainly, as in `files: {files}`; hpo-pilot looks for this text there"
        )
    try:
        return (file.parent / Path(files).expanduser()).resolve()
    except RuntimeError as error:  # no such user's home
        raise InputError(f"{file}: payload.files: {error}") from error


@contextmanager
def _packed(folder: Path, *, without: Path) -> Iterator[tuple[Path, str]]:
    """Packs the folder of a payload for the length of a block; yields the archive, a .tar.gz, and its SHA-256.

    The archive has only the user's files; the same files give the same digest. The service adds the runner when it
    makes the sandbox.

    Args:
        folder: folder of the payload.
        without: file to leave out: the search file.

    Raises:
        InputError: the folder cannot be read, is too large, or has a file or link that a payload may not contain.
        TryAgainError: the disk has no room for the archive.
    """
    with tempfile.TemporaryDirectory(prefix="hpo-pilot-") as scratch:
        path = Path(scratch, "payload.tar.gz")
        try:
            with (
                path.open("wb") as raw,
                gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                for name, file in payload_files(folder, without):
                    add_file(archive, name, file)
            size = path.stat().st_size
            with path.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise TryAgainError(f"cannot pack {folder} in {scratch}: {error.strerror or error}") from error
        if size > SIZE_LIMIT:
            raise InputError(
                f"payload.files: {folder} packs to {size / 1e6:.0f} MB, and PanDA takes at most "
                f"{SIZE_LIMIT / 1e6:.0f} MB: move data out of it and name it under payload.inputs"
            )
        yield path, digest
