"""containers/build_root.py without pip and mmdebstrap, which `make test-real` has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.image_root import SCRIPT, build_root


def start(target: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(SCRIPT), str(target), *options]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def test_what_is_there_is_left_alone(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "mine").touch()
    done = start(tmp_path / "root")
    assert done.returncode == 1
    assert "is there already: remove it first" in done.stderr
    assert list(tmp_path.rglob("*")) == [tmp_path / "root", tmp_path / "root" / "mine"]


def test_without_mmdebstrap_it_says_what_to_install(tmp_path):
    done = start(tmp_path / "root", "--base", "debian", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "apt-get install mmdebstrap" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_failed_pip_leaves_nothing(tmp_path, monkeypatch):
    script = build_root()
    monkeypatch.setitem(script.BASES, "machine", lambda root: root / "packages")
    (tmp_path / "requirements.txt").write_text("this is no requirement\n")
    with pytest.raises(script.RootError, match="pip failed"):
        script.build(tmp_path / "root", "machine", [tmp_path / "requirements.txt"])
    assert [path.name for path in tmp_path.iterdir()] == ["requirements.txt"]


def test_the_target_appears_when_all_is_done(tmp_path, monkeypatch):
    script = build_root()

    def base(root: Path) -> Path:
        assert not (tmp_path / "root").exists()
        (root / "etc").mkdir()
        (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
        (root / "etc" / "group").write_text("root:x:0:\n")
        return root / "packages"

    monkeypatch.setitem(script.BASES, "machine", base)
    script.build(tmp_path / "root", "machine", [])
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert "payload:x:1000:" in (tmp_path / "root" / "etc" / "passwd").read_text()
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "root" / "tmp").stat().st_mode & 0o7777 == 0o1777


def test_a_library_of_the_machine_is_found_as_programs_find_it():
    script = build_root()
    found = script.system_library("libc.so.6")
    assert found is not None and found.name == "libc.so.6" and found.exists()
    assert script.system_library("libno-such.so.1") is None
