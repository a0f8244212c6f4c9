"""How long the exports of a large search take: trials a second, reading from the store included or not.

The peers are the tools' own clients with the same trials: Optuna's `Study.add_trial` in a loop, and MLflow's client
with three calls a run.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpo_pilot.exports import mlflow_store, optuna_study, parquet
from hpo_pilot.exports.mlflow_runs import runs_of
from tests.exports.made import curves_of, finished, search_of, subject_of

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"


def measure(*, quick: bool) -> dict[str, Any]:
    """Exports a search of two folds, nine parameters and ten steps of intermediate values."""
    count, few = (2000, 100) if quick else (10_000, 300)
    numbers = range(1, count + 1)
    subject = subject_of(search_of(), [finished(number) for number in numbers], curves_of(numbers, steps=10))
    results: dict[str, Any] = {"trials": count}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, write, path in (
            ("parquet", parquet.write, root / "trials.parquet"),
            ("mlflow, files", mlflow_store.write, root / "runs"),
            ("mlflow, database", mlflow_store.write, root / "mlflow.db"),
            ("optuna", optuna_study.write, root / "study.db"),
        ):
            results[name] = rate = _rate(count, lambda write=write, path=path: write(subject, path))  # type: ignore[misc]
            again = _rate(count, lambda write=write, path=path: write(subject, path))  # type: ignore[misc]
            print(f"{name:<17} {rate:8.0f} trials/s ({count / rate:5.1f} s for {count}); a second time {again:8.0f}/s")
        peers = {
            "mlflow, files": _rate(few, lambda: _through_mlflow(subject, few, (root / "peer").as_uri())),
            "mlflow, database": _rate(few, lambda: _through_mlflow(subject, few, f"sqlite:///{root}/peer.db")),
            "optuna": _rate(few, lambda: _through_optuna(root / "study.db", few, root / "peer-study.db")),
        }
    for name, peer in peers.items():
        results[f"peer of {name}"] = peer
        print(f"its own client: {name:<17} {peer:6.0f} trials/s ({few}); ratio {results[name] / peer:5.1f}")
    return results


def _rate(count: int, work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)


def _through_optuna(ours: Path, count: int, path: Path) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials = optuna.load_study(study_name="digits", storage=f"sqlite:///{ours}").trials[:count]
    study = optuna.create_study(study_name="digits", storage=f"sqlite:///{path}")
    for trial in trials:
        study.add_trial(trial)


def _through_mlflow(subject: Any, count: int, uri: str) -> None:
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("digits")
    for run, _ in zip(runs_of(subject), range(count), strict=False):
        made = client.create_run(experiment, start_time=run.started, run_name=run.name).info.run_id
        client.log_batch(
            made,
            metrics=[Metric(one.key, one.value, one.timestamp, one.step) for one in run.metrics],
            params=[Param(key, value) for key, value in run.params.items()],
            tags=[RunTag(key, value) for key, value in run.tags.items()],
        )
        client.set_terminated(made, run.status, end_time=run.ended)
