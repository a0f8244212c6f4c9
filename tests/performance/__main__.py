"""``make bench``: what the product claims of speed, measured beside the peer named, in one run.

    python -m tests.performance [--quick] [NAME …]

Each benchmark prints its figures and, where there is a peer, the ratio to it. Nothing here fails on a slow machine: the
figures are for people. Results go to .cache/bench/ as JSON too.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.performance import (
    agents,
    allocation,
    asking,
    documents,
    early_stopping,
    fidelity,
    killed_pilots,
    large_store,
    pages,
    ranks,
    scaling,
    searches,
    server,
    service,
    several_objectives,
    soak,
)
from tests.performance.optimizers import ablation, limits, prior, run_times, speed, suite

BENCHMARKS = {
    "throughput": searches.measure_throughput,
    "short-trainings": searches.measure_short_trainings,
    "growth": searches.measure_growth,
    "busy-slots": searches.measure_busy_slots,
    "idle-service": service.measure_idle_service,
    "neighbours": service.measure_neighbours,
    "pilot-load": server.measure_pilot_load,
    "waiting-pilots": server.measure_waiting_pilots,
    "server-processes": server.measure_server_processes,
    "allocation": allocation.measure,
    "agents": agents.measure,
    "asking": asking.measure,
    "restart": server.measure_restart,
    "scaling": scaling.measure,
    "ranks": ranks.measure,
    "early-stopping": early_stopping.measure,
    "killed-pilots": killed_pilots.measure,
    "several-objectives": several_objectives.measure,
    "exports": documents.measure_exports,
    "figures": documents.measure_figures,
    "bigpanda": pages.measure_bigpanda,
    "monitor": pages.measure_monitor,
    "optimizer-speed": speed.measure,
    "prior": prior.measure,
    "limits": limits.measure,
    "run-times": run_times.measure,
}

NAMES = (*BENCHMARKS, "ablation", "fidelity", "large-store", "optimizers", "soak")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.performance", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer trials")
    large_store.add_options(parser)
    suite.add_options(parser)
    options = parser.parse_args()
    benchmarks: dict[str, Callable[..., dict[str, Any]]] = {
        **BENCHMARKS,
        "ablation": functools.partial(ablation.measure, options=options),
        "fidelity": functools.partial(fidelity.measure, options=options),
        "large-store": functools.partial(large_store.measure, trials=options.trials),
        "soak": functools.partial(soak.measure, trials=options.trials),
        "optimizers": functools.partial(suite.measure, options=options),
    }
    unknown = set(options.names) - set(benchmarks)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}")
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores")
    folder = Path(".cache/bench")
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or NAMES:
        print(f"\n== {name}", flush=True)
        figures = benchmarks[name](quick=options.quick)
        (folder / f"{name}.json").write_text(json.dumps(figures, indent=1))


main()
