from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.pilot.client import JobOfAnotherPilot, ServerAway
from hpo_pilot.pilot.report import Progress
from hpo_pilot.pilot.watchdog import AttemptClosed, Heartbeats


class Server:
    most_reports = 3

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.commands: dict[int, str | HpoPilotError] = {}
        self.reports: list[tuple[int, str]] = []
        self.times: list[tuple[int, float]] = []
        self.others: set[int] = set()
        self.attempts: list[int] = []

    def update_all(self, reports: list[dict[str, Any]]) -> list[str | HpoPilotError]:
        if reports:
            self.calls.append([report["job_id"] for report in reports])
        return [self.update(report) for report in reports]

    def update(self, report: dict[str, Any]) -> str | HpoPilotError:
        if report["job_id"] in self.others:
            return JobOfAnotherPilot("another pilot has it")
        self.times.append((report["job_id"], time.monotonic()))
        self.attempts.append(report["attempt_nr"])
        self.reports.append((report["job_id"], report.get("job_metrics", "")))
        return self.commands.get(report["job_id"], "")

    def of(self, panda_id: int) -> list[str]:
        return [metrics for job, metrics in self.reports if job == panda_id]

    def pauses(self, panda_id: int) -> list[float]:
        """Seconds between the reports of a job."""
        times = [at for job, at in self.times if job == panda_id]
        return [after - before for before, after in itertools.pairwise(times)]


@pytest.fixture
def beats(tmp_path, request, make_settings):
    """Jobs that are reported on: `add(panda_id, report_seconds)` gives its folder. Its parameter: the heartbeat."""
    settings = make_settings(heartbeat=getattr(request, "param", 1.0), shortest_report=0.05, first_report=0.01)
    server = Server()
    thread = Heartbeats(settings, server)  # type: ignore[arg-type]
    thread.start()
    jobs = []

    def add(panda_id: int, report_seconds: float, *, ours: bool = True, attempt: int = 1) -> Path:
        folder = tmp_path / f"{panda_id}.{attempt}"
        folder.mkdir(exist_ok=True)
        identity = (panda_id, attempt)
        job = SimpleNamespace(panda_id=panda_id, attempt=attempt, identity=identity, server_stores=ours)
        told = {"phase": "running", "started": 0.0, "report_seconds": report_seconds}
        stopped: list[AttemptClosed] = []
        execution = SimpleNamespace(job=job, progress=Progress(folder), stopped=stopped, stop=stopped.append, **told)
        jobs.append(execution)
        thread.add(execution)  # type: ignore[arg-type]
        return folder

    yield SimpleNamespace(add=add, server=server, thread=thread, jobs=jobs)
    for execution in jobs:
        thread.remove(execution.job.identity)


def report(folder: Path, step: int) -> None:
    with (folder / "progress.jsonl").open("a") as file:
        file.write(f'{{"step": {step}, "value": {step}}}\n')


@pytest.mark.parametrize("beats", [300.0], indirect=True)
def test_new_values_are_reported_soon_where_they_are_wanted(beats, until):
    wanted, usual, foreign = beats.add(1, 0.01), beats.add(2, 0.0), beats.add(3, 0.01, ours=False)
    until(lambda: beats.server.of(1) and beats.server.of(2) and beats.server.of(3))
    for step in range(1, 5):
        for folder in (wanted, usual, foreign):
            report(folder, step)
        until(lambda step=step: len(beats.server.of(1)) > step)
    assert [metrics[:9] for metrics in beats.server.of(1)] == ["", *(f"hpoStep={step}" for step in range(1, 5))]
    assert beats.server.of(2) == [""]
    assert all(pause >= 0.5 for pause in beats.server.pauses(3))  # ten times as patient: another's server


def test_without_news_the_usual_heartbeats_go_on(beats, until):
    beats.add(1, 0.05)
    until(lambda: len(beats.server.of(1)) > 2)
    assert all(pause >= 0.9 for pause in beats.server.pauses(1))
    beats.thread.remove(beats.jobs[0].job.identity)
    assert beats.thread._owed == {}


@pytest.mark.parametrize("beats", [2.0], indirect=True)
def test_a_job_has_several_records_that_come_due_together(beats, until):
    """While it starts, it has another record than afterwards."""
    for panda_id in range(9):
        beats.add(panda_id, 0.0)
    until(lambda: len(beats.server.times) >= 9)
    for record in beats.jobs[1:]:
        beats.thread.remove(record.job.identity)
        beats.add(record.job.panda_id, 0.0)
    until(lambda: all(len(beats.server.of(panda_id)) >= 4 for panda_id in range(9)))


def test_two_attempts_of_a_job_are_reported_side_by_side(beats, until):
    """The server takes the first one for lost after an outage of the network, and sends the job again."""
    beats.add(1, 0.05)
    beats.add(1, 0.05, attempt=2)
    until(lambda: {1, 2} <= set(beats.server.attempts))
    beats.thread.remove(beats.jobs[0].job.identity)
    seen = beats.server.attempts.count(2)
    until(lambda: beats.server.attempts.count(2) > seen)


def test_a_job_that_another_pilot_has_ends_without_a_report(beats, until):
    beats.server.others.add(1)
    beats.add(1, 0.05)
    until(lambda: beats.jobs[0].stopped)
    (why,) = beats.jobs[0].stopped
    assert isinstance(why, AttemptClosed) and "another pilot" in str(why)
    assert beats.server.reports == []


def test_jobs_that_began_at_different_times_are_reported_together(beats, until):
    for job in range(1, 6):
        beats.add(job, 0.0)
        until(lambda job=job: beats.server.of(job))
    until(lambda: "3232" in "".join(str(len(call)) for call in beats.server.calls))


@pytest.mark.parametrize("answer", [ServerAway("away"), JobOfAnotherPilot("no"), HpoPilotError("no"), "tobekilled"])
def test_the_answer_to_one_report_concerns_one_job(beats, until, answer):
    beats.server.commands[1] = answer
    beats.add(1, 0.0)
    beats.add(2, 0.0)
    until(lambda: len(beats.server.of(2)) > 2)
    ends = answer == "tobekilled" or isinstance(answer, JobOfAnotherPilot)
    assert (len(beats.jobs[0].stopped), len(beats.jobs[1].stopped)) == (ends, 0)
    assert (len(beats.server.of(1)) == 1) == ends
