"""Runs ranks on this machine for the stub launchers, as the real ones would: one that fails may end the others."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NoReturn


def refuse(program: str, message: str) -> NoReturn:
    """Ends the stub as the real program ends on wrong arguments."""
    sys.stderr.write(f"{program}: error: {message}\n")
    raise SystemExit(64)


def run_ranks(argv: Sequence[str], environments: Sequence[dict[str, str]], *, all_end: bool) -> int:
    """Starts one process for each environment; the exit status of the first that failed, else 0.

    Args:
        argv: of each.
        environments: one a rank.
        all_end: the first that fails ends the others.
    """
    ranks = [subprocess.Popen(list(argv), env=env) for env in environments]
    status = 0
    while any(rank.poll() is None for rank in ranks):
        failed = [rank.returncode for rank in ranks if rank.poll() is not None and rank.returncode != 0]
        if failed and all_end:
            status = failed[0]
            for rank in ranks:
                rank.terminate()
        time.sleep(0.02)
    return status or next((rank.returncode for rank in ranks if rank.returncode), 0)
