"""Commands, pages, exports, steering and the service of a store with many trials, beside a store of one small search.

Each figure is shown with its goal. A goal on time holds if the processor seconds or the seconds on the clock are
within it: on a busy machine the latter grow.
"""

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
from urllib.parse import quote

import psutil
import requests
from sqlalchemy import func, select

from hpo_pilot import databases
from hpo_pilot.search import TrialState
from hpo_pilot.server.tokens import Role
from hpo_pilot.steering.registration import pack_payload
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import SearchState
from hpo_pilot.store import tables as t
from hpo_pilot.store.database import read_values
from tests.bearer import token
from tests.performance.many_trials import NAME, make
from tests.performance.optimizers.speed import probe
from tests.rest_api import start_api, store_of

# The large store has up to 1,000 searches; the first one runs and has a fifth of the trials. `_OTHER` is a small one of
# them. The small store has only one search of `_SMALL` trials.

_TRIALS, _QUICK, _SMALL, _SEARCHES = 128_000, 4_000, 100, 1_000
_OTHER = f"{NAME}7"

#: Goals. Commands: processor seconds beyond those of the same command on the small store.
_COMMAND, _PAGE, _FIGURE, _RESTART, _MEGABYTES, _STEP = 0.2, 0.4, 15.0, 10.0, 400, 1.5
_ASKS = {(1_000, 256): 1.5, (100_000, 256): 2.0, (200_000, 256): 3.0}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=_TRIALS, metavar="N", help=f"large-store: default {_TRIALS}")


def measure(*, quick: bool, trials: int) -> dict[str, Any]:
    """Seconds, peak memory and processor seconds, user and system."""
    count = min(trials, _QUICK) if quick else trials
    figures = _Figures()
    with tempfile.TemporaryDirectory() as name:
        small, large = Path(name, "small"), Path(name, "large")
        make(small, _SMALL, 1)
        _copy_kept(large, count)
        _commands(figures, small, large)
        _pages(figures, large)
        _exports(figures, large)
        _steering(figures, small, large)
        _service(figures, large)
    for (told, asked), limit in {} if quick else _ASKS.items():
        found = probe("auto", told, asked)
        used = Used(found["ask"], found["ask"], found["peak_mb"])
        figures.seconds(f"ask({asked}) at {told:,} told", used, limit)
    missed = [name for name, one in figures.found.items() if not one["held"]]
    print(f"{len(figures.found) - len(missed)} goals held; missed: {', '.join(missed) or 'none'}")
    return {"trials": count, "missed": missed, **figures.found}


def _copy_kept(root: Path, count: int) -> None:
    """Puts a copy of the store of `count` trials into the work folder; makes the store if none is kept yet.

    A kept store of an older version stays as it is: what opens the copy migrates that.
    """
    version = max(path.stem[:4] for path in Path(databases.__file__).parent.glob("store/[0-9]*.py"))
    kept = Path("~/.cache/hpo_pilot").expanduser() / f"large-store-{count}-{version}.db"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept = max(kept.parent.glob(f"large-store-{count}-*.db"), default=kept)
    if not kept.exists():
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            make(Path(folder), count, max(8, min(_SEARCHES, count // 100)))
            Path(folder, "work/hpo-pilot.db").rename(kept)
        print(f"made {kept} in {time.perf_counter() - begun:.0f} s", flush=True)
    (root / "work").mkdir(parents=True)
    shutil.copyfile(kept, root / "work/hpo-pilot.db")


class Used(NamedTuple):
    """What a process used: seconds of time and of processors, and MB of memory (of a command at its peak)."""

    seconds: float
    cpu: float
    megabytes: float

    def __str__(self) -> str:
        return f"{self.cpu:6.2f} CPU-s {self.seconds:6.2f} s {self.megabytes:5.0f} MB"


class _Figures:
    """Prints figures with their goals, and keeps them."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def seconds(self, name: str, used: Used, limit: float, small: Used | None = None) -> None:
        """Shows a figure whose goal is a number of seconds; with `small`: beyond those of the small store."""
        goal = limit + (small.cpu if small else 0.0)
        self._show(name, used, f"{goal:.2f} s", small, held=min(used.cpu, used.seconds) <= goal)

    def memory(self, name: str, used: Used) -> None:
        """Shows a figure whose goal is the memory."""
        self._show(name, used, f"{_MEGABYTES} MB", held=used.megabytes <= _MEGABYTES)

    def _show(self, name: str, used: Used, goal: str, small: Used | None = None, *, held: bool) -> None:
        beside = f"; small store {small}" if small else ""
        print(f"{name:36} {used}  goal {goal:8} {'held' if held else 'MISSED'}{beside}", flush=True)
        self.found[name] = {"used": used, "small": small, "goal": goal, "held": held}


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


_LOOKS = (
    *(["list"], ["list", "--text", "scan77", "--json"], ["status", "{}"], ["status", "{}", "--json"], ["best", "{}"]),
    *(["log", "{}"], ["note", "{}"], ["trials", "{}", "--where", "number <= 20"]),
    *(["trials", "{}", "--where", "loss < 0.001"], ["trials", "{}", "--where", "state == 'failed' and number < 99"]),
)
_POINT = ("x=0.1", "y=0.2", "z=0.3", "rate=0.001", "layers=3", "kind=a")
_CHANGES = (
    *(["note", "{}", "seen", "--trial", "50"], ["try", "{}", *_POINT], ["retry", "{}", "--trial", "{failed}"]),
    *(["extend", "{}", "--trials", "+1"], ["pause", "{}"], ["resume", "{}"]),
)


def _commands(figures: _Figures, small: Path, large: Path) -> None:
    failed = {(root, name): _failed(root, name) for root, name in ((small, NAME), (large, NAME), (large, _OTHER))}

    def used(root: Path, name: str, command: list[str], repeats: int) -> Used:
        words = [word.format(name, failed=failed[root, name]) for word in command]
        return min((_hpo_pilot(root, *words) for _ in range(repeats)), key=lambda one: one.cpu)

    for command in (*_LOOKS, *_CHANGES):
        repeats = 1 if command in _CHANGES else 2
        beside = used(small, NAME, command, repeats)
        title = " ".join(command).replace(" {}", "")[:26]
        figures.seconds(title, used(large, NAME, command, repeats), _COMMAND, beside)
        if "{}" in command and command[0] not in ("pause", "resume"):  # that one is over
            figures.seconds(f"{title}, {_OTHER}", used(large, _OTHER, command, repeats), _COMMAND, beside)
    figures.seconds("report", _hpo_pilot(large, "report", NAME, f"--output={large / 'report.html'}"), _FIGURE)
    imports = min((_import_seconds(large) for _ in range(3)), key=Counter.total)
    each = ", ".join(f"{package} {seconds:.2f}" for package, seconds in imports.most_common(8))
    print(f"{'imports of list':36} {imports.total():6.2f} s: {each}", flush=True)


def _failed(root: Path, name: str) -> int:
    """Returns the last failed trial of a search."""
    store, c = store_of(root / "work"), t.trials.c
    failed = (c.search_id == store.search(name).id) & (c.state == TrialState.FAILED.value)
    (last,) = read_values(store.engine, select(func.max(c.number)).where(failed))
    store.close()
    return int(last)


def _import_seconds(root: Path) -> Counter[str]:
    """Returns the seconds that `list` spends in the modules of each package."""
    command = [sys.executable, "-X", "importtime", "-m", "hpo_pilot.cli", "list", "--workdir", str(root / "work")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spent: Counter[str] = Counter()
    for own, package in re.findall(r"^import time: +(\d+) \| +\d+ \| +(\w+)", lines, re.MULTILINE):
        spent[package] += int(own) / 1e6  # type: ignore[assignment]  # a Counter counts in any numbers
    return spent


# The API, in a process as `serve` starts it; processor seconds until it rests, with the threads that a call starts.

_QUERY = f"where={quote('loss < 0.01 and layers == 2')}"
_OF_SEARCH = (
    *("/trials", "/trials?page=9", "/trials?sort=-value", "/trials?sort=p.rate", "/trials?state=failed"),
    *(f"/trials?{_QUERY}", "/trials?text=status", "/trials/50", "/errors", "/actions"),
)
_REST = ("", "/best", "/recommendation", "/progress", "/events", "/trials", "/trials?after=150000", f"/trials?{_QUERY}")
_FIGURE_KEYS = re.compile(r'data-kind="(\w+)"')


def _paths(name: str) -> list[str]:
    search, rest = f"/searches/{name}", f"/api/v1/searches/{name}"
    return [search, *(search + path for path in _OF_SEARCH), *(rest + path for path in _REST)]


_ALL = ["/", "/?page=9", "/?q=scan77&state=over", "/metrics", "/api/v1/searches", "/api/v1/searches?limit=50"]


def _pages(figures: _Figures, large: Path) -> None:
    """Each page first and again, and the figures of the search's page."""
    with start_api(large) as api, requests.Session() as browser:
        browser.headers["Authorization"] = f"Bearer {token('bench', Role.OPERATOR)}"
        process = psutil.Process(api.process.pid)

        def used(path: str) -> tuple[Used, str]:
            accept = "application/json" if "/api/" in path else "text/html"
            before, begun = _at_rest(process), time.perf_counter()
            answer = browser.get(api.url + path, headers={"Accept": accept}, timeout=600)
            answer.raise_for_status()
            seconds = time.perf_counter() - begun
            return Used(seconds, _at_rest(process) - before, _private(process)), answer.text

        time.sleep(2)  # nobody follows a link sooner; the pages have read the store meanwhile
        for path in (*_ALL, *_paths(NAME), *_paths(_OTHER)):
            first, again = used(path)[0], used(path)[0]
            figures.seconds(path, first, _PAGE)
            figures.seconds(f"{path}, again", again, _PAGE)
        for search in (NAME, f"{NAME}1"):
            for key in _FIGURE_KEYS.findall(used(f"/searches/{search}")[1]):
                figures.seconds(f"figure {key}, {search}", used(f"/searches/{search}/figures/{key}")[0], _FIGURE)
        figures.memory("API after these", Used(0, 0, _private(process)))


def _at_rest(process: psutil.Process) -> float:
    """Processor seconds of a process so far, as soon as it has used none for 0.3 s."""
    used, before = 0.0, -1.0
    while used > before:
        times, before = [one.cpu_times() for one in (process, *process.children())], used  # figures have a worker
        used = sum(one.user + one.system for one in times)
        time.sleep(0.3)
    return used


def _private(process: psutil.Process) -> float:
    """Memory of a process without the parts of files that it shares with the system's cache, in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1e3


_EXPORTS = (["trials", NAME, "--json"], ["export", NAME, "--format=csv"], ["export", NAME, "--format=json"])


def _exports(figures: _Figures, root: Path) -> None:
    """Commands that print all trials read the store, or ask a new API process: in both their memory has the goal."""
    for command in _EXPORTS:
        name = " ".join(command).replace(f" {NAME}", "").replace("--format=", "")
        figures.memory(name, _hpo_pilot(root, *command))
        with start_api(root) as api:
            process = psutil.Process(api.process.pid)
            before = _at_rest(process)
            where = ["--service", api.url, "--token-file", str(api.token_file("bench"))]
            used = _hpo_pilot(root, *command, where=where)
            figures.memory(f"{name}, remote", used)
            figures.memory(f"{name}, API", Used(used.seconds, _at_rest(process) - before, _private(process)))


# Steering without a server: what it takes to load a search, and each further trial.

_STEPS = 200
_STEER = f"""
import sys, time
from hpo_pilot.jobs import TaskState
from hpo_pilot.steering.loop import SearchSteering
from hpo_pilot.store import SteeringStore
from tests.steering.memory_panda import AtOnce, Panda, finish_all
store = SteeringStore.open(sys.argv[1])
record = store.search("{NAME}")
search = record.search
budget = search.budget.model_copy(update={{"trials": search.budget.trials + {_STEPS}, "parallel": 4}})
random = search.model_validate({{**search.to_dict(), "optimizer": "random", "budget": budget.model_dump()}})
record = store.redefine(record.id, lambda _: (random, "a random search"), "bench")
panda = Panda()
for task in store.open_tasks(record.id):
    panda.tasks[task.jedi_task_id], panda.reports[task.jedi_task_id] = task, {{}}
    panda.states[task.jedi_task_id] = TaskState.RUNNING
used = [time.process_time()]
steering = SearchSteering(record, store, panda, AtOnce(), lambda: None)
used.append(time.process_time())
panda.tasks.clear()
finish_all(steering, panda, rounds=4)
used.append(time.process_time())
before = steering._ledger.told
finish_all(steering, panda, rounds={_STEPS} // 4 - 8)
used.append(time.process_time())
trial = (used[3] - used[2]) / (steering._ledger.told - before)
private = int(open("/proc/self/status").read().partition("RssAnon:")[2].split()[0]) / 1e3
print(used[1] - used[0], trial, private, file=open(sys.argv[2], "w"))
"""


def _steering(figures: _Figures, small: Path, large: Path) -> None:
    loads, steps = [], []
    for root in (small, large):
        shutil.copyfile(root / "work/hpo-pilot.db", root / "steered.db")
        _started("-c", _STEER, f"sqlite:///{root / 'steered.db'}", str(root / "steered"))
        load, step, private = map(float, (root / "steered").read_text().split())
        (root / "steered.db").unlink()
        loads.append(Used(load, load, private))
        steps.append(Used(1e3 * step, 1e3 * step, private))
    figures.seconds("steering loads it", loads[1], _RESTART)
    figures.memory("steering has it", loads[1])
    figures.seconds("a steered trial, milliseconds", steps[1], (_STEP - 1) * steps[0].cpu, steps[0])


# The service with its children: from its start until it has submitted the lost folds of the running search again, and
# until it has asked for points.


def _service(figures: _Figures, root: Path) -> None:
    _hpo_pilot(root, "extend", NAME, "--trials", "+200")
    store, c = store_of(root / "work"), t.tasks.c
    record = store.search(NAME)
    sandbox = str(pack_payload(record.search, root / "search.yaml", WorkDir.make(root / "work")))
    store.reopen(record.id, "bench", "has a payload", only_from=[SearchState.RUNNING], sandbox=sandbox)
    submitted = select(func.count()).where(c.search_id == record.id, c.submitted > time.time())
    asked = submitted.where(c.revision == 0)
    command = [sys.executable, "-m", "hpo_pilot.cli", "serve", "--slots", "0", "--workdir", str(root / "work")]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for name, query, limit in (("lost folds", submitted, _RESTART), ("new points", asked, _RESTART + 3)):
                while not read_values(store.engine, query)[0]:
                    if process.poll() is not None or store.search(NAME).state.is_over:
                        raise RuntimeError(f"the service or its search has ended: {store.search(NAME).message}")
                    time.sleep(0.05)
                each = _of_tree(process.pid)
                total = Used(time.perf_counter() - begun, sum(one.cpu for one in each.values()), 0)
                figures.seconds(f"restart, until {name} went out", total, limit)
            for part, used in _of_tree(process.pid).items():
                figures.memory(f"service: {part}", used)
        finally:
            process.terminate()
            store.close()


def _of_tree(pid: int) -> dict[str, Used]:
    """Returns what the steering process and its children have used so far."""
    found: dict[str, Used] = {}
    service = psutil.Process(pid)
    for process in (service, *service.children(recursive=True)):
        line = " ".join(process.cmdline())
        part = next((word for word in ("server", "web", "client_worker", "pilot.cli serve") if word in line), line[:20])
        times = process.cpu_times()
        used = Used(0, times.user + times.system, _private(process))
        before = found.get(part, Used(0, 0, 0))
        found[part] = Used(0, used.cpu + before.cpu, max(used.megabytes, before.megabytes))
    return found
