"""Which Python a payload's command finds on this machine, and what it has for training."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

#: Asks a Python for versions without importing anything heavy.
_ASK = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_PATIENCE = 20.0  # seconds: a Python on a shared file system may start slowly


def python_on_path() -> str | None:
    """The Python that a command like `python train.py` starts."""
    return shutil.which("python") or shutil.which("python3")


def versions_in(python: str, names: Iterable[str]) -> dict[str, str]:
    """Versions of the packages that a Python has; nothing where it cannot tell."""
    try:
        done = subprocess.run([python, "-c", _ASK, *names], capture_output=True, timeout=_PATIENCE, check=True)
        found: dict[str, str] = json.loads(done.stdout)
        return found
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}  # a Python 3.7 or older, or one that does not answer


def built_horovods() -> list[tuple[Path, str]]:
    """What `make horovod` built on this machine, newest first: (its bin folder, what it is)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpo_pilot"
    found = []
    for path in cache.glob("horovod-*/horovod.json"):
        try:
            manifest = json.loads(path.read_text())
            what = f"{manifest['horovod']} with torch {manifest['torch']}"
            found.append((float(manifest["made"]), path.parent / "venv" / "bin", what))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # one that is being replaced
    return [(folder, what) for _, folder, what in sorted(found, reverse=True)]
