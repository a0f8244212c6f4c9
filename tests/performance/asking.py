"""Many clients that ask for trials and tell results, each with its own connection; beside Optuna with its journal."""

from __future__ import annotations

import math
import multiprocessing
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from hpo_pilot import connect
from hpo_pilot.operations.client import SearchClient

CLIENTS, PROCESSES = 1000, 8
TRIAL_SECONDS = 30.0  # of a trial, on average
LIMIT = 1.0  # seconds: 95% of the clients have a trial within this time

#: A client's ask and tell.
Calls = tuple[Callable[[], Any], Callable[[Any], None]]


def of_hpo_pilot(folder: Path, root: Path) -> Calls:
    search = connect((root / "service.url").read_text().strip(), root / "tokens" / "user.token").search("asked")
    del folder
    return search.ask, lambda trial: search.tell(trial, trial.point["x"]) and None


def of_optuna(folder: Path, root: Path) -> Calls:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    del root
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "optuna.log")))
    study = optuna.load_study(study_name="asked", storage=storage, sampler=optuna.samplers.RandomSampler())

    def ask() -> Any:
        trial = study.ask()
        trial.suggest_float("x", 0.0, 1.0)
        return trial

    return ask, lambda trial: study.tell(trial, trial.params["x"]) and None


def work(make: Callable[[Path, Path], Calls], folder: Path, seconds: float, clients: int) -> list[list[float]]:
    """Lets the clients of one process work for a time; returns the seconds of their asks and of their tells."""
    asks: list[float] = []
    tells: list[float] = []
    end = time.monotonic() + seconds

    def client() -> None:
        time.sleep(random.uniform(0, TRIAL_SECONDS))
        ask, tell = make(folder, folder / "work")
        while time.monotonic() < end:
            begun = time.perf_counter()
            trial = ask()
            asks.append(time.perf_counter() - begun)
            ran = random.uniform(0.5, 1.5) * TRIAL_SECONDS
            if time.monotonic() + ran > end:
                return  # not all at the same moment
            time.sleep(ran)
            begun = time.perf_counter()
            tell(trial)
            tells.append(time.perf_counter() - begun)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [asks, tells]


def percentile(found: list[float]) -> float:
    return statistics.quantiles(found, n=20)[-1] if len(found) > 1 else math.nan


def measure_clients(
    make: Callable[[Path, Path], Calls], folder: Path, clients: int, seconds: float
) -> dict[str, float]:
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        parts = pool.map(partial(work, make, folder, seconds), [clients // PROCESSES] * PROCESSES)
    asks, tells = ([one for part in parts for one in part[place]] for place in (0, 1))
    return {
        "asks": len(asks),
        "ask_median": statistics.median(asks),
        "ask_p95": percentile(asks),
        "tell_p95": percentile(tells),
    }


def measure(*, quick: bool) -> dict[str, Any]:
    """Seconds of an ask with many clients whose trials last half a minute."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    clients, seconds = (200, 45.0) if quick else (CLIENTS, 70.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        document = {
            **{"search": "asked", "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}}, "payload": "none"},
            **{"optimizer": "random", "budget": {"trials": 50 * clients, "parallel": clients}},
        }
        (folder / "search.yaml").write_text(yaml.safe_dump(document))
        command = [sys.executable, "-m", "hpo_pilot.cli", "serve", "--workdir", str(folder / "work"), "--slots", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            while service.stdout is not None and "REST API" not in service.stdout.readline():
                pass
            with SearchClient.local(folder / "work") as local:
                local.submit(folder / "search.yaml")
                while not local.status("asked")["trials"]:
                    time.sleep(0.1)
                ours = measure_clients(of_hpo_pilot, folder, clients, seconds)
                counts = local.status("asked")["trials"]
            service.terminate()
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "optuna.log")))
        optuna.create_study(study_name="asked", storage=storage)
        theirs = measure_clients(of_optuna, folder, clients, seconds)
    for who, found in (("hpo-pilot, REST", ours), ("Optuna, journal", theirs)):
        print(
            f"{who}: {clients} clients, {found['asks']:.0f} asks in {seconds:.0f} s; ask {found['ask_median']:.3f} s "
            f"(median), {found['ask_p95']:.3f} s (95%); tell {found['tell_p95']:.3f} s (95%)"
        )
    ratio, held = theirs["ask_p95"] / ours["ask_p95"], ours["ask_p95"] < LIMIT
    print(f"ratio of the 95% of asks, Optuna to hpo-pilot: {ratio:.1f}; {'limit held' if held else 'LIMIT MISSED'}")
    return {"clients": clients, "ours": ours, "optuna": theirs, "ratio": ratio, "held": held, "trials": dict(counts)}
