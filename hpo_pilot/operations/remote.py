"""A service at a URL, through its REST API; of the product's requirements it needs only `requests`."""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import requests

from hpo_pilot.errors import InputError, Problem, SearchFileError, TryAgainError
from hpo_pilot.files import folder_mistake, payload_notes, read_content, result_mistake, result_path
from hpo_pilot.operations.connection import Connection, LostAnswerError
from hpo_pilot.operations.operation import Operation
from hpo_pilot.panda.sandbox import add_file, packed_into, payload_files
from hpo_pilot.report.documents import (
    ExaminationDocument,
    ProblemDocument,
    ProgressDocument,
    SearchDocument,
    StatusDocument,
)
from hpo_pilot.steering.workdir import WorkDir

#: Seconds that a call waits for a change.
_WAIT_SECONDS = 20


class RemoteService:
    """A service. A call whose answer is lost is repeated where that is safe; no change is made twice."""

    environment = "the environment in which the service was started"
    """Name of the environment in which payloads run at a local site, for messages."""

    def __init__(
        self, url: str, token_file: Path, *, ca: Path | None = None, workdir: str | Path | None = None
    ) -> None:
        """Sends nothing yet.

        Args:
            url: URL of the service.
            token_file: file with the user's token; read again for every call.
            ca: PEM file with the authority of its certificate; None: the system knows it.
            workdir: folder for reports; default ./hpo-pilot.

        Raises:
            InputError: the URL or a file is wrong.
        """
        self.connection = Connection(url, token_file, ca)
        self.sender = SearchSender(self.connection)
        self.folder = WorkDir.at(workdir)

    def close(self) -> None:
        """Closes the connections."""
        self.connection.close()

    def ask(self, *words: str, query: Mapping[str, str | int] | None = None) -> Any:
        """Returns the document of a search, or of a part of it; see `path_of`."""
        return self.connection.ask("GET", path_of(*words), query=query)

    def get(self, *words: str) -> requests.Response:
        """Returns the answer about a search, or a part of it, which is not JSON."""
        return self.connection.call("GET", path_of(*words))

    def download(self, target: Path, *words: str, query: Mapping[str, str] | None = None) -> None:
        """Downloads a part of a search into a file."""
        self.connection.download(path_of(*words), target, query)

    def pages(
        self, identity: str, what: str, size: int, *, after: int = 0, query: Mapping[str, str] | None = None
    ) -> Iterator[Any]:
        """Yields the documents of trials by number; the first page is read at once, for its errors.

        Args:
            identity: the search.
            what: `trials` or `intermediate`.
            size: trials of a page.
            after: only trials with larger numbers.
            query: further parameters of the query.
        """

        def read(after: int) -> dict[str, Any]:
            found: dict[str, Any] = self.ask(identity, what, query={**(query or {}), "limit": size, "after": after})
            return found

        def documents(page: dict[str, Any]) -> Iterator[Any]:
            yield from page["trials"]
            while page["next"] is not None:
                page = read(page["next"])
                yield from page["trials"]

        return documents(read(after))

    def progress_calls(self, identity: str) -> Callable[[], ProgressDocument | None]:
        """Returns a function that returns the progress: at once, then after a change; None: there was none for long."""
        tag = ""

        def look() -> ProgressDocument | None:
            nonlocal tag
            answer = self.connection.call(
                "GET",
                path_of(identity, "progress"),
                query={"timeout": _WAIT_SECONDS},
                headers={"If-None-Match": tag} if tag else {},
            )
            if answer.status_code != requests.codes.ok:
                return None
            tag = answer.headers.get("ETag", "")
            return cast(ProgressDocument, answer.json())

        return look

    def change(self, path: str, identity: str, reached: Sequence[str]) -> Any:
        """Makes a change that leaves the search in one of the states `reached`; a lost answer is looked up there."""
        try:
            return self.connection.ask("POST", path, repeat=False)
        except LostAnswerError:
            # Look first: if the change was made, the service would refuse the same call.
            if (now := self.ask(identity))["state"] in reached:
                return now
            return self.connection.ask("POST", path, repeat=False)

    def perform(self, operation: Operation, fields: dict[str, Any]) -> Any:
        """Performs a declared operation and returns the document of its answer.

        Args:
            operation: the operation.
            fields: its arguments by name.
        """
        headers = None
        if operation.is_keyed:
            headers = {"Idempotency-Key": fields.pop("key") or secrets.token_urlsafe(24)}
        path = operation.path
        if (identity := fields.pop("identity", None)) is not None:
            path = path_of(identity) + path.removeprefix("searches/{identity}")
        if operation.reached:
            return self.change(path, identity, operation.reached)
        if operation.method == "GET":
            defaults = operation.fields()
            query = {name: value for name, value in fields.items() if value != defaults[name][1]}
            return self.connection.ask("GET", path, query=query)
        body = {name: _json_value(value) for name, value in fields.items()}
        return self.connection.ask(operation.method, path, json=body or None, headers=headers)

    def register(self, file: Path, *, go_on: bool) -> Any:
        """Registers the search of a file; a repeated call is the same one."""
        headers = {"Idempotency-Key": secrets.token_urlsafe(24)}
        query = {"source": str(file.absolute()), "go_on": "true" if go_on else "false"}
        return self.sender.send("searches", file, query, headers)

    def resume(self, identity: str, *, new_payload: bool, file: Path | None) -> Any:
        """Continues a search, with the present files of its payload if `new_payload` is set."""
        path = path_of(identity, "resume")
        if not new_payload:
            return self.change(path, identity, ("submitted", "running", "done"))
        query = {"new_payload": "true"}
        if (named := (search := self.ask(identity))["definition"]["payload"]["files"]) is not None:
            query["payload"] = self.sender.send_payload_of(search, named, file)
        # To send the same files again changes nothing.
        return self.connection.ask("POST", path, query=query)

    def extend(self, search: SearchDocument, changes: Mapping[str, float]) -> Any:
        """Adds to the budget of a search, once: the limits in its document let the service recognize a repetition."""
        body = {"add": dict(changes), "seen": {name: search["budget"].get(name) for name in changes}}
        return self.connection.ask("POST", path_of(search["name"], "extend"), json=body)


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def path_of(*words: str) -> str:
    """Returns the path of a search, or of a part of it; `words`: its name or number, then the part.

    Raises:
        InputError: a word cannot be a name or number.
    """
    for word in words:
        if not word.strip(".") or "/" in word or not word.isprintable():
            raise InputError(f"{word!r} is neither a name nor a number of a search or trial")
    return "/".join(["searches", *(quote(word, safe="") for word in words)])


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
        if not _names_results(source, content):
            mistake = f"write it plainly, as in `warm_start: [{source}]`", "hpo-pilot looks for this text in the file"
        if mistake is not None:
            wrong.append(_document(replace(place, message=mistake[0], suggestion=mistake[1])))
        paths[int(place.path.rpartition("[")[2].rstrip("]"))] = path
    if wrong:
        found["valid"], found["search"] = False, None
        found["problems"] = _in_order([*found["problems"], *wrong])
    return paths


def _names_results(source: str, content: bytes) -> bool:
    """Returns True if the search file contains `source`, plainly written, after `warm_start`.

    The service has read the file and says which files it names. Without this check a service could ask for any file of
    its users.
    """
    plain = rf"""\bwarm_start["']?\s*:.*?(?<![\w/.~-])(["']?){re.escape(source)}\1\s*(?:[,}}\]#]|$)"""
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
            with packed_into(path, folder) as archive:
                for name, file in payload_files(folder, without):
                    add_file(archive, name, file)
            with path.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise TryAgainError(f"cannot pack {folder} in {scratch}: {error.strerror or error}") from error
        yield path, digest
