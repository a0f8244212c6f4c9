"""Files that a command cannot reach."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpo_pilot.transformation import landlock

pytestmark = pytest.mark.usefixtures("needs_landlock")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("state/own", "state/read", "data", "x"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("state/secret", "state/own/file", "state/read/file", "data/file", "token"):
        (tmp_path / name).write_text("x")
    (tmp_path / "data" / "link").symlink_to("../state/secret")
    (tmp_path / "out").symlink_to("state")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "works"),
    [
        ("cat data/file", True),
        ("echo 1 >data/new && cat data/new", True),
        ("mv data/file state/own/file", True),
        ("cat state/own/file && echo 1 >state/own/new", True),
        ("cat state/read/file", True),
        ("ls . state", True),
        ("echo 1 >/dev/null && python3 -c 0", True),
        ("echo 1 >state/read/file", False),
        ("cat token", False),
        ("cat state/secret", False),
        ("cat data/link", False),
        ("cat out/secret", False),
        (": >token", False),
        ("truncate -s 0 state/secret", False),
        ("python3 -c 'import os; os.truncate(\"token\", 0)'", landlock.version() < 3),  # Linux 6.2
        ("chmod 640 state/secret && touch state/secret", True),  # Landlock leaves these
        ("rm token", False),
        ("mv state x/", False),
        ("ln token data/t", False),
        ("echo 1 >state/own/../new", False),
        ("echo 1 >new", False),  # the gap
        ("mount -t tmpfs none x", False),
    ],
)
def test_what_a_command_can_reach(folder: Path, command: str, works: bool) -> None:
    given = {"hidden": [str(folder / "token"), str(folder / "out")]}
    given |= {"shown": [str(folder / "state" / "own")], "readable": [str(folder / "state" / "read"), "/missing"]}
    words = [sys.executable, "-I", "-S", landlock.__file__, json.dumps(given), "/bin/sh", "-c", command]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert (ended.returncode == 0) is works, ended.stderr


def test_why_files_cannot_be_hidden(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert landlock.trouble([str(folder / "token")]) == ""
    assert str(folder) in landlock.above([str(folder / "missing")])
    monkeypatch.setattr(landlock, "_MOST", 3)
    assert "entries" in landlock.trouble([str(folder / "token")])


def test_a_second_mount_of_a_hidden_folder_is_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = "1 1 8:1 / / rw\n2 1 8:2 / /gpfs rw\n3 1 8:2 /home /home\\040x rw\n4 1 8:2 /home/me/work/jobs /jobs rw\n"
    (tmp_path / "mountinfo").write_bytes(lines.encode() + b"5 1 8:3 / /\xff rw\n")  # no UTF-8
    opened = open
    monkeypatch.setattr(landlock, "open", lambda _, **how: opened(tmp_path / "mountinfo", **how), raising=False)
    assert landlock._everywhere(["/gpfs/home/me/work"]) == ["/gpfs/home/me/work", "/home x/me/work", "/jobs"]
