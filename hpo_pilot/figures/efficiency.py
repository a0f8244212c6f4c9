"""How well each trial's training used its ranks: what the payload runner measured, as means over the folds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpo_pilot.search import FoldResult, Trial

#: The payload runner's metrics that are shown, with their headings and whether they are fractions of 1.
#: What they mean: hpo_pilot/runner/hpo_pilot_efficiency.py; the last is the pilot's, hpo_pilot/pilot/staging.
SHOWN = (
    ("ranks", "ranks", False),
    ("pop_parallel_efficiency", "parallel efficiency", True),
    ("pop_load_balance", "load balance", True),
    ("pop_communication_efficiency", "communication efficiency", True),
    ("pop_input_fraction", "input", True),
    ("images_per_second", "images/s", False),
    ("stage_in_seconds", "staging, s", False),
)
_MEASURED = "pop_parallel_efficiency"


@dataclass(frozen=True)
class Efficiency:
    """One trial's.

    Attributes:
        number: of the trial.
        figures: one for each of `SHOWN`, the mean of the folds that were measured; None: none has it.
        slowest: which rank computed longest, of all folds, and by how much longer than their mean; empty: not known.
    """

    number: int
    figures: tuple[float | None, ...]
    slowest: str


def efficiencies(trials: Iterable[Trial]) -> list[Efficiency]:
    """Those of the trials that were measured, in their order."""
    found = []
    for trial in trials:
        folds = [fold for fold in trial.folds if _finite(fold.metrics.get(_MEASURED)) is not None]
        if folds:
            found.append(Efficiency(trial.number, tuple(_mean(folds, name) for name, _, _ in SHOWN), _slowest(folds)))
    return found


def _mean(folds: Sequence[FoldResult], name: str) -> float | None:
    figures = [figure for fold in folds if (figure := _finite(fold.metrics.get(name))) is not None]
    return statistics.fmean(figures) if figures else None


def _slowest(folds: Sequence[FoldResult]) -> str:
    """In words; empty where there is one rank, or none is known one by one."""
    most: tuple[float, str] = (0.0, "")
    for fold in folds:
        ranks = _ranks(fold.metadata)
        mean = _finite(fold.metrics.get("compute_seconds")) or 0.0
        if len(ranks) < 2 or mean <= 0:
            continue
        longest, rank, host = max(ranks)
        ratio = longest / mean - 1
        if ratio > most[0]:
            most = (ratio, f"rank {rank} on {host}: {100 * ratio:.0f}% longer than the mean")
    return most[1]


def _ranks(metadata: Mapping[str, Any] | None) -> list[tuple[float, int, str]]:
    """(seconds of computation, rank, host) of each rank that is known one by one."""
    listed = (metadata or {}).get("hpo_pilot_ranks")
    found = []
    for rank in listed if isinstance(listed, list) else ():
        if isinstance(rank, Mapping) and isinstance(rank.get("rank"), int):
            compute = _finite(rank.get("compute"))
            if compute is not None:
                found.append((compute, int(rank["rank"]), str(rank.get("host", ""))[:100]))
    return found


def _finite(value: object) -> float | None:
    """A metric as a number; payloads may report anything."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
