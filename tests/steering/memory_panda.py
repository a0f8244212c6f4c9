"""A workflow manager in memory, for tests of the steering."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import Executor, Future

from hpo_pilot.jobs import JobReport, JobState, TaskRef, TaskState
from hpo_pilot.panda.workflow_manager import EAGER, UnknownOutcomeError
from tests.made import made_report


class AtOnce(Executor):
    """Works where it is asked to."""

    def submit(self, function, /, *arguments, **options):
        future = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:  # noqa: BLE001 - what an executor does
            future.set_exception(error)
        return future


class Panda:
    """Tasks in memory: each job is as the test says, and calls fail where it says so."""

    owner = "me"
    policy = EAGER

    def __init__(self):
        self._numbers = itertools.count(1)
        self.tasks = {}
        self.reports = {}
        self.states = {}
        self.killed = []
        self.killed_jobs = []
        self.discarded = []
        self.forgotten = []
        self.asked = []
        self.broken = {}
        self.waiting = {}
        self.lost_answers = 0  # submissions that arrive and whose answer does not
        self.loss = lambda trial, point, level: 0.1 * trial

    def _call(self, name, number=None):
        error = self.broken.get((name, number)) or self.broken.get(name)
        if error is not None:
            raise error

    def submit(self, task, *, maybe_submitted=False):
        self._call("submit")
        if maybe_submitted and (found := self.find(task.name)):
            return found
        number = next(self._numbers)  # two services may submit at once
        self.tasks[number] = task
        self.states[number] = TaskState.RUNNING
        self.reports[number] = {}
        if self.lost_answers:
            self.lost_answers -= 1
            raise UnknownOutcomeError("no answer")
        return TaskRef(task.name, number)

    def find(self, name):
        return next((TaskRef(name, n) for n, task in self.tasks.items() if task.name == name), None)

    def keep(self, sandbox):
        self._call("keep")

    def status(self, refs):
        return {ref.jedi_task_id: self.states[ref.jedi_task_id] for ref in refs}

    def results(self, ref, missing, *, values=False):
        self.asked.append(ref.jedi_task_id)
        self._call("results", ref.jedi_task_id)
        return list(self.reports[ref.jedi_task_id].values())

    def wait(self, seconds):
        time.sleep(min(seconds, 0.01))
        return set()

    def forget(self, uid, keep=()):
        self.forgotten.append(uid)
        self.kept_points = set(keep)

    def interrupt(self):
        """Nothing waits for long."""

    def why_ended(self, ref):
        return ""

    def why_waits(self, ref):
        return self.waiting.get(ref.jedi_task_id, "")

    def kill(self, ref):
        self._call("kill")
        self.killed.append(ref.jedi_task_id)

    def kill_jobs(self, panda_ids):
        self._call("kill_jobs")
        self.killed_jobs += panda_ids

    def discard(self, output):
        self._call("discard")
        self.discarded.append(output)

    # --- what the pilots do ---

    def report(self, task_id, number=1, *progress, state=JobState.RUNNING, attempt=1):
        """A heartbeat of the job, or its end without a result."""
        panda_id = 1000 * (attempt - 1) + 100 * task_id + number
        times = {"started": 10.0, "ended": 14.0 if state.is_over else None}
        self.reports[task_id][panda_id] = JobReport(panda_id, state, attempt, number, **times, progress=progress)
        return panda_id

    def finish(
        self, task_id, number=1, *, outputs=False, ran=99, seconds=2.0, failed=None, from_start=False, **metrics
    ):
        """The job ends; its time was enough for the first `ran` of its members; `failed`: what they failed with."""
        task = self.tasks[task_id]
        panda_id = 100 * task_id + number
        verdicts = []
        for place, (trial, fold, _seed) in enumerate(task.jobs[number - 1]):
            who = (task.uid, task.generation, trial, fold, number, 1)
            if failed is not None:
                verdicts.append(made_report(*who, None, failed, seconds=seconds, from_start=from_start))
            elif place < ran:
                more = {"has_outputs": outputs, "folder": f"t{trial}f{fold}" if outputs else "", "metrics": metrics}
                loss = self.loss(trial, task.points[trial], task.levels[trial][0] if task.levels else None)
                verdicts.append(made_report(*who, loss, seconds=seconds, from_start=from_start, **more))
            else:
                verdicts.append(made_report(*who, None, "no time left", was_run=False))
        self.reports[task_id][panda_id] = JobReport(panda_id, JobState.FINISHED, 1, number, tuple(verdicts))
        if len(self.reports[task_id]) == len(task.jobs):
            self.states[task_id] = TaskState.DONE


def go(steering, times=6):
    """Looks at everything a few times, whatever the pauses, until the search is over."""
    for _ in range(times):
        if steering.state.is_over:
            return
        steering._not_before = 0.0
        steering._tasks._not_before.clear()
        steering.advance(None, steering.state)


def finish_all(steering, panda, rounds=8):
    """Whatever goes out finishes."""
    for _ in range(rounds):
        go(steering, 2)
        for number, task in panda.tasks.items():
            for job in range(1, len(task.jobs) + 1):
                if 100 * number + job not in panda.reports[number]:
                    panda.finish(number, job)
