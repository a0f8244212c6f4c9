"""Draws slow figures and reports in a process of their own: they would add 300 MB to that of the pages, for good."""

from __future__ import annotations

import pickle
import select
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpo_pilot.advice import Place
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.report.catalogue import build
from hpo_pilot.report.figure import Figure, FigureData
from hpo_pilot.steering.results import render_search_report
from hpo_pilot.store import Store

#: Seconds without work after which the process ends and frees its memory; its start takes some seconds.
_IDLE = 300.0

#: Largest resident set in MB with which it waits for further work: Python does not give all memory back.
_LARGEST = 400


class FigureWorker:
    """A process that draws figures and reports, one at a time. It starts with the first, and ends with this process."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def build(self, key: str, data: FigureData) -> list[Figure]:
        """Returns the figures of a kind as `hpo_pilot.report.catalogue.build`.

        Raises:
            InputError: there is no such figure.
            TryAgainError: the process ended before it had drawn them.
        """
        figures: list[Figure] = self._call("the figure", build, key, data)
        return figures

    def report(self, store: Store, number: int, place: Place) -> str:
        """Returns the HTML report of a search.

        Args:
            store: the store, which the process opens too.
            number: number of the search.
            place: work folder and store for the commands in the report.

        Raises:
            InputError: there is no such search any more.
            TryAgainError: the process ended before it had drawn the report, or the store does not answer.
        """
        url = store.engine.url.render_as_string(hide_password=False)
        text: str = self._call("the report", _report, url, number, place)
        return text

    def _call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                command = [sys.executable, "-m", "hpo_pilot.web.figure_worker"]
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            asked, answers = self._process.stdin, self._process.stdout
            assert asked is not None and answers is not None
            try:
                pickle.dump((function, arguments), asked)
                asked.flush()
                answer, failure, stays = pickle.load(answers)  # noqa: S301 - of our own process
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                self._process.kill()
                self._process.wait()
                raise TryAgainError(f"{what} could not be drawn: its process ended, see the log") from error
            if not stays:
                self._process.wait()
        if failure is not None:
            raise failure
        return answer


def _report(store_url: str, number: int, place: Place) -> str:
    store = Store.open(store_url)
    try:
        return render_search_report(store, store.search(str(number)), place)
    finally:
        store.close()


def _serve() -> None:
    """Draws until there is no work for a while, its memory has grown, or the process of the pages has ended."""
    stays = True
    while stays and select.select([sys.stdin], [], [], _IDLE)[0]:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301 - of our own process
        except EOFError:
            return
        answer: Any = None
        failure: Exception | None = None
        try:
            answer = function(*arguments)
        except (InputError, TryAgainError) as error:  # not all of their subclasses can be pickled
            failure = (InputError if isinstance(error, InputError) else TryAgainError)(str(error))
        except Exception:  # noqa: BLE001  # the caller gets it
            failure = RuntimeError(traceback.format_exc())
        stays = _peak_mb() < _LARGEST
        pickle.dump((answer, failure, stays), sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _peak_mb() -> float:
    """Returns the largest resident set of this process; that of `getrusage` begins with its parent's."""
    status = Path("/proc/self/status").read_text("ascii", "replace")
    return float(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    _serve()
