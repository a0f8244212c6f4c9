"""Searches run end to end: trials a second beside Optuna, how the rate holds as a search grows, and busy slots."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

# A search in a folder of its own, run by the real command.

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


# Orchestration's cost: trials per second of a payload that does nothing, two at a time.
#
# The peer is Optuna with a SQLite store and the same payload started as a subprocess by two threads: a single process
# without a server, pilots, sandboxes or tasks, so less than we do.

THROUGHPUT_SLOTS = 2


def measure_throughput(*, quick: bool) -> dict[str, Any]:
    """Both, with the same number of trials."""
    count = 300 if quick else 1000
    ours, steady = _ours(count)
    peer = _optuna(count)
    print(f"hpo-pilot  {ours:6.1f} trials/s from command to report ({count} trials); {steady:.1f}/s after trial 50")
    print(f"optuna     {peer:6.1f} trials/s (SQLite store, same payload as a subprocess, {THROUGHPUT_SLOTS} threads)")
    print(f"ratio      {ours / peer:6.2f} (steady {steady / peer:.2f})")
    return {"trials": count, "hpo_pilot": ours, "hpo_pilot_steady": steady, "optuna": peer, "ratio": ours / peer}


def _ours(count: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        seconds = run(
            Path(folder), "--slots", str(THROUGHPUT_SLOTS), budget={"trials": count, "parallel": THROUGHPUT_SLOTS}
        )
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
        with ThreadPoolExecutor(THROUGHPUT_SLOTS) as pool:
            list(
                pool.map(
                    lambda _: study.optimize(objective, n_trials=count // THROUGHPUT_SLOTS), range(THROUGHPUT_SLOTS)
                )
            )
        return count / (time.perf_counter() - begun)


# Short trainings: a network of scikit-learn, some seconds each, as a function and as a command, beside a plain Optuna
# program of one process that calls the same function. The import of scikit-learn is a good part of such a training.

_TRAINING = """
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

images, digits = load_digits(return_X_y=True)


def objective(point):
    settings = {"learning_rate_init": 0.001 + 0.01 * point["x"], "random_state": 1}
    model = MLPClassifier((100, 100), max_iter=300, n_iter_no_change=300, **settings)  # 1.5 s
    model.fit(images[:1200], digits[:1200])
    return 1 - model.score(images[1200:], digits[1200:])


if __name__ == "__main__":
    import json

    json.dump(objective(json.load(open("input.json"))), open("output.json", "w"))
"""
_OPTUNA = """
import sys
import optuna
from train import objective

optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
count, threads = map(int, sys.argv[1:])
study.optimize(lambda trial: objective({"x": trial.suggest_float("x", 0.0, 1.0)}), n_trials=count, n_jobs=threads)
"""


def measure_short_trainings(*, quick: bool) -> dict[str, Any]:
    """Wall time of the same trainings, from the start of the command to its end."""
    count = 24 if quick else 72
    found: dict[str, Any] = {"trials": count}
    for slots in (1, THROUGHPUT_SLOTS):
        budget = {"trials": count, "parallel": slots}
        payloads = {"function": {"function": "train:objective"}, "command": {"command": "python train.py"}}
        for name, how in payloads.items():
            with tempfile.TemporaryDirectory() as folder:
                files = Path(folder, "training")
                files.mkdir()
                (files / "train.py").write_text(_TRAINING)
                payload = {"files": "training", "python": sys.executable, **how}
                options = {"resources": {"minutes": 5, "memory_mb": 2000}, "payload": payload, "budget": budget}
                found[f"{name} {slots}"] = run(Path(folder), "--slots", str(slots), **options)
                assert all(trial["value"] is not None for trial in trials(Path(folder)))
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "train.py").write_text(_TRAINING)
            Path(folder, "study.py").write_text(_OPTUNA)
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-W", "ignore", "study.py", str(count), str(slots)], cwd=folder, check=True)
            found[f"optuna {slots}"] = time.perf_counter() - begun
        found[f"ratio {slots}"] = found[f"function {slots}"] / found[f"optuna {slots}"]
        print(
            f"{count} trainings, {slots} at a time: function {found[f'function {slots}']:.1f} s, command "
            f"{found[f'command {slots}']:.1f} s; optuna in one process {found[f'optuna {slots}']:.1f} s "
            f"(function / optuna {found[f'ratio {slots}']:.2f})"
        )
    return found


# Whether a trial costs more the longer a search runs: the rate early and late in one long search.


def measure_growth(*, quick: bool) -> dict[str, Any]:
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


# The share of slot time that is busy when run times differ widely: log-normal with sigma 1, eight sleeping slots.

SLOTS = 8
MEDIAN = 1.5  # seconds

SLEEPER = f"""
import json, math, os, random, time
dice = random.Random(int(os.environ["HPO_PILOT_SEED"]))
time.sleep(min(30.0, {MEDIAN} * math.exp(dice.gauss(0.0, 1.0))))
point = json.load(open("input.json"))
json.dump({{"status": 0, "loss": (point["x"] - 0.3) ** 2 + point["y"]}}, open("output.json", "w"))
"""


def measure_busy_slots(*, quick: bool) -> dict[str, Any]:
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
