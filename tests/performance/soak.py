"""A long run of fast trials: memory, files, connections and disk of a service must not grow with what has ended.

A real service steers one search after another: most with ``payload: none``, whose trials clients ask for over REST, and
beside them some whose payload is a function in a kept interpreter of the local pilot. Every few seconds each process
and each folder is measured. The first third is left out; a line through the means of ten parts of the rest, with its
error, says what 10,000 trials more would cost. What is kept by policy (results, and the tasks of a year) may grow; so
do the server's caches of 512 tasks over the first 10,000 trials.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from hpo_pilot import connect
from hpo_pilot.operations.client import SearchClient
from tests.end_to_end.conftest import Scan

_EACH, _CLIENTS, _PARTS, _EVERY = 1000, 6, 10, 3.0  # trials of a search, clients, parts of the line, seconds
_SHARE = 0.02  # growth over 10,000 trials, as a share of the mean, that is no growth
_KINDS = ("hpo_pilot.server", "hpo_pilot.web", "client_worker", "hpo_pilot.pilot", "hpo_pilot_function", "serve")
#: Results, tasks of the last year, payload, environment and report of each search; logs, up to 40 MB each;
#: libraries, and the first 128 MB of a SQLite file, which every connection maps.
_KEPT_BY_POLICY = ("hpo-pilot.db", "panda.db", "panda-files", "sandboxes", "environments", "reports", "logs", "mapped")
_FUNCTION = "def objective(point):\n    return point['x']\n"


def measure(*, quick: bool, trials: int = 100_000) -> dict[str, Any]:
    """Growth over 10,000 trials of each figure, its error, and whether it is flat."""
    count = min(trials, 2000) if quick else trials
    samples: list[tuple[int, dict[str, float]]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        scan = Scan(Path(name))
        with scan.serving("--slots", "2") as service:
            threading.Thread(target=_read, args=(service.stdout,), daemon=True).start()
            done, failures = [0], list[str]()
            workers = [
                threading.Thread(target=work, args=(scan, share, done, failures), daemon=True)
                for work, share in ((_asked, count * 9 // 10), (_functions, count // 10))
            ]
            begun = time.monotonic()
            for worker in workers:
                worker.start()
            try:
                while any(worker.is_alive() for worker in workers) and not failures:
                    samples.append((done[0], dict(_figures(service.pid, scan.workdir))))
                    time.sleep(_EVERY)
            finally:  # what was measured counts, also if it is interrupted
                figures = _shown(samples, time.monotonic() - begun)
    if failures:
        raise RuntimeError(failures[0])
    return figures


def _shown(samples: list[tuple[int, dict[str, float]]], seconds: float) -> dict[str, Any]:
    done = samples[-1][0]
    print(f"{done} trials in {seconds:.0f} s, {done / seconds:.1f}/s; {len(samples)} samples")
    figures: dict[str, Any] = {"trials": done, "seconds": seconds}
    for what in sorted({what for _, sample in samples for what in sample}):
        figures[what] = _line(what, [(n, sample.get(what, 0.0)) for n, sample in samples])
    grows = [what for what, its in figures.items() if isinstance(its, dict) and its["says"] == "GROWS"]
    print(f"GROWS: {', '.join(grows)}" if grows else "flat")
    return figures


def _read(output: Any) -> None:
    for _ in output:
        pass


def _asked(scan: Scan, count: int, done: list[int], failures: list[str]) -> None:
    """Clients that ask for trials and tell results, in searches one after another."""
    connection = ((scan.workdir / "service.url").read_text().strip(), scan.workdir / "tokens" / "user.token")

    def work(name: str) -> None:
        try:
            search = connect(*connection).search(name)
            while (trial := search.ask()) is not None:
                search.tell(trial, trial.point["x"])
                done[0] += 1  # sampled: an addition that is lost between two threads does not matter
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            failures.append(f"{name}: {error!r}")

    for number in range(max(1, count // _EACH)):
        budget = {"trials": min(_EACH, count), "parallel": _CLIENTS, "queued": 200}
        _submit(scan, f"asked{number}", {"payload": "none", "budget": budget})
        clients = [threading.Thread(target=work, args=(f"asked{number}",)) for _ in range(_CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()


def _functions(scan: Scan, count: int, done: list[int], failures: list[str]) -> None:
    """Searches whose payload is a function in a kept interpreter of the local pilot."""
    for number in range(max(1, count * 10 // _EACH)):
        name, each = f"jobs{number}", min(_EACH // 10, count)
        _submit(
            scan,
            name,
            {"payload": {"files": "payload", "function": "train:objective"}, "budget": {"trials": each, "parallel": 4}},
        )
        with SearchClient.local(scan.workdir) as here:
            while here.status(name)["state"] not in ("done", "failed", "stopped"):
                time.sleep(1.0)
            finished = here.status(name)["trials"]["finished"]
        if finished != each:
            failures.append(f"{name}: {finished} of {each} trials finished")
        done[0] += each


def _submit(scan: Scan, name: str, document: dict[str, Any]) -> None:
    folder = scan.root / name
    (folder / "payload").mkdir(parents=True)
    (folder / "payload" / "train.py").write_text(_FUNCTION)
    base = {"search": name, "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}}, "optimizer": "random"}
    if document["payload"] != "none":
        base["resources"] = {"minutes": 1, "memory_mb": 200}
    (folder / "search.yaml").write_text(yaml.safe_dump({**base, **document}))
    with SearchClient.local(scan.workdir) as here:
        here.submit(folder / "search.yaml")


def _figures(pid: int, workdir: Path) -> Iterator[tuple[str, float]]:
    """Of each kind of process memory (MB), open files, connections, threads; of each folder MB and files."""
    found: dict[str, float] = defaultdict(float)
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            line = " ".join(process.cmdline())
            kind = next((kind for kind in _KINDS if kind in line), "other").removeprefix("hpo_pilot.")
            memory = process.memory_info()
            mapped = getattr(memory, "shared", 0)
            found[f"{kind} MB"] += (memory.rss - mapped) / 1e6
            found[f"mapped {kind} MB"] += mapped / 1e6
            found[f"{kind} files"] += process.num_fds()
            found[f"{kind} connections"] += len(process.net_connections())
            found[f"{kind} threads"] += process.num_threads()
            found["processes"] += 1
        except psutil.Error:
            continue
    for folder, _, names in os.walk(workdir):  # leaves out what is removed meanwhile
        top = Path(folder).relative_to(workdir).parts[:1]
        for path in (Path(folder, name) for name in names):
            of = top[0] if top else path.name.removesuffix("-wal").removesuffix("-shm")
            try:
                found[f"{of} MB on disk"] += path.stat().st_size / 1e6
                found[f"{of} files on disk"] += 1
            except OSError:
                continue
    yield from found.items()


def _line(what: str, samples: list[tuple[int, float]]) -> dict[str, Any]:
    """Least squares through the means of some parts of the samples, without the first third."""
    kept = samples[len(samples) // 3 :]
    size = max(1, len(kept) // _PARTS)
    parts = [kept[at : at + size] for at in range(0, len(kept) - size + 1, size)]
    points = [(statistics.fmean(n for n, _ in part) / 10_000, statistics.fmean(y for _, y in part)) for part in parts]
    slope, error, mean = math.nan, math.inf, statistics.fmean(y for _, y in points)
    if len(points) > 2 and (spread := sum((x - statistics.fmean(x for x, _ in points)) ** 2 for x, _ in points)):
        slope, constant = statistics.linear_regression(*zip(*points, strict=True))
        rest = sum((y - constant - slope * x) ** 2 for x, y in points)
        error = math.sqrt(rest / (len(points) - 2) / spread)
    kept_by_policy = what.split(maxsplit=1)[0] in _KEPT_BY_POLICY
    # A file or two more is seldom a leak: small figures count from half a unit of theirs on.
    is_flat = not slope > max(3 * error, _SHARE * mean, 0.5)
    says = "kept by policy" if kept_by_policy else "flat" if is_flat else "GROWS"
    if slope or says == "GROWS":
        print(
            f"  {what:32} {samples[0][1]:9.1f} to {samples[-1][1]:9.1f}; {slope:+9.2f} ± {error:.2f} per 10,000: {says}"
        )
    return {"first": samples[0][1], "last": samples[-1][1], "slope": slope, "error": error, "says": says}
