"""Commands in the tests' own process, in an empty folder, and searches that they look at."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo_pilot.operations.client import SearchClient
from tests.command_here import command_here
from tests.rest_api import store_of


def command(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command, which must end with this status."""
    result = command_here(*words)
    assert result.returncode == status, (result.returncode, result.stdout, result.stderr)
    return result


def printed(*words: str) -> str:
    """What a command writes to stdout, on one line."""
    return " ".join(command(*words).stdout.split())


def refused(*words: str) -> str:
    """What a command that is refused says."""
    return command(*words, status=2).stderr


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in; no variable names a store, a service or a server."""
    for name in ("HPO_PILOT_STORE", "HPO_PILOT_SERVICE", "HPO_PILOT_TOKEN_FILE", "PANDA_URL_SSL", "PANDA_AUTH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def work(folder: Path) -> Path:
    """The work folder where commands look for one, with an empty store."""
    store_of(folder / "hpo-pilot").close()
    return folder / "hpo-pilot"


@pytest.fixture
def client(work: Path) -> Iterator[SearchClient]:
    """What commands call, on that work folder."""
    with SearchClient.local(work) as opened:
        yield opened
