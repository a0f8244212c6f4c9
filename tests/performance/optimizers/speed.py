"""``python -m tests.performance optimizer-speed``: what `ask` and a rebuild cost, beside Optuna's samplers.

Eight mixed dimensions. Each figure is of a fresh process with one thread, in CPU seconds. Optuna proposes one point
after the other; where that would take many minutes it is asked for fewer points, and the ratio is of the time per
point.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.performance.optimizers.runners import OURS

#: (told, asked), and the limits in CPU seconds for the model based optimizers where there is one.
_CASES = ((1_000, 256), (10_000, 1_000))
_LIMITS = {(1_000, 256): 2.0, (10_000, 1_000): 20.0}
_REBUILD_LIMIT, _MEMORY_LIMIT = 3.0, 2048.0

#: How many points a peer is asked for in a case; none: it is too slow.
_PEERS = {
    "optuna-tpe": {(1_000, 256): 256, (10_000, 1_000): 4},
    "optuna-gp": {(1_000, 256): 2},
}


def measure(*, quick: bool) -> dict[str, Any]:
    """Ours and peers; quick: the first case only."""
    console = Console(width=150, highlight=False)
    figures: dict[str, Any] = {}
    for told, asked in _CASES[:1] if quick else _CASES:
        found: dict[str, dict[str, float]] = {}
        for name in OURS:
            found[name] = {**probe(name, told, asked), "asked": asked}
        for name, counts in _PEERS.items():
            if (told, asked) in counts and _installed(name):
                found[name] = {**probe(name, told, counts[told, asked]), "asked": counts[told, asked]}
        _print(console, told, asked, found)
        figures[f"{told} told, ask({asked})"] = found
    return figures


def _installed(name: str) -> bool:
    return importlib.util.find_spec("torch" if name == "optuna-gp" else "optuna") is not None


def probe(name: str, told: int, asked: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.performance.optimizers.speed_probe", name, str(told), str(asked)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: status {result.returncode}\n{result.stderr}")
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def _print(console: Console, told: int, asked: int, found: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"{told:,} told, ask({asked})", title_justify="left")
    for heading in (
        "optimizer",
        "ask, CPU-s",
        "limit",
        "rebuild, CPU-s",
        "peak MB",
        *(f"of {peer}" for peer in _PEERS),
    ):
        table.add_column(heading, justify="left" if heading == "optimizer" else "right")
    for name, figures in found.items():
        ours = name in OURS
        ratios = [
            f"{figures['ask'] / figures['asked'] * peer['asked'] / peer['ask']:.2g}" if peer and name != other else ""
            for other in _PEERS
            for peer in [found.get(other)]
        ]
        asks = f"{figures['ask']:.2f}" + ("" if figures["asked"] == asked else f" for {figures['asked']}")
        table.add_row(
            name,
            asks,
            f"{_LIMITS[told, asked]:g}" if ours else "",
            f"{figures['build']:.2f}",
            f"{figures['peak_mb']:.0f}",
            *ratios,
        )
    console.print(table)
    for name in OURS:
        figures = found[name]
        missed = [
            text
            for text, bad in (
                (
                    f"ask {figures['ask']:.1f} CPU-s, limit {_LIMITS[told, asked]:g}",
                    figures["ask"] > _LIMITS[told, asked],
                ),
                (f"rebuild {figures['build']:.1f} CPU-s, limit {_REBUILD_LIMIT:g}", figures["build"] > _REBUILD_LIMIT),
                (f"{figures['peak_mb']:.0f} MB, limit {_MEMORY_LIMIT:g}", figures["peak_mb"] > _MEMORY_LIMIT),
            )
            if bad
        ]
        console.print(f"{name}: " + ("LIMIT MISSED: " + "; ".join(missed) if missed else "limits held"))
