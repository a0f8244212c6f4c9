"""A stub of IBM's jsrun (10.3): it takes the options that ours gives, checks them as jsrun would, runs the ranks here.

The allocation is that of LSB_HOSTS (names with blanks, the launch node first), STUB_CPUS and STUB_GPUS a node.
"""

from __future__ import annotations

import argparse
import os
import sys

from ranks import refuse, run_ranks


def main() -> int:
    parser = argparse.ArgumentParser(prog="jsrun", allow_abbrev=False, add_help=False)
    for option in ("-n", "-r", "-a", "-g", "-c"):
        parser.add_argument(option, type=int)
    parser.add_argument("-b")
    parser.add_argument("-d", choices=["packed", "cyclic"])
    parser.add_argument("-X", type=int, choices=[0, 1])
    parser.add_argument("--exclude_hosts", type=lambda text: text.split(","), default=[])
    parser.add_argument("-E", action="append", default=[])
    parser.add_argument("--smpiargs")
    parser.add_argument("--stdio_mode", choices=["prepended"])
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    said = parser.parse_args()
    if "TMPDIR" in os.environ:
        refuse("jsrun", "Error: Remote JSM server is not responding on host batch1")
    hosts = os.environ["LSB_HOSTS"].split()[1:]
    if strangers := set(said.exclude_hosts) - set(hosts):
        refuse("jsrun", f"not in the allocation: {', '.join(strangers)}")
    cpus, gpus = int(os.environ["STUB_CPUS"]), int(os.environ["STUB_GPUS"])
    if said.n > said.r * (len(hosts) - len(said.exclude_hosts)) or said.c * said.r > cpus or said.g * said.r > gpus:
        refuse("jsrun", "Error: It is not possible to start application. Resources exceed the allocation")
    if said.b != f"packed:{said.c // said.a}":
        refuse("jsrun", f"binding {said.b} with {said.c} cores for {said.a} tasks")
    sets = [[s % said.r * said.g + gpu for gpu in range(said.g)] for s in range(said.n)]
    devices = [own for own in sets for _ in range(said.a)]
    unknown = [name for name in said.E if "=" not in name and name not in os.environ]
    if unknown:
        refuse("jsrun", f"variable {unknown[0]} is not set")
    environments = []
    for rank, own in enumerate(devices):
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, own))} if own else {}
        environments.append({**os.environ, **visible, "PMIX_RANK": str(rank), "OMPI_COMM_WORLD_RANK": str(rank)})
    return run_ranks(said.argv, environments, all_end=said.X == 1)


if __name__ == "__main__":
    sys.exit(main())
