"""Runs a compiled kernel on processors of its own, and says how long it takes and how sure that is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from compiler import TuningError

#: Largest error that rounding can explain, in units of the matrices' size and of 1: 2⁻⁵³ and a margin of a hundred.
TOLERANCE = 1e-14
WARM_UP = 0.05  #: seconds
FEWEST_QUIET = 5  #: samples; where there are fewer, those that were interrupted count as well
PATIENCE = 300.0  #: seconds for one program


@contextlib.contextmanager
def own_processors(count: int) -> Iterator[int]:
    """Keeps this process and its children on processors that no other tuning of this machine has.

    Each is held by a lock on a file, which goes with the process, whatever ends it.

    Yields:
        How many there are: `count`, or 0 where there are not enough, or the system has no such thing; then nothing is
        pinned.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield 0
        return
    before = os.sched_getaffinity(0)
    with contextlib.ExitStack() as held:
        mine: list[int] = []
        for number in sorted(before, reverse=True):  # the first ones serve more interrupts
            path = Path(tempfile.gettempdir()) / f"autotune-{os.getuid()}-cpu{number}.lock"
            file = held.enter_context(path.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # another tuning has it, or the file system has no locks: then not pinned
            mine.append(number)
            if len(mine) == count:
                break
        if len(mine) < count:
            yield 0
            return
        os.sched_setaffinity(0, mine)
        try:
            yield count
        finally:
            os.sched_setaffinity(0, before)


def run(program: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """What the driver writes.

    Raises:
        TuningError: it crashed, hung, or the kernel's result is wrong.
    """
    environment = {**os.environ, "OMP_PROC_BIND": "close", "OMP_PLACES": "threads"}
    try:
        done = subprocess.run(
            [str(program.absolute()), *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise TuningError(f"the kernel did not end within {PATIENCE:g} s") from error
    if done.returncode < 0:
        raise TuningError(f"the kernel was ended by {signal.Signals(-done.returncode).name}")
    if done.returncode > 0:
        raise TuningError(f"the driver ended with exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    if not float(found["error"]) <= TOLERANCE:
        raise TuningError(
            f"the kernel's result is wrong: row {found['row']}, column {found['column']} of the product should be "
            f"{found['expected']:.6g} and is off by {float(found['error']):.3g} times the matrices' size"
        )
    return found


def summary(quiet: Sequence[float], disturbed: Sequence[float]) -> dict[str, float]:
    """The median of the samples, and how sure it is.

    Samples during which another program took the processor away are left aside, unless nearly all are such. What else
    disturbs only ever adds time: the median does not follow it, a mean would. Its standard error is 1.2533 σ / √n, σ
    being 1.4826 times the median deviation from the median, both for a normal distribution.

    Args:
        quiet: seconds of a call, by sample; consecutive samples are not independent, so the error is a lower bound.
        disturbed: the same of samples that were interrupted.
    """
    times = quiet if len(quiet) >= FEWEST_QUIET else [*quiet, *disturbed]
    median = statistics.median(times)
    sigma = 1.4826 * statistics.median(abs(time - median) for time in times)
    return {
        "seconds": median,
        "seconds_error": 1.2533 * sigma / len(times) ** 0.5,
        "fastest": min(times),
        "slowest": max(times),
        "samples": len(times),
        "disturbed": len(disturbed),
        "outliers": sum(time > median + 5 * sigma for time in times) if sigma > 0 else 0,
    }
