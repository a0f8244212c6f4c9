"""Whom the work folder lets in: its owner alone, and others as far as its owner says."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.steering.doctor import Finding, examine
from hpo_pilot.steering.server_processes import ChildProcess
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import Store


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """A user's usual one, of the more open kind."""
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Finding]:
    """What `doctor` says of who can look into a work folder."""
    monkeypatch.setattr("hpo_pilot.steering.doctor._training", lambda: ())
    monkeypatch.setattr("hpo_pilot.steering.doctor._panda_server", lambda _workdir: Finding("PanDA server", True, ""))

    def look(root: Path) -> Finding:
        (found,) = [finding for finding in examine(root, None) if finding.what == "privacy"]
        assert not found.needed
        return found

    return look


def filled(workdir: WorkDir) -> WorkDir:
    """With a store, a log, a packed payload and the folders of reports and pilots."""
    store = Store.open(workdir.store_url())
    assert store.searches() == []
    child = ChildProcess("child", ["true"], workdir.log("child"))
    child.start()
    child.stop()
    build_sandbox(None, {"command": "true"}, workdir.sandboxes)
    workdir.make_private(workdir.report("demo").parent, workdir.pilots)
    store.close()
    return workdir


def test_what_we_make_is_its_owner_s_alone(tmp_path: Path) -> None:
    workdir = WorkDir.make(tmp_path / "new" / "work")
    store = Store.open(workdir.store_url())
    store.searches()
    journals = [workdir.root / f"hpo-pilot.db{suffix}" for suffix in ("", "-wal", "-shm")]
    assert {path.name: mode(path) for path in journals} == {path.name: 0o600 for path in journals}
    store.close()
    filled(workdir)

    assert mode(workdir.root) == 0o700
    # Each by itself too: an owner may let others into the root, as a Pilot 3 of another account needs.
    folders = [workdir.log("child").parent, workdir.report("demo").parent, workdir.sandboxes, workdir.pilots]
    assert [mode(path) for path in folders] == [0o700] * 4
    assert mode(workdir.log("child")) == 0o600


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    root.chmod(0o750)
    database = root / "hpo-pilot.db"
    database.touch(0o640)
    Store.open(WorkDir.make(root).store_url()).close()
    assert (mode(root), mode(database)) == (0o750, 0o640)


def test_a_store_elsewhere_is_made_for_its_owner_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "folder" / "scan.db"
    Store.open(f"sqlite:///{path}").close()
    assert (mode(path.parent), mode(path)) == (0o700, 0o600)
    # No file or folder named `file:` is made.
    Store.open(f"sqlite:///file:{tmp_path}/named.db?uri=true").close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "named.db"]


def test_the_doctor_says_when_others_can_read_it(tmp_path: Path, looked_at: Callable[[Path], Finding]) -> None:
    root = tmp_path / "it's work"
    assert looked_at(root).ok, "made by doctor itself"
    workdir = filled(WorkDir.make(root))
    workdir.log("child").chmod(0o644)
    workdir.sandboxes.chmod(0o755)
    assert looked_at(root).ok, "nobody gets there"
    workdir.sandboxes.chmod(0o700)

    for open_mode in (0o755, 0o740, 0o770, 0o733):
        root.chmod(open_mode)
        found = looked_at(root)
        assert not found.ok
        assert f"mode {open_mode:04o}" in found.detail
    remedy(found)
    assert mode(root) == 0o700
    assert looked_at(root).ok

    # Let in, as deploy/README.md says for a Pilot 3 of another account: there is nothing that it can read.
    root.chmod(0o711)
    workdir.panda_files.mkdir(mode=0o711)
    assert looked_at(root).ok
    (root / "hpo-pilot.db").chmod(0o644)
    workdir.log("child").parent.chmod(0o755)
    found = looked_at(root)
    assert not found.ok
    assert "can read hpo-pilot.db, logs in" in found.detail
    remedy(found)
    assert looked_at(root).ok


def remedy(found: Finding) -> None:
    """Does what it says."""
    words = shlex.split(found.detail.partition(": ")[2])
    assert words[0] == "chmod"
    subprocess.run(words, check=True)
