"""Draws figures in a process of their own: scikit-learn would add 160 MB to the process of the pages, for good."""

from __future__ import annotations

import pickle
import subprocess
import sys

from hpo_pilot.errors import TryAgainError
from hpo_pilot.report.catalogue import build
from hpo_pilot.report.figure import Figure, FigureData


def build_apart(key: str, data: FigureData) -> list[Figure]:
    """Returns the figures of a kind as `hpo_pilot.report.catalogue.build`, drawn in another process.

    Raises:
        TryAgainError: that process was killed.
    """
    command = [sys.executable, "-m", "hpo_pilot.web.figure_worker"]
    done = subprocess.run(command, input=pickle.dumps((key, data)), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise TryAgainError("the figure could not be drawn: its process ended, see the log; try again")
    figures: list[Figure] = pickle.loads(done.stdout)  # noqa: S301 - of our own process
    return figures


if __name__ == "__main__":
    pickle.dump(build(*pickle.load(sys.stdin.buffer)), sys.stdout.buffer)  # noqa: S301 - of our own process
