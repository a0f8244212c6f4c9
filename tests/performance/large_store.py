"""Commands, pages, exports and steering of a store with many trials, beside a store of one small search."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import requests

from hpo_pilot import databases
from hpo_pilot.server.tokens import Role
from tests.bearer import token
from tests.performance.many_trials import NAME, make
from tests.rest_api import start_api

# The large store has `_SEARCHES`; the first one runs and has 100 of 128 trials. The small store has only that search.

_TRIALS, _QUICK, _SMALL, _SEARCHES = 128_000, 4_000, 100, 281
_EXPORTS = (["trials", NAME, "--json"], ["export", NAME, "--format=csv"], ["export", NAME, "--format=json"])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=_TRIALS, metavar="N", help=f"large-store: default {_TRIALS}")


def measure(*, quick: bool, trials: int) -> dict[str, Any]:
    """Seconds, peak memory and processor seconds, user and system."""
    count = min(trials, _QUICK) if quick else trials
    figures: dict[str, Any] = {"trials": count}
    with tempfile.TemporaryDirectory() as name:
        small, large = Path(name, "small"), Path(name, "large")
        make(small, _SMALL, 1)
        _copy_kept(large, count)
        for command in (["list"], ["status", NAME], ["best", NAME]):
            of_each = [min(_hpo_pilot(root, *command) for _ in range(3)) for root in (large, small)]
            figures[command[0]] = _show(command[0], *of_each)
        figures["imports of list"] = _imports(large)
        figures |= _pages(small, large)
        for command in _EXPORTS:
            figures |= _both_ways(command, large)
        figures["report"] = _show("report", _hpo_pilot(large, "report", NAME, f"--output={large / 'report.html'}"))
        figures["steering loads it"] = _show("steering loads it", _steering(large))
    return figures


def _copy_kept(root: Path, count: int) -> None:
    """Puts a copy of the store of `count` trials into the work folder; makes the store if it is not kept yet."""
    version = max(path.stem for path in Path(databases.__file__).parent.glob("store/[0-9]*.py"))
    kept = Path(f".cache/bench/large-store-{count}-{version}.db")
    if not kept.exists():
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            make(Path(folder), count, _SEARCHES)
            for old in kept.parent.glob(f"large-store-{count}-*.db"):
                old.unlink()
            Path(folder, "work/hpo-pilot.db").rename(kept)
        print(f"made {kept} in {time.perf_counter() - begun:.0f} s", flush=True)
    (root / "work").mkdir(parents=True)
    shutil.copyfile(kept, root / "work/hpo-pilot.db")


class Used(NamedTuple):
    """What a process used: seconds of time and of processors, and MB of memory at its peak."""

    seconds: float
    cpu: float
    megabytes: float

    def __str__(self) -> str:
        return f"{self.seconds:6.2f} s {self.megabytes:5.0f} MB {self.cpu:6.2f} CPU-s"


def _show(name: str, large: Used, small: Used | None = None) -> dict[str, Used]:
    """Prints a figure; the ratio is that of processor seconds, which other programs change least."""
    beside = f"; small store {small}; ratio {large.cpu / max(small.cpu, 0.01):.1f}" if small else ""
    print(f"{name:26} {large}{beside}", flush=True)
    return {"large": large, **({"small": small} if small else {})}


# Commands. The peak of a process counts its parent's memory at the fork, so a small program starts each.

_STARTER = """
import os, sys, time
begun = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
status, used = os.wait4(pid, 0)[1:]
print(status, time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3, file=sys.stderr)
"""


def _hpo_pilot(root: Path, *arguments: str, where: Sequence[str] = ()) -> Used:
    return _started("-m", "hpo_pilot.cli", *arguments, *(where or ("--workdir", str(root / "work"))))


def _started(*arguments: str) -> Used:
    command = [sys.executable, "-I", "-S", "-c", _STARTER, sys.executable, *arguments]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    status, *used = done.stderr.splitlines()[-1].split()
    if status != "0":
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr}")
    return Used(*map(float, used))


def _imports(root: Path) -> dict[str, float]:
    """Seconds that `list` spends in the modules of each package, the largest first; the best of three runs."""
    found = min((_import_seconds(root) for _ in range(3)), key=Counter.total)
    most = dict(found.most_common(8))
    each = ", ".join(f"{package} {seconds:.2f}" for package, seconds in most.items())
    print(f"{'imports of list':26} {found.total():6.2f} s: {each}", flush=True)
    return {"all": found.total(), **most}


def _import_seconds(root: Path) -> Counter[str]:
    command = [sys.executable, "-X", "importtime", "-m", "hpo_pilot.cli", "list", "--workdir", str(root / "work")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spent: Counter[str] = Counter()
    for own, package in re.findall(r"^import time: +(\d+) \| +\d+ \| +(\w+)", lines, re.MULTILINE):
        spent[package] += int(own) / 1e6  # type: ignore[assignment]  # a Counter counts in any numbers
    return spent


_LOAD = """
import sys, time
from pathlib import Path
from hpo_pilot.panda.manager import PandaManager
from hpo_pilot.panda.server import PandaServer
from hpo_pilot.steering.loop import SearchSteering
from hpo_pilot.store import SteeringStore
store = SteeringStore.open(sys.argv[1])
manager = PandaManager(PandaServer("http://127.0.0.1:9", Path("none"), "bench"), Path("/dev/null"))
begun = time.process_time()
SearchSteering(store.search(sys.argv[2]), store, manager, None, lambda: None)
Path(sys.argv[3]).write_text(str(time.process_time() - begun))
"""


def _steering(root: Path) -> Used:
    """Seconds and peak are those of the process, the processor seconds those of the loading alone."""
    used = _started("-c", _LOAD, f"sqlite:///{root / 'work/hpo-pilot.db'}", NAME, str(root / "loaded"))
    return used._replace(cpu=float((root / "loaded").read_text()))


# The API, in a process as `serve` starts it; processor seconds until it rests, with the threads that a call starts.

_PATHS = {
    "start page": "/",
    "trial page": f"/searches/{NAME}/trials/50",
    "/metrics": "/metrics",
    "/api/v1/searches": "/api/v1/searches",
    "search page": f"/searches/{NAME}",
}


def _pages(small: Path, large: Path) -> dict[str, Any]:
    """One process gets each page twice, in this order; a new one gets the page of the search first."""
    of_each = [_asked(root, _PATHS) for root in (large, small)]
    cold = [_asked(root, {"search page, cold": _PATHS["search page"]}) for root in (large, small)]
    for found, more in zip(of_each, cold, strict=True):
        found["search page, cold"] = more["search page, cold"]
    return {name: _show(name, *(found[name] for found in of_each)) for name in of_each[0]}


def _asked(root: Path, paths: dict[str, str]) -> dict[str, Used]:
    with start_api(root) as api, requests.Session() as browser:
        browser.headers["Authorization"] = f"Bearer {token('bench', Role.OPERATOR)}"
        process = psutil.Process(api.process.pid)
        found = {"API started, memory now": Used(0, _at_rest(process), process.memory_info().rss / 1e6)}
        for page, path in paths.items():
            for name in (page, f"{page}, again"):
                accept = "application/json" if "/api/" in path else "text/html"
                before, begun = _at_rest(process), time.perf_counter()
                browser.get(api.url + path, headers={"Accept": accept}, timeout=600).raise_for_status()
                seconds = time.perf_counter() - begun
                found[name] = Used(seconds, _at_rest(process) - before, _peak(process))
        found["API after these, now"] = Used(0, _at_rest(process), process.memory_info().rss / 1e6)
    return found


def _at_rest(process: psutil.Process) -> float:
    """Processor seconds of a process so far, as soon as it has used none for 0.3 s."""
    used, before = 0.0, -1.0
    while used > before:
        times, before = process.cpu_times(), used
        used = times.user + times.system
        time.sleep(0.3)
    return used


def _peak(process: psutil.Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e3


def _both_ways(command: list[str], root: Path) -> dict[str, Any]:
    """A command that reads the store, and the same one that asks a new API process."""
    name = " ".join(command).replace(f" {NAME}", "").replace("--format=", "")
    figures = {name: _show(name, _hpo_pilot(root, *command))}
    with start_api(root) as api:
        process = psutil.Process(api.process.pid)
        before = _at_rest(process)
        where = ["--service", api.url, "--token-file", str(api.token_file("bench"))]
        used = _hpo_pilot(root, *command, where=where)
        figures[f"{name}, remote"] = _show(f"{name}, remote", used)
        used = Used(used.seconds, _at_rest(process) - before, _peak(process))
        figures[f"{name}, API"] = _show(f"{name}, API", used)
    return figures
