"""Whether a trial costs more the longer a search runs: the rate early and late in one long search."""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.performance.scan import run, steady_rate, trials


def measure(*, quick: bool) -> dict[str, Any]:
    """One search of 10,000 trials (quick: 1,500)."""
    count = 1_500 if quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), "--slots", "2", budget={"trials": count, "parallel": 2})
        ends = [datetime.fromisoformat(trial["ended"]).timestamp() for trial in trials(Path(folder))]
    window = min(500, count // 3)
    early, late = steady_rate(ends, 100, 100 + window), steady_rate(ends, count - window, count)
    print(f"trials 100 to {100 + window}:  {early:6.1f} trials/s")
    print(f"the last {window} of {count}: {late:6.1f} trials/s")
    print(f"cost per trial, late / early: {early / late:.2f}")
    return {"trials": count, "early": early, "late": late, "cost_ratio": early / late}
