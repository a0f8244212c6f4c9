"""Draws figures in a process of their own: scikit-learn would add 160 MB to the process of the pages, for good."""

from __future__ import annotations

import pickle
import select
import subprocess
import sys
import threading

from hpo_pilot.errors import TryAgainError
from hpo_pilot.report.catalogue import build
from hpo_pilot.report.figure import Figure, FigureData

#: Seconds without work after which the process ends and frees its memory; its start takes some seconds.
_IDLE = 300.0


class FigureWorker:
    """A process that draws figures, one at a time. It starts with the first one, and ends with this process."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def build(self, key: str, data: FigureData) -> list[Figure]:
        """Returns the figures of a kind as `hpo_pilot.report.catalogue.build`.

        Raises:
            TryAgainError: the process ended before it had drawn them.
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                command = [sys.executable, "-m", "hpo_pilot.web.figure_worker"]
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            asked, answers = self._process.stdin, self._process.stdout
            assert asked is not None and answers is not None
            try:
                pickle.dump((key, data), asked)
                asked.flush()
                figures: list[Figure] = pickle.load(answers)  # noqa: S301 - of our own process
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                self._process.kill()
                self._process.wait()
                raise TryAgainError("the figure could not be drawn: its process ended, see the log") from error
            return figures


def _serve() -> None:
    """Draws until there is no work for a while, or the process of the pages has ended."""
    while select.select([sys.stdin], [], [], _IDLE)[0]:
        try:
            key, data = pickle.load(sys.stdin.buffer)  # noqa: S301 - of our own process
        except EOFError:
            return
        pickle.dump(build(key, data), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
