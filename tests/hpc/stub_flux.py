"""A stub of `flux run` (0.88): it takes the options that ours gives, checks them as Flux would, runs the ranks here.

The instance is that of FLUX_STUB_HOSTS (names with commas), STUB_CPUS and STUB_GPUS a node.
"""

from __future__ import annotations

import argparse
import os
import sys

from ranks import refuse, run_ranks


def main() -> int:
    parser = argparse.ArgumentParser(prog="flux run", allow_abbrev=False)
    for option, default in (("-N", 1), ("-n", 1), ("-c", 1), ("-g", 0)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("-o", action="append", choices=["exit-on-error", "exit-timeout=none", "gpu-affinity=per-task"])
    parser.add_argument("--requires", default="")
    parser.add_argument("--env-remove", choices=["*"], required=True)
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    said = parser.parse_args(sys.argv[2:])
    hosts = os.environ["FLUX_STUB_HOSTS"].split(",")
    wanted = said.requires.removeprefix("host:").split(",") if said.requires else hosts
    if strangers := set(wanted) - set(hosts):
        refuse("flux-run", f"host constraint contains invalid hosts: host {strangers.pop()!r} not found")
    local = said.n // said.N
    too_large = local * said.c > int(os.environ["STUB_CPUS"]) or local * said.g > int(os.environ["STUB_GPUS"])
    if len(wanted) < said.N or too_large:
        refuse("flux-run", f"job.exception type=alloc severity=0 unsatisfiable request: need {said.N} node(s)")
    base = {name: os.environ[name] for name in said.env if name in os.environ}
    environments = []
    for rank in range(said.n):
        first, count = (rank % local * said.g, said.g) if "gpu-affinity=per-task" in said.o else (0, local * said.g)
        visible = ",".join(map(str, range(first, first + count))) or "-1"
        own = {"FLUX_TASK_RANK": str(rank), "FLUX_JOB_SIZE": str(said.n), "CUDA_VISIBLE_DEVICES": visible}
        environments.append({**base, **own})
    return run_ranks(said.argv, environments, all_end="exit-on-error" in said.o)


if __name__ == "__main__":
    sys.exit(main())
