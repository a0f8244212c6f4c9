"""Steering, store and server keep every invariant, whatever is lost, repeated, delayed, killed or late.

The real store, steering, parser of results and server application work in one process, with a clock of their own; only
panda-client's processes and the sockets are left out. Between them messages get lost in either direction. Steering and
server are killed between any two commits; pilots lose jobs, and repeat old reports in any order.

HPO_PILOT_LONG_PROTOCOL=N makes N examples of 150 steps, new ones each time.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import httpx
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import event, func, select

from hpo_pilot.errors import InputError
from hpo_pilot.panda.client_process import NoAnswerError, RefusedError
from hpo_pilot.panda.manager import PandaManager
from hpo_pilot.panda.tasks import OwnServerReader, Watches
from hpo_pilot.search import TrialState
from hpo_pilot.server import database
from hpo_pilot.server.app import Server
from hpo_pilot.server.attempts import end_silent_attempts
from hpo_pilot.server.database import Database
from hpo_pilot.server.helpers import Helpers
from hpo_pilot.server.state import ServerState
from hpo_pilot.server.tokens import Role, Tokens
from hpo_pilot.steering import changes
from hpo_pilot.steering.invariants import check_all
from hpo_pilot.steering.loop import SearchSteering
from hpo_pilot.store import EMBEDDED, SearchState, SteeringStore, tables
from hpo_pilot.store.database import read_rows
from hpo_pilot.store.records import task_record
from tests.bearer import make_token_folder, token
from tests.clock import Clock
from tests.made import made_search
from tests.postgresql import BASE, new_database
from tests.steering.memory_panda import AtOnce

SANDBOX = f"sources.{64 * '0'}.tar.gz"
#: Calls of panda-client: method and path at the server, and the arguments' names.
CALLS = {
    "insertTaskParams": ("POST", "task/submit", ("task_parameters",)),
    "killTask": ("POST", "task/kill", ("task_id",)),
    "killJobs": ("POST", "job/kill", ("job_ids",)),
    "getTaskStatus": ("GET", "task/get_status", ("task_id",)),
    "getTaskParamsMap": ("GET", "task/get_task_parameters", ("task_id",)),
    "get_task_details_json": ("GET", "task/get_detailed_info", ("task_id",)),
    "getUserJobMetadata": ("GET", "job/get_metadata_for_analysis_jobs", ("task_id",)),
    "get_job_descriptions": ("GET", "task/get_job_descriptions", ("task_id",)),
    "get_tasks_detailed_info_since": ("GET", "task/get_tasks_detailed_info_since", ("since", "filters", "n_tasks")),
}
FATES = st.sampled_from(["arrives", "arrives", "arrives", "is lost", "has no answer"])


class Crash(BaseException):
    """The process is killed here."""


class Protocol(RuleBasedStateMachine):
    """A search of two trials at a time, with two folds each, its server and its pilots."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="hpo-pilot-protocol-")
        self.path = Path(self.folder.name)
        self.headers = {
            role: {"Authorization": f"Bearer {token(role.value, role)}"} for role in (Role.USER, Role.PILOT)
        }
        make_token_folder(self.path / "tokens")
        (self.path / "files" / "cache").mkdir(parents=True)
        (self.path / "files" / "cache" / SANDBOX).write_bytes(b"")
        self.clock = Clock()
        self.patches = mock.patch("time.time", self.clock)
        self.patches.start()
        self.loop = asyncio.new_event_loop()
        self.fuse, self.plan = None, []
        self.places = ExitStack()
        store, self.panda_place = f"sqlite:///{self.path / 'hpo-pilot.db'}", self.path / "panda.db"
        if BASE:
            store, self.panda_place = (self.places.enter_context(new_database()) for _ in range(2))
        self.start_server()
        self.store = SteeringStore.open(store)
        search = made_search(
            folds=2, budget={"trials": 4, "parallel": 2, "queued": 0, "failures": 50}, panda={"attempts": 2}
        )
        self.store.create_search(search, source="demo.yaml", sandbox="/s.tar.gz", owner="me")
        self.store.bind_server(1, EMBEDDED)
        for moment in ("begin", "commit"):
            event.listen(self.store.engine, moment, lambda _connection: self.may_crash())
        self.steering = None
        self.held, self.sent = [], []
        self.counted, self.told, self.reported = {}, [], defaultdict(set)

    # --- the parts ---

    def start_server(self):
        self.database = Database(self.panda_place, clock=self.clock)
        tokens = Tokens(self.path / "tokens")
        state = ServerState(self.database, self.path / "files", tokens, 60.0, 0, None)
        self.server = Server(state, Helpers([], []))
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.server.application()), base_url="http://panda")

    def stop_server(self):
        self.loop.run_until_complete(self.http.aclose())
        self.database.close()

    def request(self, role, method, path, arguments):
        content = {"json": arguments} if method == "POST" else {"params": arguments}
        call = self.http.request(method, f"/api/v1/{path}", headers=self.headers[role], **content)
        answer = self.loop.run_until_complete(call)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def call(self, name, *arguments, deadline=60.0):
        """A call of panda-client by steering."""
        self.may_crash()
        fate = self.plan.pop(0) if self.plan else "arrives"
        if fate == "is lost":
            raise RefusedError("the server is away")
        method, path, names = CALLS[name]
        given = {key: value for key, value in zip(names, arguments, strict=False) if value is not None}
        if isinstance(given.get("filters"), dict):
            given["filters"] = json.dumps(given["filters"])
        answer = self.request(Role.USER, method, path, given)
        self.may_crash()
        if fate == "has no answer":
            raise NoAnswerError("the connection was lost")
        if name == "insertTaskParams":
            return [0, [0 if answer["success"] else answer["data"], answer["message"]]]
        if name in ("killTask", "get_task_details_json"):
            return [0, [answer["success"], answer["data"] if answer["success"] else answer["message"]]]
        return [0 if answer["success"] else 255, answer["data"]]

    def may_crash(self):
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                raise Crash

    def manager(self):
        made = PandaManager.__new__(PandaManager)
        made._server = SimpleNamespace(owner="user", vo="wlcg", url="http://panda", token_file=True)
        made._client = SimpleNamespace(call=self.call, url="http://panda")
        made._feed = SimpleNamespace(known=True, is_there=lambda: True)
        made._watches, made._own = Watches(), OwnServerReader(made._client)
        sandbox = SimpleNamespace(source="http://panda", name=SANDBOX)
        made._sandboxes = SimpleNamespace(keep=lambda *_arguments, **_options: sandbox)
        return made

    @property
    def record(self):
        return self.store.search(1)

    # --- steering ---

    @rule(plan=st.lists(FATES, max_size=4), fuse=st.none() | st.integers(0, 40), turns=st.integers(1, 3))
    def steer(self, plan=(), fuse=None, turns=1):
        for _ in range(turns):
            record = self.record
            if record.state.is_over:
                self.steering = None
                return
            self.plan, self.fuse = list(plan), fuse
            try:
                if self.steering is None or self.steering.record.version != record.version:
                    self.steering = SearchSteering(record, self.store, self.manager(), AtOnce(), lambda: None)
                self.steering._not_before = 0.0
                self.steering._tasks._not_before.clear()
                self.steering.advance(None, record.state)
            except Crash:
                self.steering = None
            finally:
                self.plan, self.fuse = [], None

    @rule(plan=st.lists(FATES, max_size=3), fuse=st.none() | st.integers(0, 40))
    def work(self, plan, fuse):
        """Pilots take jobs and report one; steering looks."""
        self.steer(plan, fuse)
        self.acquire(n_jobs=4)
        if self.held:
            self.report()
        self.steer(plan, fuse)

    @rule(action=st.sampled_from(["pause", "resume", "resume", "resume", "extend", "extend", "stop"]))
    def user(self, action):
        try:
            if action == "extend":
                changes.extend(self.store, self.record, "me", {"trials": 1})
            else:
                getattr(changes, action)(self.store, self.record, "me")
        except InputError:
            pass  # e.g. a search that is over cannot be paused

    # --- server ---

    def restart_server(self):
        self.stop_server()
        self.start_server()

    def expire(self):
        self.loop.run_until_complete(self.database.write(lambda tx: end_silent_attempts(tx, 60.0)))

    @rule(seconds=st.sampled_from([0.0, 1.0, 61.0, 61.0, 86400.0, -3600.0, -4e6]), restarts=st.booleans())
    def jump(self, seconds, restarts):
        """The clock of all jumps; then the server looks for silent pilots, perhaps after a restart."""
        self.clock.now += seconds
        if restarts:
            self.restart_server()
        self.expire()

    # --- pilots ---

    @rule(n_jobs=st.integers(1, 4), fate=FATES)
    def acquire(self, n_jobs=1, fate="arrives"):
        if fate == "is lost":
            return
        arguments = {"site_name": "LOCAL", "prod_source_label": "user", "n_jobs": n_jobs, "node": "n"}
        answer = self.request(Role.PILOT, "POST", "pilot/acquire_jobs", arguments)
        if fate == "arrives" and answer["success"]:
            self.held += answer["data"].get("jobs") or []

    def member(self, job):
        """What a job runs: the search's uid, generation, trial, fold and number of the job."""
        query = select(database.tasks.c.name).where(database.tasks.c.task_id == job["taskID"])
        with self.database.reading() as tx:
            name = tx.connection.scalar(query)
        uid, generation = re.search(r"\.([0-9a-f]{8})\.g(\d+)", name).groups()
        number = int(re.search(r"--number(?:%20|\s)+(\d+)", job["jobPars"])[1])
        [task] = [task for task in self.known_tasks() if task.name == name]
        trial, fold, _ = task.jobs[number - 1][0]
        return uid, int(generation), trial, fold, number

    def known_tasks(self):
        return [task_record(row) for row in read_rows(self.store.engine, select(tables.tasks))]

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 9), how=st.sampled_from(["running", "ok", "ok", "bad", "lost"]), fate=FATES)
    def report(self, pick=0, how="ok", fate="arrives"):
        job = self.held[pick % len(self.held)]
        message = {"job_id": job["PandaID"], "attempt_nr": job["attemptNr"], "node": "n"}
        if how == "running":
            self.deliver(message | {"job_status": "running"}, fate)
            return
        self.held.remove(job)
        if how == "lost":
            message |= {"job_status": "failed", "pilot_error_code": 1, "pilot_error_diag": "node died"}
        else:
            uid, generation, trial, fold, number = self.member(job)
            value = float(len(self.sent) + 1)
            self.reported[trial, fold].add(value if how == "ok" else None)
            said = {"uid": uid, "generation": generation, "trial": trial, "fold": fold, "number": number}
            said |= {"attempt": job["attemptNr"], "status": 0 if how == "ok" else 1, "value": value, "seconds": 2.0}
            message |= {"job_status": "finished", "meta_data": json.dumps({"user_job_metadata": {"hpo_pilot": said}})}
        self.sent.append(message)
        self.deliver(message, fate)

    @precondition(lambda self: self.sent)
    @rule(pick=st.integers(0, 99), fate=FATES)
    def repeat(self, pick, fate):
        """An old report comes again, or for the first time."""
        self.deliver(self.sent[pick % len(self.sent)], fate)

    def deliver(self, message, fate):
        if fate != "is lost":
            self.request(Role.PILOT, "POST", "pilot/update_job", message)

    # --- what must hold ---

    @invariant()
    def every_invariant_holds(self):
        assert check_all(self.store, self.panda_place) == []
        trials = self.store.trials(1)
        assert sum(trial.counts for trial in trials) <= self.record.budget["trials"]
        for trial in trials:
            for fold in trial.folds if trial.state is not TrialState.STOPPED else ():
                for result in [attempt for attempt in fold.attempts if attempt.is_final]:
                    key = trial.number, fold.number
                    assert self.counted.setdefault(key, (result.panda_id, result.values)) == (
                        result.panda_id,
                        result.values,
                    )
                    assert result.value in self.reported[key]
        told = [trial.number for trial in sorted(trials, key=lambda one: one.told or 0) if trial.told]
        assert told[: len(self.told)] == self.told, "the optimizer's history only grows"
        self.told = told
        with self.database.reading() as tx:
            names = tx.connection.execute(
                select(database.tasks.c.name).group_by(database.tasks.c.name).having(func.count() > 1)
            )
            assert names.all() == [], "a task is submitted once"

    def teardown(self):
        try:
            self.come_to_an_end()
        finally:
            self.stop_server()
            self.store.close()
            self.loop.close()
            self.patches.stop()
            self.places.close()
            self.folder.cleanup()

    def come_to_an_end(self):
        """Without faults the search ends, every result that the server has is here, and nothing is left over."""
        if self.record.state is SearchState.PAUSED:
            changes.resume(self.store, self.record, "me")
        for _ in range(60):
            self.steer(turns=2)
            self.acquire(n_jobs=10)
            while self.held:
                self.report()
            if self.record.state.is_over:
                break
            self.clock.now += 70.0
            self.expire()
        self.every_invariant_holds()
        record, trials = self.record, self.store.trials(1)
        assert record.state.is_over, (record.state, self.known_tasks())
        if record.state is SearchState.DONE:
            counted = sum(trial.counts for trial in trials)
            assert counted == record.budget["trials"], (record.message, [(t.number, t.state, t.told) for t in trials])
            assert {trial.state for trial in trials} <= {TrialState.FINISHED, TrialState.FAILED, TrialState.STOPPED}


_LONG = os.environ.get("HPO_PILOT_LONG_PROTOCOL")
_SIZE = {"max_examples": int(_LONG), "derandomize": False} if _LONG else {"max_examples": 6 if BASE else 20}
#: To shorten a failed example takes longer than to find it: it is printed as it was found.
_PHASES = [Phase.generate]
Protocol.TestCase.settings = settings(
    **_SIZE,
    stateful_step_count=150 if _LONG else 40,
    phases=_PHASES,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
TestProtocol = Protocol.TestCase
