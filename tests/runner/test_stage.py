"""hpo_pilot_stage.py, as a launcher starts it on a node."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "hpo_pilot" / "runner" / "hpo_pilot_stage.py"
FOLDER = "hpo-pilot-7-abcd-until-99999999999"


class Node:
    """One node: its scratch, and what is asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / "scratch" / "n1"
        self.scratch.mkdir(parents=True)
        self.staged = self.scratch / FOLDER
        self.limits: dict[int, int] = {}

    def wanted(self, path: Path, key: str = "", *, archive: bool = False, **said: Any) -> dict[str, Any]:
        about = path.stat()
        key = key or f"k{about.st_ino}-{about.st_size}"
        found = {"key": key, "name": "copy.sif", "source": str(path), "size": about.st_size}
        return {**found, "mtime_ns": about.st_mtime_ns, "is_archive": archive, **said}

    def run(self, what: str, *copies: dict[str, Any], **said: Any) -> dict[str, Any]:
        request = {"scratch": f"{self.folder}/scratch/$SLURMD_NODENAME", "folder": FOLDER, "variables": {}, "limit": 0}
        path = self.folder / f"request-{time.monotonic_ns()}"
        path.write_text(json.dumps({**request, "copies": copies, **said}))

        def limit() -> None:
            for which, value in self.limits.items():
                resource.setrlimit(which, (value, value))

        done = subprocess.run(
            [sys.executable, "-I", "-S", PROGRAM, what, path],
            env={"SLURMD_NODENAME": "n1"},
            capture_output=True,
            text=True,
            check=True,
            preexec_fn=limit,
        )
        (line,) = [line for line in done.stdout.splitlines() if line]
        answer: dict[str, Any] = json.loads(line.removeprefix("hpo_pilot_stage: "))
        assert answer["node"] == "n1"
        return answer

    def failure(self, *copies: dict[str, Any], **said: Any) -> str:
        """Why none of them is copied, which leaves nothing behind."""
        answer = self.run("copy", *copies, **said)
        assert not answer["there"]
        assert not self.staged.is_dir() or not list(self.staged.iterdir())
        (why,) = set(answer["failed"].values())
        return str(why)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image.sif"
    path.write_bytes(b"image" * 1000)
    path.chmod(0o755)
    return path


def test_a_file_is_copied_once(node, image):
    first = node.run("copy", node.wanted(image))
    (path,) = map(Path, first["there"].values())
    assert path.is_relative_to(node.staged) and path.name == "copy.sif" and path.read_bytes() == image.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o555 and path.stat().st_mtime_ns == image.stat().st_mtime_ns
    assert node.staged.stat().st_mode & 0o777 == 0o700
    inode = path.stat().st_ino
    assert node.run("copy", node.wanted(image)) == first and path.stat().st_ino == inode


def test_a_folder_comes_as_an_archive(node, tmp_path):
    root = tmp_path / "root"
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / "tool").write_text("#!/bin/sh\n")
    (root / "usr" / "bin" / "tool").chmod(0o4755)
    (root / "bin").symlink_to("/usr/bin")
    (root / "usr").chmod(0o555)
    with tarfile.open(tmp_path / "root.tar", "w") as packed:
        packed.add(root, "")
    answer = node.run("copy", node.wanted(tmp_path / "root.tar", archive=True))
    (path,) = map(Path, answer["there"].values())
    assert (path / "bin").readlink() == Path("/usr/bin") and (path / "usr").stat().st_mode & 0o777 == 0o555
    assert (path / "usr" / "bin" / "tool").stat().st_mode & 0o7777 == 0o4755
    assert node.run("remove") == {"there": {}, "node": "n1"}
    assert not list(node.scratch.iterdir()), "although a folder of it cannot be written"


def test_what_fails_leaves_nothing(node, image):
    wanted = node.wanted(image)
    node.limits[resource.RLIMIT_FSIZE] = 1000
    assert "too large" in node.failure(wanted)  # EFBIG in the middle of the copy, as ENOSPC comes
    node.limits.clear()
    assert "changed while it was copied" in node.failure({**wanted, "mtime_ns": 1})
    assert "No such file" in node.failure({**wanted, "source": str(image) + "x"})
    assert re.search(r"has \d+ MB to spare", node.failure({**wanted, "key": f"k-{1 << 60}", "size": 1 << 60}))
    assert "more than --staging-mb" in node.failure(wanted, limit=4999)
    assert node.run("copy", wanted, limit=5000)["there"]


def test_a_failed_copy_does_not_stop_the_others(node, image):
    good, bad = node.wanted(image), {**node.wanted(image, "other-5000"), "source": "/nowhere"}
    answer = node.run("copy", bad, good)
    assert list(answer["there"]) == [good["key"]] and list(answer["failed"]) == ["other-5000"]


@pytest.mark.parametrize(
    ("scratch", "why"),
    [("/nowhere/$SLURMD_NODENAME", "no folder /nowhere/n1"), ("/x/${NVME}", r"names $NVME, which is not set")],
)
def test_a_scratch_that_is_missing(node, image, scratch, why):
    assert why in node.failure(node.wanted(image), scratch=scratch)


def test_the_nodes_own_variables_come_first(node, image):
    said = {
        "scratch": f"{node.folder}/$KIND/$SLURMD_NODENAME",
        "variables": {"KIND": "scratch", "SLURMD_NODENAME": "n7"},
    }
    assert node.run("copy", node.wanted(image), **said)["there"]


def _open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def _a_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    folder.symlink_to(folder.parent / "elsewhere")


@pytest.mark.parametrize("make", [_open_to_all, _a_link])
def test_a_folder_that_others_could_fill(node, image, make):
    """In /tmp anybody can make one of any name."""
    make(node.staged)
    assert "is another user's" in node.failure(node.wanted(image))
    node.run("remove")
    assert node.staged.exists()


def test_what_killed_pilots_left_goes_when_their_time_is_over(node, image):
    now = int(time.time())
    names = {
        f"hpo-pilot-6-ab-until-{now - 4000}": False,
        f"hpo-pilot-6-ab-until-{now - 1000}": True,  # clocks differ
        f"hpo-pilot-6-ab-until-{now + 4000}": True,
        "hpo-pilot-mine": True,
    }
    for name in names:
        (node.scratch / name).mkdir(mode=0o700)
        (node.scratch / name / "file").touch()
    node.run("copy", node.wanted(image))
    assert {name: (node.scratch / name).exists() for name in names} == names


def test_only_its_own_folder_is_removed(node):
    (node.scratch / "data").mkdir(mode=0o700)
    node.run("remove", folder="data")
    node.run("remove", folder="../n1")
    assert (node.scratch / "data").is_dir()


def test_concurrent_copies_make_one_file(node, image):
    path = node.folder / "request"
    request = {"scratch": str(node.scratch), "folder": FOLDER, "variables": {}, "limit": 0}
    path.write_text(json.dumps({**request, "copies": [node.wanted(image)]}))
    processes = [
        subprocess.Popen([sys.executable, "-I", "-S", PROGRAM, "copy", path], stdout=subprocess.PIPE, env=os.environ)
        for _ in range(6)
    ]
    said = [process.communicate(timeout=600)[0] for process in processes]
    assert all(b'"failed": {}' in text for text in said)
    assert [entry.name for entry in node.staged.iterdir()] == [node.wanted(image)["key"]]
