"""How long the exports of a large search take, as trials a second; reading from the store not included.

MLflow and Optuna are written through their own clients, one trial after another.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpo_pilot.report import mlflow, optuna, parquet
from tests.report.exports.made import curves_of, finished, search_of, subject_of


def measure(*, quick: bool) -> dict[str, Any]:
    """Exports a search of two folds, nine parameters and ten steps of intermediate values."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, write, place, count in (
            ("parquet", parquet.write, "trials.parquet", 2000 if quick else 10_000),
            ("optuna", optuna.write, "study.log", 500 if quick else 10_000),
            ("mlflow, folder", mlflow.write, "runs", 100 if quick else 1000),
            ("mlflow, database", mlflow.write, "mlflow.db", 100 if quick else 1000),
        ):
            numbers, path = range(1, count + 1), Path(folder) / place
            subject = subject_of(search_of(), [finished(number) for number in numbers], curves_of(numbers, steps=10))
            results[name] = rate = _rate(count, lambda write=write: write(subject, path))  # type: ignore[misc]  # noqa: B023
            again = _rate(count, lambda write=write: write(subject, path))  # type: ignore[misc]  # noqa: B023
            print(f"{name:<17} {rate:8.0f} trials/s ({count / rate:5.1f} s for {count}); a second time {again:8.0f}/s")
    return results


def _rate(count: int, work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)
