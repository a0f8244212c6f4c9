"""Writes the databases of this release and what commands say of them: `python -m tests.databases.record`.

It runs two searches: one with folds, failed trials, a note and tags; one with levels, which can be extended.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hpo_pilot import __version__

HERE = Path(__file__).parent
_TRAINING = """
import json, os, sys
point = json.load(open("input.json"))
if point["x"] < 0.1:
    sys.exit("x is too small")
print(point["x"] ** 2 + int(os.environ.get("HPO_PILOT_FOLD", 0)) / 100)
"""
_PAYLOAD = {"files": "training", "command": "python3 train.py", "result": {"stdout": r"([\d.e-]+)"}}
_COMMON: dict[str, Any] = {
    "space": {"x": {"type": "real", "low": 0, "high": 1}, "kind": {"type": "categorical", "choices": ["a", "b"]}},
    "optimizer": "random",
    "seed": 1,
    "payload": _PAYLOAD,
    "resources": {"cores": 1, "memory_mb": 500, "minutes": 5},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "folded": {"folds": 2, "budget": {"trials": 6, "parallel": 2}},
    "levels": {"fidelity": {"epochs": {"low": 1, "high": 4, "eta": 2}}, "budget": {"trials": 8, "parallel": 2}},
}

#: Commands whose answers are kept; a later version answers the same from the upgraded store.
QUESTIONS = ("list", "trials folded", "trials levels", "best folded", "best levels", "log folded")


def command(folder: Path, *words: str) -> str:
    """Runs hpo-pilot in a folder; returns what it prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HPO_PILOT_")}
    argv = [Path(sys.executable).with_name("hpo-pilot"), *words, "--workdir", str(folder / "work")]
    done = subprocess.run(
        argv, cwd=folder, env={**kept, "PATH": path, "NO_COLOR": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def main() -> None:
    """Runs the searches, and keeps the databases as SQL and what commands say of them as JSON."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "training").mkdir()
        (folder / "training" / "train.py").write_text(_TRAINING)
        said: dict[str, list[Any]] = {}
        for search, keys in SEARCHES.items():
            (folder / f"{search}.yaml").write_text(json.dumps({"search": search, **_COMMON, **keys}))
            command(folder, "run", f"{search}.yaml")
        command(folder, "note", "folded", "a note", "--tags", "kept")
        for words in QUESTIONS:
            said[words] = json.loads(command(folder, *words.split(), "--json"))
        places = {str(folder): "/recorded", socket.gethostname(): "node"}
        for database, kind in (("hpo-pilot.db", "store"), ("panda.db", "server")):
            with contextlib.closing(sqlite3.connect(folder / "work" / database)) as connection:
                text = "\n".join(connection.iterdump())
            for place, neutral in places.items():
                text = text.replace(place, neutral)
            (HERE / f"{kind}_{__version__}.sql").write_text(text + "\n")
        text = json.dumps(said).replace(socket.gethostname(), "node").replace(str(folder), "/recorded")
        (HERE / f"said_{__version__}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
