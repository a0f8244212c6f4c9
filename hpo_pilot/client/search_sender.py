"""Sending a search file and its payload to a service."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from hpo_pilot.client.connection import Connection
from hpo_pilot.client.documents import ExaminationDocument, ProblemDocument, StatusDocument
from hpo_pilot.client.payload_archive import packed_payload
from hpo_pilot.config.file_content import read_content
from hpo_pilot.config.payload_files import folder_mistake, missing_programs
from hpo_pilot.config.problem import Problem, SearchFileError
from hpo_pilot.config.result_path import result_mistake, result_path
from hpo_pilot.errors import InputError

_YAML = {"Content-Type": "application/yaml"}

#: Seconds for the service to answer once a payload is sent, or a search: it packs sandboxes.
_LONG = 600.0


@dataclass(frozen=True)
class SentExamination:
    """What was found in a search file.

    Attributes:
        document: what users are shown.
        content: the file's bytes.
        folder: the payload's folder; None: it has none, or the file is wrong.
        results: the result files that `warm_start` names, by their place in it.
    """

    document: ExaminationDocument
    content: bytes
    folder: Path | None = None
    results: Mapping[int, Path] = field(default_factory=dict)


class SearchSender:
    """Search files on their way to a service.

    The service reads the file and finds its mistakes; what the file names on this machine is looked at here.
    """

    def __init__(self, service: Connection) -> None:
        """Sends to `service`."""
        self._service = service

    def examine(self, file: Path) -> SentExamination:
        """Checks a search file.

        Raises:
            InputError: the file does not plainly name the payload's folder.
            TryAgainError: the service is out of reach.
        """
        content = read_content(file, str(file))
        if isinstance(content, Problem):
            wrong: ExaminationDocument = {
                "valid": False,
                "problems": [_document(content)],
                "notes": [],
                "search": None,
                "python": None,
            }
            return SentExamination(wrong, b"")
        found = self._service.ask("POST", "examinations", query={"file": str(file)}, headers=_YAML, body=content)
        named = found.pop("named_files")
        if named is None:
            return SentExamination(found, content)
        results = _looked_at(found, named["results"], content, file)
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
            wrong = {
                "valid": False,
                "problems": _in_order(problems),
                "notes": found["notes"],
                "search": None,
                "python": None,
            }
            return SentExamination(wrong, content)
        for word in missing_programs(named["files"], named["command"], file.parent):
            note = replace(command, message=f"{word} is not in {named['files']}", suggestion="is the name right?")
            found["notes"] = _in_order([*found["notes"], _document(note)])
        return SentExamination(found, content, folder, results)

    def send(
        self, path: str, file: Path, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Sends a search file to a path of the API, its payload first; returns the answer.

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
        """Sends the payload's folder of a search that was submitted before; returns its digest.

        Args:
            search: the search.
            files: its `payload.files`.
            file: the search file; None: where the service says that it was submitted from.

        Raises:
            InputError: the files are not on this machine.
        """
        again = f"`hpo-pilot resume {search['name']} --new-payload --file FILE` names the search file"
        if file is None:
            file = Path(search["source"])
            # The service's word is good enough for files in this folder, as those that were submitted here mostly are.
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
        """Sends a folder without the search file, unless the service has it; returns its digest."""
        with packed_payload(folder, without=file) as archive:
            path = f"payloads/{archive.digest}"
            if not self._service.ask("GET", path)["present"]:
                self._service.call(
                    "PUT",
                    path,
                    headers={"Content-Type": "application/gzip"},
                    body=lambda: archive.path.open("rb"),
                    timeout=_LONG,
                )
            return archive.digest


def _document(problem: Problem) -> ProblemDocument:
    return cast(ProblemDocument, asdict(problem))


def _in_order(problems: list[ProblemDocument]) -> list[ProblemDocument]:
    return sorted(problems, key=lambda problem: (problem["line"] or 0, problem["column"] or 0))


def _looked_at(found: ExaminationDocument, named: list[dict[str, Any]], content: bytes, file: Path) -> dict[int, Path]:
    """The result files that a search file names, by their place in `warm_start`; what is wrong with them is told."""
    paths: dict[int, Path] = {}
    wrong: list[ProblemDocument] = []
    for entry in named:
        source, place = entry["source"], Problem(**entry["place"])
        path = result_path(source, file.parent)
        mistake = result_mistake(path)
        if not _stands_there("warm_start", source, content):
            mistake = f"write it plainly, as in `warm_start: [{source}]`", "it is looked for as it stands there"
        if mistake is not None:
            wrong.append(_document(replace(place, message=mistake[0], suggestion=mistake[1])))
        paths[int(place.path.rpartition("[")[2].rstrip("]"))] = path
    if wrong:
        found["valid"], found["search"] = False, None
        found["problems"] = _in_order([*found["problems"], *wrong])
    return paths


def _stands_there(key: str, text: str, content: bytes) -> bool:
    """Whether the search file plainly has this text somewhere after this key.

    The service has read the file, and says what it names; only what plainly stands there is taken from its word:
    otherwise a service could ask for any file of its users.
    """
    plain = rf"""\b{key}["']?\s*:.*?(?<![\w/.~-])(["']?){re.escape(text)}\1\s*(?:[,}}\]#]|$)"""
    return re.search(plain, content.decode("utf-8-sig", "replace"), re.MULTILINE | re.DOTALL) is not None


def _named_folder(files: str, content: bytes, file: Path) -> Path:
    """The payload's folder.

    The service has read the file, and says what it names; only what plainly stands there is taken from its word:
    otherwise a service could ask for any folder of its users.

    Raises:
        InputError: it does not stand there.
    """
    text = content.decode("utf-8-sig", "replace")
    plain = rf"""\bfiles["']?\s*:\s*(["']?){re.escape(files)}\1\s*(?:[,}}#]|$)"""
    if not re.search(plain, text, re.MULTILINE):
        raise InputError(
            f"{file}: write payload.files plainly, as in `files: {files}`; it is looked for as it stands there"
        )
    try:
        return (file.parent / Path(files).expanduser()).resolve()
    except RuntimeError as error:  # no such user's home
        raise InputError(f"{file}: payload.files: {error}") from error
