"""The pages of jobs and pilots: what the embedded server tells, and how changes of it reach those who look."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobState
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.web import live as live_module
from hpo_pilot.web.live import JOBS_TOPIC, JobFilter, JobFragments, LiveUpdates, SearchFragments
from hpo_pilot.web.search_views import SearchCache
from hpo_pilot.web.server_jobs import NoServerError, PilotState, ServerJob, ServerJobsPage, ServerPilot, ServerQueue
from tests.web.pages.test_live import answer_of, event, play
from tests.web.pages.test_pages import HOSTILE, check

_AT = datetime(2026, 5, 1, 12, tzinfo=UTC)


def job(number: int, state: JobState = JobState.RUNNING) -> ServerJob:
    return ServerJob(
        **{"panda_id": number, "task_id": 1, "task": HOSTILE, "search": "demo"},
        **{"members": ((4, 0),), "number": 1, "attempt": 1, "attempts": 3, "state": state},
        **{"sub_state": "", "queue": "Q", "node": HOSTILE, "pilot": "p", "created": _AT},
        **{"started": _AT, "ended": None if state is JobState.RUNNING else _AT, "heard": _AT, "nodes": 1, "gpus": 0},
        **{
            "job_metrics": "hpoStep=2 hpoValue=0.5",
            "cores": 1,
            "memory_mb": 100,
            "seconds": 300.0,
            "errors": {},
            "has_log": False,
        },
    )


class Board:
    """An embedded server of which a test says what it tells."""

    def __init__(self) -> None:
        self.there: list[ServerJob] = []
        self.asked: list[dict[str, object]] = []
        self.error: TryAgainError | None = None
        self.is_live = True

    def jobs(self, **given: object) -> ServerJobsPage:
        self.asked.append(given)
        if self.error is not None:
            raise self.error
        counts = {one.state: 1 for one in self.there}
        before = 7 if self.there else None
        return ServerJobsPage(jobs=tuple(self.there), before=before, counts=counts, is_live=self.is_live)

    def pilots(self) -> list[ServerPilot]:
        if self.error is not None:
            raise self.error
        said = {"key": HOSTILE, "state": PilotState.BUSY, "host": "wn1", "queue": "Q", "kind": "hpo-pilot"}
        said |= {"version": "1", "since": _AT, "heard": _AT, "slots": 4, "nodes": None}
        return [ServerPilot(**said, jobs=(one.panda_id,)) for one in self.there]

    def queues(self) -> list[ServerQueue]:
        said = {"name": "Q", "status": "online", "description": HOSTILE, "limits": {"cores": 8}}
        return [ServerQueue(**said, waiting=3, running=0, pilots=0, slots=None)]


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def browser(pages, board, monkeypatch):
    # The parts of a monitor are frozen: the pages' own look at the board is made to look at this one.
    monkeypatch.setattr(pages.monitor._parts.job_fragments, "_server_jobs", board)
    return pages.browser()


def shown(text: str, word: str) -> bool:
    assert f'data-when="{word}"' in text
    return f'data-when="{word}" hidden' not in text


def test_jobs_of_a_server_that_has_ended(browser, board):
    board.there, words = [job(12, JobState.FINISHED)], ("ended", "there", "jobs", "away")
    assert [shown(check(browser.get("/jobs")), word) for word in words] == [False, True, True, False]
    board.is_live = False
    text = check(browser.get("/jobs"))
    assert [shown(text, word) for word in words] == [True, True, True, False] and "as they left them" in text


def test_the_page_of_jobs(browser, board):
    text = check(browser.get("/jobs"))
    assert [shown(text, word) for word in ("away", "there", "jobs", "no-jobs")] == [False, True, False, True]
    board.there = [job(12)]
    text = check(browser.get("/jobs?search=demo&state=running&before=99&queue=Q"))
    assert [shown(text, word) for word in ("away", "there", "jobs", "no-jobs")] == [False, True, True, False]
    assert 'href="/jobs/12"' in text
    assert 'href="/jobs?search=demo&amp;state=running&amp;queue=Q&amp;before=7"' in text
    assert 'data-live="/jobs/live?search=demo&amp;state=running&amp;queue=Q&amp;before=99"' in text
    assert "<script>alert" not in text
    asked = {"search": "demo", "state": JobState.RUNNING, "queue": "Q", "limit": 100, "before": 99}
    assert board.asked[-1] == asked
    check(browser.get("/jobs?state=nonsense&before=-1&search=" + "x" * 500))
    assert board.asked[-1] == {"search": "x" * 100, "state": None, "queue": None, "limit": 100, "before": None}


def test_the_page_of_pilots(browser, board):
    text = check(browser.get("/pilots"))
    assert [shown(text, word) for word in ("pilots", "no-pilots", "queues", "no-queues")] == [False, True, True, False]
    assert "no pilot takes them" in text
    assert "--server URL" in text  # none runs in the work folder
    board.there = [job(12)]
    text = check(browser.get("/pilots"))
    assert shown(text, "pilots")
    assert "<script>alert" not in text
    board.error = TryAgainError("it says where")
    text = check(browser.get("/pilots"))
    assert [shown(text, word) for word in ("away", "there", "queues")] == [True, False, False]
    assert "it says where" not in text


def test_changes_arrive_with_the_filter_of_the_page(pages, board, monkeypatch):
    monkeypatch.setattr(live_module, "_SERVER_LOOK", 0.05)

    desk = LiveUpdates(SearchFragments(SearchCache(pages.store), None, WorkDir(pages.workdir)), JobFragments(board))

    async def watch() -> None:
        topic = JOBS_TOPIC + JobFilter(search="demo", state="running").query
        stream = answer_of(desk, topic).body_iterator
        first = await event(stream)
        assert first["state"] == "there no-jobs"
        assert board.asked[-1]["search"] == "demo"
        assert board.asked[-1]["state"] == JobState.RUNNING
        board.there = [job(12, JobState.FINISHED)]
        second = await event(stream)
        assert (second["state"], "/jobs/12" in second["html"]["f-jobs"]) == ("there jobs", True)
        assert "f-away" not in second["html"]
        board.error = NoServerError("ended")
        third = await event(stream)
        assert third["state"] == "away"
        assert third["html"]["f-jobs"] == ""
        assert "No embedded PanDA server" in third["html"]["f-away"]
        board.error = None
        assert (await event(stream))["state"] == "there jobs"
        desk.close()
        assert [text async for text in stream] == []

    play(watch)


def test_a_job_that_finished_with_a_failed_payload_is_no_green_one(browser, board):
    """Its state is the one that the counts, the filter and PanDA's monitor have."""
    failed = job(12, JobState.FINISHED).model_copy(update={"payload_error": f"exit code 3 {HOSTILE}"})
    board.there = [failed, job(13)]
    text = check(browser.get("/jobs?search=demo"))
    assert '<td class="failed">finished <span class="small">payload failed</span></td>' in text
    assert '<td class="finished">' not in text
    assert "exit code 3" in text
    assert "<script>alert" not in text
