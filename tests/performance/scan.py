"""A search in a folder of its own, run by the real command."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

TRUE_LIKE = """echo '{"status": 0, "loss": 0.5}' > output.json"""


def write_search(folder: Path, **changes: Any) -> Path:
    """A search file; `changes` replace its sections."""
    document: dict[str, Any] = {
        "search": "bench",
        "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}, "y": {"type": "real", "low": 0.0, "high": 1.0}},
        "optimizer": "random",
        "payload": {"command": TRUE_LIKE},
        "resources": {"minutes": 1, "memory_mb": 200},
        **changes,
    }
    path = folder / "search.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def hpo_pilot(folder: Path, *arguments: str) -> str:
    """Runs a command in the folder; its output."""
    command = [sys.executable, "-m", "hpo_pilot.cli", *arguments, "--workdir", str(folder / "work")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: status {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result.stdout


def run(folder: Path, *options: str, **changes: Any) -> float:
    """Runs a search to its end; seconds from the command's start to its end."""
    path = write_search(folder, **changes)
    begun = time.perf_counter()
    hpo_pilot(folder, "run", str(path), *options)
    return time.perf_counter() - begun


def trials(folder: Path) -> list[Mapping[str, Any]]:
    """The trials of the search that ran."""
    found: list[Mapping[str, Any]] = json.loads(hpo_pilot(folder, "trials", "bench", "--json"))
    return found


def steady_rate(ends: list[float], first: int, last: int) -> float:
    """Trials per second between the `first` and the `last` trial to end."""
    ordered = sorted(ends)
    return (last - first) / (ordered[last - 1] - ordered[first - 1])
