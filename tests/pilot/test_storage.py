"""Where outputs and logs go, and what the server is told of them."""

from __future__ import annotations

import io
import json
import tarfile
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import TryAgainError
from hpo_pilot.pilot.client import PilotTokenRefused
from hpo_pilot.pilot.job import Job, JobFailure, PilotErrorCode, parse_job
from hpo_pilot.pilot.job_files import FolderStorage, ServerStorage, Storage, store_log, store_outputs


class Server(Storage):
    """A server that keeps files."""

    wants_every_log = False

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def keep(self, name: str, content: Path | bytes) -> str:
        self.kept[name] = content
        return ""


@pytest.fixture
def folder(tmp_path):
    work = tmp_path / "job"
    work.mkdir()
    (work / "out.txt").write_text("result")
    (work / "payload.log").write_text("said the payload")
    (work / "runner.log").write_text("said the runner")
    return work


def made(outputs: str, **more: Any) -> Job:
    return parse_job({"PandaID": 7, "jobPars": f'-o "{outputs}" -p "true"', **more})


@pytest.fixture
def job():
    return made("{'out.txt': 'user.me.5._000001.out.txt'}", logFile="user.me.log.5.000001.log.tgz")


def test_a_real_server_is_told_of_outputs_and_log(folder, job, tmp_path):
    stored = store_outputs(FolderStorage(tmp_path / "site"), job, folder)
    assert sorted(stored) == ["user.me.5._000001.out.txt", "user.me.log.5.000001.log.tgz"]
    for name, entry in json.loads(json.dumps(stored)).items():
        content = (tmp_path / "site" / name).read_bytes()
        assert entry["fsize"] == len(content)
        assert entry["adler32"] == f"{zlib.adler32(content):08x}"
        assert entry["surl"] == (tmp_path / "site" / name).as_uri()
        assert entry["guid"]
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == sorted(stored), "a part was left"


def test_the_log_is_an_archive_of_what_was_said(folder, job):
    server = Server()
    assert list(store_log(server, job, folder)) == [job.log_name]
    with tarfile.open(fileobj=io.BytesIO(server.kept[job.log_name])) as archive:
        said = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert said == {"payload.log": b"said the payload", "runner.log": b"said the runner"}


def test_a_missing_output_fails_the_job_unless_its_task_allows_that(folder):
    outputs = "{'out.txt': 'user.me.9.out.txt', 'gone': 'user.me.9.gone'}"
    server = Server()
    with pytest.raises(JobFailure, match="the output gone was not made") as caught:
        store_outputs(server, made(outputs), folder)
    assert caught.value.code is PilotErrorCode.MISSING_OUTPUT and not server.kept
    assert list(store_outputs(server, made(outputs, allowNoOutput="user.me.9.gone"), folder)) == ["user.me.9.out.txt"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", ".hidden", ""])
def test_a_name_leads_nowhere_else(name, tmp_path):
    with pytest.raises(JobFailure, match="is not a valid file name"):
        FolderStorage(tmp_path / "site").keep(name, b"x")
    assert not list(tmp_path.rglob("x"))


def test_a_folder_that_cannot_be_written_fails_the_job_with_the_remedy(tmp_path):
    (tmp_path / "site").write_text("a file")
    with pytest.raises(JobFailure, match="--storage"):
        FolderStorage(tmp_path / "site").keep("name", b"x")


@pytest.mark.parametrize("trouble", [TryAgainError("away"), PilotTokenRefused("its token is under renewal")])
def test_a_pilot_that_ends_at_once_does_not_wait_for_a_server_that_is_away(folder, job, trouble):
    at_once, tries = threading.Event(), []

    class Away:
        def upload(self, name: str, _content: Path | bytes) -> None:
            tries.append(name)
            if len(tries) == 2:
                at_once.set()
            raise trouble

    assert store_log(ServerStorage(Away(), at_once), job, folder) == {}  # type: ignore[arg-type]
    assert len(tries) == 2
