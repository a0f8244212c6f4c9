"""Child processes and their logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpo_pilot import logs
from hpo_pilot.logs import LogFile
from hpo_pilot.steering.server_processes import ChildProcess

#: Writes 1000 numbered lines whenever a file `go<round>` appears; ends with its starter.
_WRITER = """
import os, pathlib, sys, time
number = 0
for turn in range(100):
    while not pathlib.Path(f"go{turn}").exists():
        time.sleep(0.01)
    for _ in range(1000):
        print(f"line {number:06d}", flush=True, file=sys.stderr if number % 2 else sys.stdout)
        number += 1
    pathlib.Path(f"done{turn}").touch()
"""
_ROUND = 1000 * len("line 000000\n")


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A child that writes, whose log is bounded to two rounds of it, and what lets it write another round."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logs, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr("hpo_pilot.steering.server_processes.LogFile", lambda path: LogFile(path, limit=2 * _ROUND))
    child = ChildProcess("writer", [sys.executable, "-c", _WRITER], tmp_path / "logs" / "writer.log")
    child.start()
    turns = iter(range(100))

    def write() -> None:
        turn = next(turns)
        Path(f"go{turn}").touch()
        end = time.monotonic() + 600
        while not Path(f"done{turn}").exists():
            assert time.monotonic() < end, child.last_line()
            time.sleep(0.01)

    yield child, write
    child.stop()


def numbers(*files: Path) -> list[int]:
    """Of the whole lines in files."""
    lines = "".join(file.read_text() for file in files).splitlines()
    assert all(line.startswith("line ") and len(line) == 11 for line in lines)
    return [int(line.removeprefix("line ")) for line in lines]


def test_its_log_is_cut_while_it_writes_on(writer: tuple[ChildProcess, Callable[[], None]]) -> None:
    child, write = writer
    log, old = child.log.path, child.log.path.with_name("writer.log.1")
    for turn in range(1, 9):
        write()
        assert not child.check()
        assert log.stat().st_size <= 2 * _ROUND
        found = numbers(*(file for file in (old, log) if file.exists()))
        # In order, nothing missing but the oldest, and of that no more than must be.
        assert found == list(range(found[0], 1000 * turn))
        assert len(found) >= min(turn * 1000, 2000)
        assert child.last_line() in ("", f"line {1000 * turn - 1:06d}")
    assert child.exit_code is None
    assert old.exists()
    assert sorted(file.name for file in log.parent.iterdir()) == ["writer.log", "writer.log.1"]
    assert {file.stat().st_mode & 0o777 for file in (log, old)} == {0o600}


def test_its_log_is_cut_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpo_pilot.steering.server_processes.LogFile", lambda path: LogFile(path, limit=100))
    path = tmp_path / "child.log"
    path.write_text("".join(f"line {number:06d}\n" for number in range(1000)))
    child = ChildProcess("child", ["/bin/echo", "at the end"], path)
    child.start()
    end = time.monotonic() + 600
    while child.exit_code is None and time.monotonic() < end:
        time.sleep(0.01)
    assert (child.exit_code, path.read_text(), child.last_line()) == (0, "at the end\n", "at the end")
    assert numbers(tmp_path / "child.log.1") == list(range(992, 1000))
    child.stop()
