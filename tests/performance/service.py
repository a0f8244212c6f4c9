"""The service at rest, and beside a slow neighbour."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.performance.searches import hpo_pilot, write_search

# What `hpo-pilot serve` costs while it waits for one slow search: CPU of the service and all its children.


def measure_idle_service(*, quick: bool) -> dict[str, Any]:
    """CPU seconds per second, over half a minute."""
    seconds = 10.0 if quick else 30.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        payload = {"command": "sleep 300"}
        path = write_search(folder, budget={"trials": 2, "parallel": 1}, payload=payload, resources={"minutes": 10})
        hpo_pilot(folder, "submit", str(path))
        command = [sys.executable, "-m", "hpo_pilot.cli", "serve", "--slots", "1", "--workdir", str(folder / "work")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            try:
                time.sleep(8.0)
                before = _cpu(process.pid)
                time.sleep(seconds)
                used = {name: (cpu - before.get(name, 0.0)) / seconds for name, cpu in _cpu(process.pid).items()}
            finally:
                process.terminate()
    total = sum(used.values())
    print(f"{total:.2%} of a core: " + ", ".join(f"{name} {share:.2%}" for name, share in used.items()))
    return {"total": total, **used}


def _cpu(pid: int) -> dict[str, float]:
    service = psutil.Process(pid)
    used: dict[str, float] = {}
    for process in (service, *service.children(recursive=True)):
        line = " ".join(process.cmdline())
        known = ("hpo_pilot.server", "hpo_pilot.pilot", "client_worker", "runner", "serve")
        name = next((word for word in known if word in line), "payload")
        times = process.cpu_times()
        used[name] = used.get(name, 0.0) + times.user + times.system
    return used


# What a search costs its neighbours: the time to a user's four trials beside another's search, as wide as may be.
#
# Both are steered by one `hpo-pilot serve` with two slots. The peer is the same service with the four trials alone.

_PATIENCE = 600.0


def measure_neighbours(*, quick: bool) -> dict[str, Any]:
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
