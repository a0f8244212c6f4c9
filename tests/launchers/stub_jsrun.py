"""A stub of IBM's jsrun (10.3): it takes the options that ours gives, checks them as jsrun would, runs the ranks here.

The allocation is that of LSB_HOSTS (names with blanks, the launch node first), STUB_CPUS and STUB_GPUS a node.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from ranks import refuse, run_ranks

LINE = re.compile(r"rank: (\d+): \{ host: (\d+); cpu: \{([\d,-]+)\}(?:; gpu: \{([\d,-]+)\})? \}")
HEAD = {
    "cpu_index_using": ("logical", "physical"),
    "overlapping_rs": ("allow", "warn", "error"),
    "oversubscribe_gpu": ("allow", "warn", "error"),
}


def numbers(text: str) -> list[int]:
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [number for first, *last in ends for number in range(first, (last or [first])[0] + 1)]


def read_resources(path: str, hosts: int, cpus: int, gpus: int) -> list[list[int]]:
    """The GPUs of each rank."""
    head: dict[str, str] = {}
    found: list[list[int]] = []
    used: set[tuple[int, str, int]] = set()
    text = Path(path).read_text()
    if not text.endswith("\n"):
        refuse("jsrun", "no newline at the end of the resource file")
    for line in text.splitlines():
        if not line.startswith("rank"):
            key, _, value = line.partition(": ")
            if value not in HEAD.get(key, ()):
                refuse("jsrun", f"unknown symbol in the resource file: {line}")
            head[key] = value
            continue
        match = LINE.fullmatch(line)
        if match is None or int(match[1]) != len(found):
            refuse("jsrun", f"bad line in the resource file: {line}")
        host, own, devices = int(match[2]), numbers(match[3]), numbers(match[4]) if match[4] else []
        if not 1 <= host <= hosts or max(own) >= cpus or max(devices, default=0) >= max(1, gpus):
            refuse("jsrun", f"not in the allocation: {line}")
        for kind, ids in (("cpu", own), ("gpu", devices)):
            for number in ids:
                if (host, kind, number) in used and (kind == "cpu" or head.get("oversubscribe_gpu") != "allow"):
                    refuse("jsrun", f"{kind} {number} is given twice: {line}")
                used.add((host, kind, number))
        found.append(devices)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="jsrun", allow_abbrev=False, add_help=False)
    for option in ("-n", "-r", "-a", "-g", "-c"):
        parser.add_argument(option, type=int)
    parser.add_argument("-b")
    parser.add_argument("-E", action="append", default=[])
    parser.add_argument("--erf_input")
    parser.add_argument("--smpiargs")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    said = parser.parse_args()
    hosts = os.environ["LSB_HOSTS"].split()[1:]
    cpus, gpus = int(os.environ["STUB_CPUS"]), int(os.environ["STUB_GPUS"])
    if said.erf_input:
        devices = read_resources(said.erf_input, len(hosts), cpus, gpus)
    else:
        if said.n > said.r * len(hosts) or said.c * said.r > cpus or said.g * said.r > gpus:
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
    return run_ranks(said.argv, environments)


if __name__ == "__main__":
    sys.exit(main())
