"""A stub of PALS's mpiexec (HPE, craycli): it takes the options that ours gives, and runs the ranks here.

The allocation is that of PALS_STUB_HOSTS (names with commas).
"""

from __future__ import annotations

import argparse
import os
import sys

from ranks import refuse, run_ranks


def main() -> int:
    parser = argparse.ArgumentParser(prog="mpiexec", allow_abbrev=False)
    parser.add_argument("-n", dest="ranks", type=int, default=1)
    parser.add_argument("--ppn", type=int, required=True)
    parser.add_argument("--hosts", type=lambda text: text.split(","), required=True)
    parser.add_argument("--cpu-bind", choices=["none"])
    parser.add_argument("--envall", action="store_true", required=True)
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    said = parser.parse_args()
    if strangers := set(said.hosts) - set(os.environ["PALS_STUB_HOSTS"].split(",")):
        refuse("mpiexec", f"not in the allocation: {', '.join(strangers)}")
    if said.ranks > said.ppn * len(said.hosts):
        refuse("mpiexec", f"{said.ranks} ranks do not fit on {len(said.hosts)} hosts")
    own = [{"PMI_RANK": str(rank), "PALS_LOCAL_RANKID": str(rank % said.ppn)} for rank in range(said.ranks)]
    return run_ranks(said.argv, [{**os.environ, **one} for one in own], all_end=True)


if __name__ == "__main__":
    sys.exit(main())
