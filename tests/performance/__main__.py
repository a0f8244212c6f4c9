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
from pathlib import Path

from tests.performance import (
    allocation,
    bigpanda,
    busy_slots,
    early_stopping,
    exports,
    figures,
    growth,
    idle_service,
    monitor,
    neighbours,
    pilot_load,
    restart,
    scaling,
    several_objectives,
    throughput,
)
from tests.performance.optimizers import speed, suite

BENCHMARKS = {
    "throughput": throughput.measure,
    "growth": growth.measure,
    "busy-slots": busy_slots.measure,
    "idle-service": idle_service.measure,
    "neighbours": neighbours.measure,
    "pilot-load": pilot_load.measure,
    "allocation": allocation.measure,
    "restart": restart.measure,
    "scaling": scaling.measure,
    "early-stopping": early_stopping.measure,
    "several-objectives": several_objectives.measure,
    "exports": exports.measure,
    "figures": figures.measure,
    "bigpanda": bigpanda.measure,
    "monitor": monitor.measure,
    "optimizer-speed": speed.measure,
}

NAMES = (*BENCHMARKS, "optimizers")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.performance", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer trials; under 3 minutes in all")
    suite.add_options(parser)
    options = parser.parse_args()
    benchmarks = {**BENCHMARKS, "optimizers": functools.partial(suite.measure, options=options)}
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
