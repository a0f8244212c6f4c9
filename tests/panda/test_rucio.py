"""Files of Rucio's, through a client that is there, or is not."""

from __future__ import annotations

import os
import stat

import pytest

from hpo_pilot.errors import GiveUpError, InputError, TryAgainError
from hpo_pilot.panda.rucio import download, download_command, is_did, missing_client

FAKE = """#!/bin/sh
echo "$RUCIO_ACCOUNT" "$@" >> "$FAKE_LOG"
[ "$FAKE_STATUS" = 0 ] || {{ echo "no replicas"; exit "$FAKE_STATUS"; }}
[ "$FAKE_FILES" = 0 ] || echo content > "$4/${{5##*:}}"
"""


@pytest.fixture
def rucio(tmp_path, monkeypatch):
    """A client that answers as it is told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "rucio"
    script.write_text(FAKE.format())
    script.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("RUCIO_ACCOUNT", raising=False)
    for name, value in (("FAKE_LOG", str(tmp_path / "log")), ("FAKE_STATUS", "0"), ("FAKE_FILES", "1")):
        monkeypatch.setenv(name, value)
    return tmp_path / "log"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("user.me:user.me.x.77._000501.outputs.tar.gz", True),
        ("mc20_13TeV:mc20_13TeV.1234.deriv.DAOD", True),
        ("user.me.77._000001.outputs.tar.gz", False),
        ("https://example.org/x", False),
        ("root://eos.cern.ch//eos/x", False),
        ("/data/a:b", False),
        ("a:", False),
    ],
)
def test_what_rucio_has_is_known_by_its_name(name, wanted):
    assert is_did(name) is wanted


def test_a_file_comes_whole(rucio, tmp_path):
    download("user.me:file.tgz", tmp_path / "to" / "here.tgz")
    assert (tmp_path / "to" / "here.tgz").read_text() == "content\n"
    assert list((tmp_path / "to").iterdir()) == [tmp_path / "to" / "here.tgz"]
    account, *command = rucio.read_text().split()
    assert account == "me"
    assert command[:3] == download_command("user.me:file.tgz", "x")[1:4]
    assert command[-1] == "user.me:file.tgz"


def test_an_account_of_one_s_own_stays(rucio, tmp_path, monkeypatch):
    monkeypatch.setenv("RUCIO_ACCOUNT", "boss")
    download("user.me:file.tgz", tmp_path / "file")
    assert rucio.read_text().split()[0] == "boss"


def test_failures_say_what_rucio_said(rucio, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_STATUS", "3")
    with pytest.raises(TryAgainError, match="status 3: no replicas"):
        download("user.me:file.tgz", tmp_path / "file")
    monkeypatch.setenv("FAKE_STATUS", "0")
    monkeypatch.setenv("FAKE_FILES", "0")
    with pytest.raises(GiveUpError, match="fetched 0 files"):
        download("user.me:file.tgz", tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_without_a_client_the_commands_are_given(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    error = missing_client({1: "user.me:b", 0: "user.me:a"}, tmp_path)
    assert error is not None
    assert str(error).splitlines()[1:] == [
        f"  rucio download --no-subdir --dir {tmp_path} user.me:a",
        f"  rucio download --no-subdir --dir {tmp_path} user.me:b",
    ]
    with pytest.raises(InputError, match="rucio download"):
        download("user.me:a", tmp_path / "file")
