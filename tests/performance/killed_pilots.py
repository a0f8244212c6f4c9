"""Steps of training that are repeated because pilots are killed, in a search whose trials are promoted.

A real service, and two pilots that share no folder, as at two sites. A random one is killed with SIGKILL at intervals,
and another process takes its place, half of the time in an empty folder. Each trial writes a checkpoint after each
step, so it repeats only what its checkpoint at the server or in its folder has not.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hpo_pilot.steering.server_processes import free_port
from tests.end_to_end.conftest import Scan

#: A training of which each step is noted outside of the job.
_PAYLOAD = """
import json, os, pathlib, sys, time
point = json.load(open("input.json"))
kept = pathlib.Path(os.environ["HPO_PILOT_CHECKPOINT_DIR"], "step")
done = int(kept.read_text()) if kept.exists() else 0
for step in range(done + 1, point["epochs"] + 1):
    time.sleep(0.1)
    with open({steps!r}, "a") as file:
        file.write(json.dumps([point["x"], step]) + "\\n")
    whole = kept.with_suffix(".new")
    whole.write_text(str(step))
    whole.replace(kept)
loss = (point["x"] - 0.3) ** 2 + 1.0 / point["epochs"]
json.dump({{"status": 0, "loss": loss, "message": ""}}, open("output.json", "w"))
"""
_SLOTS, _EVERY = 2, 20.0  # slots of a pilot, and the mean seconds between kills


def measure(*, quick: bool) -> dict[str, Any]:
    """Runs the search until it is done, and at most for ten minutes."""
    rng, killed = random.Random(20_261_128), 0
    with tempfile.TemporaryDirectory() as name:
        scan = Scan(Path(name))
        steps = scan.root / "steps"
        scan.write(
            {
                "fidelity": {"epochs": {"low": 3, "high": 81, "eta": 3}},
                "budget": {"trials": 40 if quick else 600, "parallel": 2 * _SLOTS},
                "payload": {"files": "payload", "command": "python3 -I -S train.py"},
            },
            _PAYLOAD.format(steps=str(steps)),
        )
        url = f"http://127.0.0.1:{free_port()}"
        with scan.serving("--slots", "0", "--port", url.rpartition(":")[2]):
            scan.here("submit", str(scan.file))
            begun = time.monotonic()
            pilots = [_pilot(scan, url, place) for place in (0, 1)]
            try:
                while (status := scan.json("status", "demo"))["state"] not in ("done", "failed"):
                    if time.monotonic() - begun > 600.0:
                        break
                    time.sleep(rng.uniform(0.5, 1.5) * _EVERY)
                    place = rng.randrange(len(pilots))
                    pilots[place].send_signal(signal.SIGKILL)
                    pilots[place].wait()
                    killed += 1
                    if rng.random() < 0.5:
                        shutil.rmtree(_folder(scan, place), ignore_errors=True)
                    pilots[place] = _pilot(scan, url, place)
            finally:
                for pilot in pilots:
                    pilot.terminate()
                    pilot.wait()
            seconds, trials = time.monotonic() - begun, scan.trials()
        trained = Counter(steps.read_text().splitlines())
    figures = {
        "state": status["state"],
        "seconds": seconds,
        "killed": killed,
        "steps": len(trained),
        "trained_again": sum(trained.values()) - len(trained),
        "jobs": len(trials),
        "failed": sum(trial["state"] == "failed" for trial in trials),
    }
    again = figures["trained_again"] / max(1, figures["steps"])
    print(
        f"killed pilots: {killed} kills in {seconds:.0f} s, {figures['state']}; {len(trials)} trials, "
        f"{figures['failed']} failed; {figures['steps']} steps, {again:.1%} of them trained again",
        flush=True,
    )
    return figures


def _folder(scan: Scan, place: int) -> Path:
    return scan.root / f"site{place}"


def _pilot(scan: Scan, url: str, place: int) -> subprocess.Popen[bytes]:
    words = ["--server", url, "--queue", "LOCAL", "--token-file", str(scan.workdir / "tokens" / "pilot.token")]
    words += ["--workdir", str(_folder(scan, place)), "--slots", str(_SLOTS)]
    words += ["--heartbeat", "1", "--checkpoint-every", "2", "--no-isolation"]  # payloads note their steps outside
    with (scan.root / f"pilot{place}.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "hpo_pilot.pilot", *words], stdout=log, stderr=log)
