"""What processes log: as text or as JSON, and without secrets."""

from __future__ import annotations

import datetime
import fcntl
import io
import json
import logging
import threading
import types

import pytest

from hpo_pilot import logs
from hpo_pilot.errors import InputError
from hpo_pilot.server.tokens import Role
from tests.bearer import token

LOG = logging.getLogger("hpo_pilot.test")


@pytest.fixture
def said(monkeypatch):
    """What is logged from here on; the root logger is left as it was."""
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    monkeypatch.setattr(logs, "sys", types.SimpleNamespace(stderr=stream))
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "")
    yield stream.getvalue
    root.handlers[:] = before
    root.setLevel(level)


def test_text_is_the_default(said):
    logs.configure_logging("pilot", level=logging.INFO)
    LOG.info("job %d ends", 7, extra={"panda_id": 7})
    assert said().endswith(" INFO hpo_pilot.test: job 7 ends\n")


def test_json_has_the_fields(said):
    logs.configure_logging("pilot", form="json", level=logging.INFO)
    with logs.about(search="demo", panda_id=7):
        LOG.warning('two\n"lines"', extra={"trial": 3, "panda_id": 8})
    LOG.info("after")
    try:
        raise ValueError("wrong")
    except ValueError:
        LOG.exception("a defect")
    first, after, defect = map(json.loads, said().splitlines())
    time = datetime.datetime.fromisoformat(first.pop("time"))
    assert time.utcoffset() == datetime.timedelta(0)
    assert abs(datetime.datetime.now(datetime.UTC) - time) < datetime.timedelta(seconds=30)
    assert first.pop("process") > 1
    assert first == {
        "level": "WARNING",
        "logger": "hpo_pilot.test",
        "message": 'two\n"lines"',
        "program": "pilot",
        "search": "demo",
        "trial": 3,
        "panda_id": 8,  # what an event says of itself counts
    }
    assert "search" not in after and "exception" not in after
    assert "ValueError: wrong" in defect["exception"]


def test_what_a_thread_is_about_is_its_own(said):
    logs.configure_logging("pilot", form="json", level=logging.INFO)
    with logs.about(panda_id=7):
        thread = threading.Thread(target=LOG.info, args=["elsewhere"])
        thread.start()
        thread.join()
    assert "panda_id" not in json.loads(said())


def test_the_variable_says_how_and_reaches_what_is_started(said, monkeypatch):
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "json")
    logs.configure_logging("service", level=logging.INFO)
    LOG.info("one")
    assert json.loads(said())["message"] == "one"
    monkeypatch.setenv(logs.FORMAT_VARIABLE, "xml")
    with pytest.raises(InputError, match="HPO_PILOT_LOG_FORMAT must be text or json, not 'xml'"):
        logs.configure_logging("service")
    logs.configure_logging("service", form="json")
    assert logs.os.environ[logs.FORMAT_VARIABLE] == "json"


def test_twice_configured_says_things_once(said):
    for _ in range(2):
        logs.configure_logging("service", level=logging.INFO)
    LOG.info("once")
    assert said().count("once") == 1


@pytest.mark.parametrize("form", logs.FORMATS)
def test_no_token_is_logged(said, form):
    secret = token("alice", Role.USER)
    logs.configure_logging("server", form=form, level=logging.INFO)
    LOG.info("GET https://host/login?token=opaque-1234&x=1 by alice")
    LOG.info("headers: %s", {"Authorization": f"Bearer {secret}", "Cookie": "a=b"})
    LOG.info("a token alone: %s", secret)
    LOG.info("Authorization: Basic dXNlcjpwYXNz, Bearer opaque-5678")
    LOG.info("store postgresql+psycopg://hpo:s3cret@db/hpo", extra={"url": "https://me:s3cret@host/x"})
    try:
        raise RuntimeError(f"refused: {secret}")
    except RuntimeError:
        LOG.exception("call failed")
    text = said()
    for hidden in (secret, *secret.split(".")[1:], "opaque-1234", "opaque-5678", "dXNlcjpwYXNz", "s3cret"):
        assert hidden not in text
    assert text.count("<token>") >= 6 and "&x=1 by alice" in text and "@db/hpo" in text
    if form == "json":
        assert len([json.loads(line) for line in text.splitlines()]) == 6


@pytest.mark.parametrize(
    "text",
    [
        "job 7 of user.me.demo.g1/ ends",
        "https://host:8443/searches/demo?after=3",
        "3:4@5",
        "eye.candy.x",
        "the token is refused",
    ],
)
def test_what_is_no_secret_stays(text):
    assert logs.without_secrets(text) == text


def test_a_log_file_is_looked_at_once_a_minute(tmp_path):
    file = logs.LogFile(tmp_path / "some.log", limit=10)
    with file.opened() as stream:
        stream.write(b"first line\nsecond\n")
    file.bound()
    assert not (tmp_path / "some.log.1").exists(), "it was looked at when it was opened"
    with file.opened() as stream:
        stream.write(b"third\n")
    assert (tmp_path / "some.log").read_bytes() == b"third\n"
    assert (tmp_path / "some.log.1").read_bytes() == b"second\n"
    assert logs.log_end(file.path, 4) == b"ird\n"


def test_a_log_file_that_another_process_cuts_is_left_to_it(tmp_path):
    path = tmp_path / "some.log"
    path.write_text("x" * 20)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        logs.LogFile(path, limit=10).bound()
    assert [entry.name for entry in tmp_path.iterdir()] == ["some.log"]
    logs.LogFile(path, limit=10).bound()
    assert path.read_bytes() == b""


def test_a_log_file_that_cannot_be_cut_is_said_and_stays(tmp_path, caplog):
    path = tmp_path / "some.log"
    path.write_text("a line\n" * 20)
    (tmp_path / "some.log.1").mkdir()
    logs.LogFile(path, limit=100).bound()
    assert f"the log {path} cannot be cut" in caplog.text
    assert path.read_text() == "a line\n" * 20
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["some.log", "some.log.1"]
