"""What the parts of the recording share: a work folder kept as data, and the same story told by the code of today."""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.command_here import command_here
from tests.recorded.neutral import Neutral
from tests.recorded.scenario import Story
from tests.recorded.service import Service

DATA = Path(__file__).parent / "data"
ARCHIVE = DATA / "work.tar.xz"
#: What of a story's folder is kept: its databases and files, and no tokens or keys.
_KEPT = (
    *("training", "work/hpo-pilot.db", "work/panda.db", "work/sandboxes"),
    *("work/panda-files/cache", "work/panda-files/storage"),
)
#: Commands that look at no store.
_WITHOUT_WORKDIR = ("sites", "import", "steer")

#: The parts of the recording by name: what each records now.
PARTS: dict[str, Callable[[Stage], dict[str, Any]]] = {}


def part(function: Callable[[Stage], dict[str, Any]]) -> Callable[[Stage], dict[str, Any]]:
    """Declares a part; its name is the function's."""
    PARTS[function.__name__] = function
    return function


class Stage:
    """A session's folders and processes; a context manager that ends them."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.root = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="recorded-")))

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def folder(self, name: str) -> Path:
        path = self.root / name
        path.mkdir()
        return path

    @cached_property
    def story(self) -> Story:
        """Told once, by the code of today; its service runs on."""
        story = self._stack.enter_context(Story(self.folder("story")))
        story.tell()
        return story

    def kept(self, name: str) -> Kept:
        """A copy of the kept work folder."""
        return Kept(self.folder(name))

    @cached_property
    def reading(self) -> Kept:
        """The kept folder for all that only look."""
        return self.kept("reading")

    @cached_property
    def served(self) -> Service:
        """A service on another copy of the kept folder; no pilot is there, so nothing changes."""
        return self._stack.enter_context(Service(self.kept("served").workdir, "--log-format", "json"))


class Kept:
    """The kept folder unpacked; commands run in it, in this process."""

    def __init__(self, root: Path) -> None:
        self.root, self.workdir = root, root / "work"
        with tarfile.open(ARCHIVE) as packed:
            packed.extractall(root, filter="data")
        self.was: dict[str, str] = json.loads((root / "was.json").read_text())
        _move(self.workdir / "hpo-pilot.db", self.was["root"], str(root))
        _make_young(self.workdir / "panda.db", float(self.was["time"]))
        names = {str(root): "<folder>", self.was["root"]: "<folder>"}
        self.neutral = Neutral(names, self.was["user"])

    def run(self, *words: str) -> tuple[int, str, str]:
        where = () if words[0] in _WITHOUT_WORKDIR else ("--workdir", str(self.workdir))
        done = command_here(*words, *where, cwd=self.root)
        return done.returncode, done.stdout, done.stderr

    def json(self, *words: str) -> dict[str, Any]:
        """Exit status and document of a command with --json."""
        status, out, err = self.run(*words, "--json")
        return {"status": status, "json": self.neutral(json.loads(out)) if out else None, "said": bool(err)}


def _move(path: Path, old: str, new: str) -> None:
    """Changes the paths in a store as if the folder had been there from the beginning."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for column in ("source", "sandbox"):
            database.execute(f"UPDATE searches SET {column} = replace({column}, ?, ?)", (old, new))


def _make_young(path: Path, recorded: float) -> None:
    """Moves the times in a server's database to the present: what has been over for a year goes."""
    later = time.time() - recorded
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for _, column, kind, *_ in database.execute(f"PRAGMA table_info({table})").fetchall():
                if kind.upper() in ("FLOAT", "REAL", "DOUBLE"):
                    database.execute(f"UPDATE {table} SET {column} = {column} + ? WHERE {column} > 1.5e9", (later,))


def keep(story: Story) -> None:
    """Writes the data file of a story whose service has ended."""
    for name in ("hpo-pilot.db", "panda.db"):
        with contextlib.closing(sqlite3.connect(story.workdir / name)) as database:
            database.execute("PRAGMA journal_mode=DELETE")
            database.execute("VACUUM")
    was = json.dumps({"root": str(story.root), "time": str(time.time()), "user": getpass.getuser()}).encode()
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as packed:
        info = tarfile.TarInfo("was.json")
        info.size = len(was)
        packed.addfile(info, io.BytesIO(was))
        for name in (*_KEPT, *(path.name for path in sorted(story.root.glob("*.yaml")))):
            packed.add(story.root / name, name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def definition(name: str, **changes: Any) -> str:
    """A search file's text."""
    document = {
        "search": name,
        "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
        "optimizer": "random",
        "budget": {"trials": 4, "parallel": 2},
        "payload": {"files": "training", "command": "python3 train.py"},
        "resources": {"minutes": 10, "memory_mb": 500},
    }
    return yaml.safe_dump({**document, **changes}, sort_keys=False)
