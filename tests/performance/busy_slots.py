"""The share of slot time that is busy when run times differ widely: log-normal with sigma 1, eight sleeping slots."""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.performance.scan import run, trials

SLOTS = 8
MEDIAN = 1.5  # seconds

SLEEPER = f"""
import json, math, os, random, time
dice = random.Random(int(os.environ["HPO_PILOT_SEED"]))
time.sleep(min(30.0, {MEDIAN} * math.exp(dice.gauss(0.0, 1.0))))
point = json.load(open("input.json"))
json.dump({{"status": 0, "loss": (point["x"] - 0.3) ** 2 + point["y"]}}, open("output.json", "w"))
"""


def measure(*, quick: bool) -> dict[str, Any]:
    """Both optimizers, one after the other."""
    figures: dict[str, Any] = {}
    for optimizer in ("bayesian", "evolutionary"):
        figures[optimizer] = _busy(optimizer, 64 if quick else 200)
        print(f"{optimizer:13} {figures[optimizer]:6.1%} of slot time busy, until the last point went out")
    return figures


def _busy(optimizer: str, count: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "payload").mkdir()
        (folder / "payload" / "sleep.py").write_text(SLEEPER)
        run(
            folder,
            *("--slots", str(SLOTS)),
            optimizer=optimizer,
            budget={"trials": count, "parallel": SLOTS},
            payload={"files": "payload", "command": "python3 -I -S sleep.py"},
        )
        found = trials(folder)
    return busy_share([(_time(fold["started"]), _time(fold["ended"])) for trial in found for fold in trial["folds"]])


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def busy_share(spans: list[tuple[float, float]]) -> float:
    """Busy slot time over slot time, from the first start to the last one: after it slots empty for want of budget."""
    begin, end = min(start for start, _ in spans), max(start for start, _ in spans)
    used = sum(min(stop, end) - start for start, stop in spans)
    return used / (SLOTS * (end - begin))
