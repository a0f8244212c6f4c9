"""A payload whose processes try to outlive their job, and what is left of it."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import psutil

#: How its processes try to outlive the job: but the first, in a session of their own, the last without environment.
KINDS = ("child", "session", "daemon", "stubborn", "hidden")

#: Every process notes each 10 ms that it lives: its attempt and the time, in a file of its own.
SCRIPT = """
import os, signal, sys, time

folder, kind, attempt = [*sys.argv[1:], os.environ.get("PANDA_ATTEMPTNR", "1")][:3]
if kind == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if kind != "alone" and os.fork() == 0:
    if kind != "child":
        os.setsid()
    if kind in ("daemon", "hidden") and os.fork():
        os._exit(0)
    if kind == "hidden":
        os.execve(sys.executable, [sys.executable, sys.argv[0], folder, "alone", attempt], {})
with open("%s/%s.%d" % (folder, attempt, os.getpid()), "w", 1) as file:
    while not os.path.exists(folder + "/over"):
        file.write("%.4f\\n" % time.monotonic())
        time.sleep(0.01)
open("output.json", "w").write('{"status": 0, "loss": 0.5}')
"""
NAME = "outlive.py"


def command(folder: Path, kind: str, python: str = sys.executable) -> str:
    """The payload's command; the shell stays between its processes and the runner."""
    folder.mkdir(exist_ok=True)
    return f"{python} {NAME} {folder} {kind}; true"


def lives(folder: Path, attempt: int) -> dict[int, list[float]]:
    """When each process of an attempt lived."""
    found = {}
    for path in folder.glob(f"{attempt}.*"):
        times = [float(line) for line in path.read_text().split("\n")[:-1]]
        if times:
            found[int(path.suffix[1:])] = times
    return found


def runs(folder: Path, attempt: int = 1) -> bool:
    """Whether both processes of an attempt have begun."""
    return len(lives(folder, attempt)) == 2


def kill_at_once(processes: Sequence[psutil.Process]) -> None:
    """As when memory runs out, or a batch system is in a hurry: none of them can notice the end of another."""
    for process in processes:
        process.suspend()
    for process in processes:
        process.kill()


def runners(children: Iterable[psutil.Process]) -> Iterator[psutil.Process]:
    """The runners among a pilot's children: forked from a kept interpreter, and in process groups of their own."""
    for child in children:
        if "hpo_pilot_function.py" in " ".join(child.cmdline()) and os.getpgid(child.pid) == child.pid:
            yield child


def left(folder: Path) -> list[str]:
    """The command lines of the payload's processes, its shell's among them, that have not ended."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            is_ours = all(any(part in word for word in words) for part in (NAME, str(folder)))
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(words))
        except psutil.Error:
            continue  # it ended meanwhile
    return found


def overlap(folder: Path) -> bool:
    """Whether an attempt began before all processes of the one before it had ended."""
    attempts = sorted({int(path.name.partition(".")[0]) for path in folder.glob("*.*")})
    spans = [[time for times in lives(folder, attempt).values() for time in times] for attempt in attempts]
    return any(max(before) >= min(after) for before, after in itertools.pairwise(spans))
