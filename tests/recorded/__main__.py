"""Writes the recording: ``python -m tests.recorded --record [PART ...]``; without parts all of it, data files too."""

from __future__ import annotations

import argparse
import os
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.recorded", description=__doc__)
    parser.add_argument("--record", action="store_true", required=True, help="write the files in data/")
    parser.add_argument("--work", action="store_true", help="make the kept work folder anew first")
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", OPENBLAS_CORETYPE="Haswell")
    os.environ["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"  # noqa: PTH120

    from tests.recorded.recording import PARTS, Stage, make_work, write

    if options.work:
        make_work()
    with Stage() as stage:
        for name in options.parts or PARTS:
            write(name, PARTS[name](stage))
            sys.stdout.write(f"{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
