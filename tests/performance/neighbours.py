"""What a search costs its neighbours: the time to a user's four trials beside another's search, as wide as may be.

Both are steered by one `hpo-pilot serve` with two slots. The peer is the same service with the four trials alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.performance.scan import hpo_pilot, write_search

_PATIENCE = 600.0


def measure(*, quick: bool) -> dict[str, Any]:
    """Seconds, and the largest resident sets of the service's processes on the way."""
    alone, _ = _served()
    widest = {"folds": 1000, "budget": {"trials": 300, "parallel": 20 if quick else 150}}
    beside, peaks = _served(widest)
    print(f"4 trials alone                      {alone:6.1f} s from the start of the service")
    print(f"4 trials beside {widest['budget']['parallel']} x 1000 folds     {beside:6.1f} s")
    print("largest processes                   " + ", ".join(f"{name} {mb:.0f} MB" for name, mb in peaks.items()))
    return {"alone": alone, "beside": beside, "megabytes": peaks}


def _served(neighbour: dict[str, Any] | None = None) -> tuple[float, dict[str, float]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if neighbour:
            hpo_pilot(folder, "submit", str(write_search(folder, search="wide", **neighbour)))
        hpo_pilot(folder, "submit", str(write_search(folder, budget={"trials": 4, "parallel": 2})))
        command = [sys.executable, "-m", "hpo_pilot.cli", "serve", "--slots", "2", "--workdir", str(folder / "work")]
        peaks: dict[str, float] = {}
        begun = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as service:
            try:
                while json.loads(hpo_pilot(folder, "status", "bench", "--json"))["state"] != "done":
                    _note(service.pid, peaks)
                    if time.perf_counter() - begun > _PATIENCE:
                        raise RuntimeError(f"the four trials did not end within {_PATIENCE:.0f} s")
                seconds = time.perf_counter() - begun
            finally:
                service.terminate()
    return seconds, peaks


def _note(pid: int, peaks: dict[str, float]) -> None:
    """Notes the largest resident set of each kind of process so far, in MB."""
    service = psutil.Process(pid)
    for process in (service, *service.children(recursive=True)):
        try:
            line, size = " ".join(process.cmdline()), process.memory_info().rss / 1e6
        except psutil.NoSuchProcess:
            continue
        known = ("hpo_pilot.server", "hpo_pilot.web", "hpo_pilot.pilot", "client_worker", "serve")
        name = next((word for word in known if word in line), "payload")
        peaks[name] = max(peaks.get(name, 0.0), size)
