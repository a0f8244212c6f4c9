"""``make bench``: what the product claims of speed, measured beside the peer named, in one run.

    python -m tests.performance [--quick] [NAME …]

Each benchmark prints its figures and, where there is a peer, the ratio to it. Nothing here fails on a slow machine: the
figures are for people. Results go to .cache/bench/ as JSON too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

from tests.performance import busy_slots, growth, idle_service, pilot_load, restart, throughput

BENCHMARKS = {
    "throughput": throughput.measure,
    "growth": growth.measure,
    "busy-slots": busy_slots.measure,
    "idle-service": idle_service.measure,
    "pilot-load": pilot_load.measure,
    "restart": restart.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.performance", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer trials; under 3 minutes in all")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}")
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores")
    folder = Path(".cache/bench")
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or BENCHMARKS:
        print(f"\n== {name}", flush=True)
        figures = BENCHMARKS[name](quick=options.quick)
        (folder / f"{name}.json").write_text(json.dumps(figures, indent=1))


main()
