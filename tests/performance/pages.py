"""The monitor's pages and BigPanDA's JSON with many trials and jobs."""

from __future__ import annotations

import json
import math
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
from sqlalchemy import insert, select, update

from hpo_pilot.jobs import JobNeeds, JobState, Member, TaskSpec
from hpo_pilot.panda.task_parameters import encode_points
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.server import tasks as queue
from hpo_pilot.server.database import Database, job_documents, jobs, tasks
from hpo_pilot.server.tokens import Caller, Role
from hpo_pilot.steering.search_file import load_search
from hpo_pilot.store import NewTask, SearchState, SteeringStore
from hpo_pilot.store import tables as t
from hpo_pilot.store.database import writing
from tests.bearer import make_token_folder, token
from tests.made import made_end
from tests.performance.server import two_cores
from tests.rest_api import RunningApi, start_api, store_of, write_search
from tests.server_process import ServerProcess
from tests.task_parameters import bare_params

# The monitor with 100 searches in the store, one of them of 10,000 trials: pages, live updates, figures.

PAGE_LIMIT, LIVE_LIMIT = 0.150, 1.0  # seconds
_SEARCHES, _SMALL = 100, 64


def measure_monitor(*, quick: bool) -> dict[str, Any]:
    """Pages, first 2 s after the start and then again; how late news are; figures of the large search."""
    two_cores()
    count = 10_000  # also when quick: it is the number that the limits are about
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        names = fill(root, count)
        api = start_api(root)
        try:
            return _measured(api, names, count, repeats=20 if quick else 60)
        finally:
            api.stop()


def fill(root: Path, count: int) -> list[str]:
    """A store with `_SEARCHES` searches, the newest of which runs and has `count` trials; their names, newest first."""
    workdir = root / "work"
    workdir.mkdir(parents=True, exist_ok=True)
    store = store_of(workdir)
    try:
        space = {f"x{i}": {"type": "real", "low": 0.0, "high": 1.0} for i in range(6)}
        space["kind"] = {"type": "categorical", "choices": ["a", "b", "c"]}  # type: ignore[assignment]
        file = write_search(root, "model", space=space, budget={"trials": count + 500, "parallel": 50}, folds=2)
        model = load_search(file)
        names = [f"search{number:03}" for number in range(_SEARCHES)]
        for number, name in enumerate(names):
            large = number == _SEARCHES - 1
            trials = count if large else _SMALL
            budget = model.budget.model_copy(update={"trials": trials + 500 if large else trials})
            search = model.model_copy(update={"name": name, "budget": budget})
            record = store.create_search(search, source="model.yaml", sandbox=None, owner="alice")
            store.set_state(record.id, SearchState.RUNNING, "service")
            _add_trials(store, record.id, trials, random.Random(number))
            if not large:
                store.set_state(record.id, SearchState.DONE, "service")
    finally:
        store.close()
    return names[::-1]


def _add_trials(store: SteeringStore, number: int, count: int, rng: random.Random) -> None:
    now = time.time()
    trials, jobs, values = [], [], []
    with writing(store.engine) as connection:
        task = connection.execute(
            insert(t.tasks).values(
                search_id=number, generation=1, revision=0, name=f"task{number}", state="ended", jobs=[], created=now
            )
        ).inserted_primary_key
        assert task is not None
        for trial in range(1, count + 1):
            point = {**{f"x{i}": rng.random() for i in range(6)}, "kind": rng.choice("abc")}
            value = sum((point[f"x{i}"] - 0.3) ** 2 for i in range(6)) + rng.gauss(0, 0.02)  # type: ignore[operator]
            failed = rng.random() < 0.03
            started = now - (count - trial) * 2.0
            trials.append(
                {
                    "search_id": number, "number": trial, "generation": trial // 10 + 1, "point": point, "seed": trial,
                    "state": (TrialState.FAILED if failed else TrialState.FINISHED).value, "told": trial,
                    "value": None if failed else value, "std": None if failed else 0.02,
                    "error": f"exit status {trial % 5}" if failed else None,
                    "submitted": started - 1, "started": started, "ended": started + 60,
                }
            )  # fmt: skip
            for fold in range(2):
                jobs.append(
                    {
                        "search_id": number, "task_id": task[0], "trial": trial, "fold": fold, "attempt": 1,
                        "state": "finished", "panda_id": number * 100_000 + trial * 2 + fold,
                        "value": None if failed else value, "error": "exit status 1" if failed else None,
                        "log_tail": "Traceback\n" * 50 if failed else None, "metrics": {"accuracy": 0.9},
                        "node": f"wn{trial % 40}", "seconds": 60.0, "started": started, "ended": started + 60,
                    }
                )  # fmt: skip
            if trial % 10 == 0:
                values += [
                    {"search_id": number, "trial": trial, "fold": 0, "step": step, "value": value + 1 / step}
                    for step in range(1, 11)
                ]
        connection.execute(insert(t.trials), trials)
        connection.execute(insert(t.jobs), jobs)
        connection.execute(insert(t.intermediate_values), values)


def _measured(api: RunningApi, names: list[str], count: int, repeats: int) -> dict[str, Any]:
    browser = requests.Session()
    browser.headers.update({"Authorization": f"Bearer {token('alice', Role.USER)}", "Accept": "text/html"})
    big = f"/searches/{names[0]}"
    paths = {
        "searches": "/",
        "search": big,
        "trials": f"{big}/trials",
        "trials by value": f"{big}/trials?sort=-value",
        "trial": f"{big}/trials/{count // 2}",
        "errors": f"{big}/errors",
    }
    browser.get(f"{api.url}/api/v1/health")
    time.sleep(2)  # nobody follows a link sooner; the pages have read the store meanwhile
    figures: dict[str, Any] = {"pages": {}}
    for name, path in paths.items():
        times = [_seconds(browser, api.url + path) for _ in range(repeats + 1)]
        first, again = times[0], sorted(times[1:])
        p50, p95 = statistics.median(again), again[math.ceil(0.95 * len(again)) - 1]
        figures["pages"][name] = {"first": first, "p50": p50, "p95": p95}
        print(f"{name:16} first {1e3 * first:6.0f} ms, then p50 {1e3 * p50:6.1f} ms, p95 {1e3 * p95:6.1f} ms")
    figures["figures"] = _figures(browser, api, big)
    figures["live"] = _live(browser, api, names[0], count)
    pages_held = all(times["p95"] < PAGE_LIMIT for times in figures["pages"].values())
    figures["held"] = figures["pages"]["searches"]["first"] < PAGE_LIMIT and pages_held
    figures["live_held"] = max(figures["live"]) < LIVE_LIMIT
    print(
        f"pages under {1e3 * PAGE_LIMIT:.0f} ms: {'held' if figures['held'] else 'MISSED'}; "
        f"live updates under {LIVE_LIMIT:.0f} s: {'held' if figures['live_held'] else 'MISSED'}"
    )
    return figures


def _seconds(browser: requests.Session, url: str) -> float:
    begun = time.perf_counter()
    answer = browser.get(url, timeout=60)
    took = time.perf_counter() - begun
    assert answer.ok, (url, answer.status_code, answer.text[:300])
    return took


def _figures(browser: requests.Session, api: RunningApi, big: str) -> dict[str, Any]:
    found = {}
    page = browser.get(api.url + big, timeout=60).text
    for key in [part.split('"')[0] for part in page.split('data-kind="')[1:]]:
        begun = time.perf_counter()
        answer = browser.get(f"{api.url}{big}/figures/{key}", timeout=300, stream=True)
        packed = len(answer.raw.read())
        took = time.perf_counter() - begun
        assert answer.ok, key
        found[key] = {"seconds": took, "packed_bytes": packed}
        print(f"figure {key:12} {took:6.2f} s, {packed / 1e3:7.1f} kB packed")
    return found


def _live(browser: requests.Session, api: RunningApi, name: str, count: int) -> list[float]:
    """Seconds from the commit of a result until its news have arrived, of some results."""
    arrived: list[float] = []
    news = threading.Event()

    def listen() -> None:
        with browser.get(f"{api.url}/searches/{name}/live", stream=True, timeout=60) as stream:
            for line in stream.iter_lines():
                if line.startswith(b"data: ") and b"f-progress" in line:
                    arrived.append(time.perf_counter())
                    news.set()

    threading.Thread(target=listen, daemon=True).start()
    assert news.wait(20)
    store = store_of(api.workdir)
    late = []
    try:
        record = store.search(name)
        for number in range(count + 1, count + 11):
            point = {**{f"x{i}": 0.5 for i in range(6)}, "kind": "a"}
            task = NewTask(f"live{number}", number, 0, ((Member(number, 0, 1),),))
            cut = {"history": number - 1, "pending": []}
            store.add_generation(record.id, **cut, trials=[Trial(number, 1, point, seed=1)], task=task)  # type: ignore[arg-type]
            time.sleep(1.2)
            news.clear()
            store.record(record.id, [], [made_end(number, TrialState.FINISHED, 0.001, told=number, ended=time.time())])
            committed = time.perf_counter()
            assert news.wait(20)
            late.append(arrived[-1] - committed)
    finally:
        store.close()
    print(f"live updates: median {statistics.median(late):.2f} s, longest {max(late):.2f} s")
    return late


# How fast the embedded server answers BigPanDA's readers: a task of 10,000 jobs, and 1,000 tasks.

_REPEATS = 5


def measure_bigpanda(*, quick: bool) -> dict[str, Any]:
    """Times of the calls that scripts and pages make, in milliseconds; quick: a tenth of the tasks and jobs."""
    n_jobs, n_tasks = (1_000, 100) if quick else (10_000, 1_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large = _fill(folder, n_jobs, n_tasks)
        server = ServerProcess(
            database=folder / "panda.db", files=folder / "files", tokens=make_token_folder(folder / "tokens")
        )
        try:
            calls = {
                f"tasks: {n_tasks}": ("/tasks/", {"limit": n_tasks}),
                "tasks: 100 with metadata": ("/tasks/", {"limit": 100, "extra": "metastruct,jobstatecount"}),
                f"jobs of a task: {n_jobs}": ("/jobs/", {"jeditaskid": large, "limit": n_jobs}),
                "jobs of a task: 100": ("/jobs/", {"jeditaskid": large, "limit": 100}),
                "one job": ("/job", {"pandaid": 1}),
                "the board's first page of 100": ("/api/v1/hpo_pilot/job_list", {"limit": 100}),
                "the board's page of a search": ("/api/v1/hpo_pilot/job_list", {"limit": 100, "search": "cafecafe"}),
            }
            return {what: _timed(server.url, what, *call) for what, call in calls.items()}
        finally:
            server.stop()


def _timed(url: str, what: str, path: str, params: dict[str, Any]) -> dict[str, float]:
    headers = {"Authorization": f"Bearer {token('me', Role.USER)}"}
    seconds, size, waited = [], 0, []
    with requests.Session() as session:
        for _ in range(_REPEATS):
            begun = time.perf_counter()
            with session.get(url + path, params=params, headers=headers, timeout=120, stream=True) as answer:
                answer.raise_for_status()
                waited.append(time.perf_counter() - begun)
                content = answer.content
            seconds.append(time.perf_counter() - begun)
            size = len(content)
            json.loads(content)
    took = statistics.median(seconds) * 1000
    print(
        f"{what:38} {took:7.0f} ms ({statistics.median(waited) * 1000:4.0f} ms to the first byte), {size / 1e6:6.2f} MB"
    )
    return {"milliseconds": took, "bytes": size}


def _fill(folder: Path, n_jobs: int, n_tasks: int) -> int:
    """A database of tasks of ten jobs, and one of many, most of them finished; the id of the latter."""
    database = Database(folder / "panda.db")
    me = Caller("me", Role.USER)
    try:
        for number in range(n_tasks):
            count = n_jobs if number == 0 else 10
            with database.writing() as tx:
                queue.submit(tx, me, _params(folder, number, count))
        with database.writing() as tx:
            large = int(tx.connection.scalar(select(tasks.c.task_id).order_by(tasks.c.task_id).limit(1)) or 0)
            ended = {"status": JobState.FINISHED.value, "site": "LOCAL", "node": "node1", "started": tx.now - 60}
            tx.connection.execute(
                update(jobs).where(jobs.c.panda_id % 10 != 0).values(**ended, ended=tx.now, heartbeat=tx.now)
            )
            tx.connection.execute(
                update(jobs)
                .where(jobs.c.panda_id % 10 == 0)
                .values(status=JobState.FAILED.value, pilot_error_code=1305, pilot_error_diag="it broke", ended=tx.now)
            )
            report = json.dumps({"user_job_metadata": {"hpo_pilot": {"value": 0.5, "progress": [[0, 0.5]] * 20}}})
            finished = select(jobs.c.panda_id).where(jobs.c.status == JobState.FINISHED.value)
            rows = [{"panda_id": panda_id, "meta_data": report} for panda_id in tx.connection.scalars(finished)]
            tx.connection.execute(insert(job_documents), rows)
            tx.connection.execute(update(tasks).values(n_finished=9, n_failed=1, status="finished", ended=tx.now))
    finally:
        database.close()
    return large


def _params(folder: Path, number: int, n_jobs: int) -> dict[str, Any]:
    spec = TaskSpec(
        name=f"user.me.demo.cafecafe.g{number}/",
        search="demo",
        uid="cafecafe",
        generation=number,
        folds=1,
        points={trial: {"x": trial / 7, "y": trial % 3} for trial in range(min(n_jobs, 500))},
        jobs=tuple((Member(trial % 500, 0, trial),) for trial in range(n_jobs)),
        sandbox=folder / "none",
        needs=JobNeeds(),
        container=None,
        has_outputs=False,
        queue="LOCAL",
    )
    arguments = quote(f"python3 hpo_pilot_runner.py --task {encode_points(spec)} --number ")
    return bare_params(spec.name, n_jobs, arguments) | {"campaign": "demo.cafecafe"}
