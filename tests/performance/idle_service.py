"""What `hpo-pilot serve` costs while it waits for one slow search: CPU of the service and all its children."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.performance.scan import hpo_pilot, write_search


def measure(*, quick: bool) -> dict[str, Any]:
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
