"""Orchestration's cost: trials per second of a payload that does nothing, two at a time.

The peer is Optuna with a SQLite store and the same payload started as a subprocess by two threads: a single process
without a server, pilots, sandboxes or tasks, so less than we do.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.performance.scan import TRUE_LIKE, run, steady_rate, trials

SLOTS = 2


def measure(*, quick: bool) -> dict[str, Any]:
    """Both, with the same number of trials."""
    count = 300 if quick else 1000
    ours, steady = _ours(count)
    peer = _optuna(count)
    print(f"hpo-pilot  {ours:6.1f} trials/s from command to report ({count} trials); {steady:.1f}/s after trial 50")
    print(f"optuna     {peer:6.1f} trials/s (SQLite store, same payload as a subprocess, {SLOTS} threads)")
    print(f"ratio      {ours / peer:6.2f} (steady {steady / peer:.2f})")
    return {"trials": count, "hpo_pilot": ours, "hpo_pilot_steady": steady, "optuna": peer, "ratio": ours / peer}


def _ours(count: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        seconds = run(Path(folder), "--slots", str(SLOTS), budget={"trials": count, "parallel": SLOTS})
        found = trials(Path(folder))
    assert len(found) == count
    assert all(trial["value"] == 0.5 for trial in found)
    ends = [datetime.fromisoformat(trial["ended"]).timestamp() for trial in found]
    return count / seconds, steady_rate(ends, 50, count)


def _optuna(count: int) -> float:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        study = optuna.create_study(
            storage=f"sqlite:///{folder}/optuna.db", sampler=optuna.samplers.RandomSampler(seed=1), direction="minimize"
        )

        def objective(trial: optuna.Trial) -> float:
            trial.suggest_float("x", 0.0, 1.0)
            trial.suggest_float("y", 0.0, 1.0)
            work = Path(folder, str(trial.number))
            work.mkdir()
            subprocess.run(["/bin/sh", "-c", TRUE_LIKE], cwd=work, check=True)
            assert (work / "output.json").read_text()
            return 0.5

        begun = time.perf_counter()
        with ThreadPoolExecutor(SLOTS) as pool:
            list(pool.map(lambda _: study.optimize(objective, n_trials=count // SLOTS), range(SLOTS)))
        return count / (time.perf_counter() - begun)
