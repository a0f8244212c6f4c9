"""A job as the server hands it out."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from hpo_pilot.errors import InputError
from hpo_pilot.pilot.failure import JobFailure, PilotErrorCode

#: Options of prun's job parameters that are followed by a value.
_WITH_VALUE = frozenset({"-a", "-o", "-p", "-j", "-r", "-i", "-l", "--sourceURL"})

_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"']+)+""")
_PART = re.compile(r""""([^"]*)"|'([^']*)'|([^\s"']+)""")


@dataclass(frozen=True)
class Job:
    """One attempt of a job.

    Attributes:
        archive: name of the sandbox in the server's cache; empty: none.
        source_url: of the server that has the sandbox.
        argv: the command, without any shell.
        outputs: file in the job folder -> name in the storage.
        log_name: of the log in the storage; empty: none wanted.
        container: image, file or unpacked root; empty: none.
        memory_mb: what it may use; 0: no limit.
        walltime: seconds that it may run; 0: no limit.
    """

    panda_id: int
    attempt: int
    task_id: int
    name: str
    archive: str
    source_url: str
    argv: tuple[str, ...]
    outputs: Mapping[str, str]
    log_name: str
    container: str
    memory_mb: int
    walltime: int
    cores: int


def identity(data: Mapping[str, Any]) -> tuple[int, int]:
    """PandaID and attempt number.

    Raises:
        InputError: the server's answer has none.
    """
    try:
        return int(data["PandaID"]), int(data.get("attemptNr") or 0)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the server handed out a job without a usable PandaID: {error!r}") from error


def parse_job(data: Mapping[str, Any]) -> Job:
    """Reads the server's dictionary (`jobdispatcher/Protocol.py` of panda-server 1.0.4).

    Raises:
        JobFailure: its parameters make no sense.
        InputError: it has not even an identity.
    """
    panda_id, attempt = identity(data)
    try:
        options = _options(split_words(str(data.get("jobPars") or "")))
        argv = tuple(split_words(unquote(options["-p"])))
        outputs = ast.literal_eval(options.get("-o") or "{}")
        if not argv or not isinstance(outputs, dict):
            raise ValueError("no command, or -o is no dictionary")
        archive = options.get("-a", "")
        if archive and ("/" in archive or archive in (".", "..")):
            raise ValueError(f"-a {archive!r} is no file name")
    except (ValueError, SyntaxError, KeyError, RecursionError) as error:
        raise JobFailure(
            PilotErrorCode.PAYLOAD_EXECUTION_FAILURE,
            f"job parameters make no sense: {error!r} in {data.get('jobPars')!r:.200}",
        ) from error
    return Job(
        panda_id=panda_id,
        attempt=attempt,
        task_id=_number(data.get("taskID")),
        name=str(data.get("jobName") or ""),
        archive=archive,
        source_url=options.get("--sourceURL", "").rstrip("/"),
        argv=argv,
        outputs={str(file): str(name) for file, name in outputs.items()},
        log_name=_text(data.get("logFile")),
        container=_text(data.get("container_name")),
        memory_mb=_number(data.get("minRamCount")),
        walltime=_number(data.get("maxWalltime")),
        cores=max(1, _number(data.get("coreCount"))),
    )


def split_words(text: str) -> list[str]:
    """`shlex.split`, which goes from character to character, in a hundredth of its time: points make long arguments."""
    words, end = [], 0
    for match in _WORD.finditer(text):
        words.append("".join(a or b or c for a, b, c in _PART.findall(match[0])))
        if text[end : match.start()].strip(" \t\r\n"):
            return shlex.split(text)
        end = match.end()
    # Escapes and open quotes: shlex knows, or says what is wrong.
    return shlex.split(text) if "\\" in text or text[end:].strip(" \t\r\n") else words


def _options(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word in _WITH_VALUE:
            found[word] = next(rest, "")
        elif word.startswith("--sourceURL="):
            found["--sourceURL"] = word.partition("=")[2]
    return found


def _text(value: object) -> str:
    return "" if value in (None, "NULL") else str(value)


def _number(value: object) -> int:
    try:
        return max(0, int(str(value)))
    except ValueError:  # PanDA's empty values: None, "NULL", ""
        return 0
