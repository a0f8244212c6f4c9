"""What changes on a page reaches those who look at it, at once, and ends in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert
from starlette.requests import Request
from starlette.responses import Response

from hpo_pilot.errors import TryAgainError
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import EMBEDDED, Event, tables
from hpo_pilot.store.database import writing
from hpo_pilot.web import live as live_module
from hpo_pilot.web.live import ChangeWatcher, LiveUpdates, SearchFragments, Snapshot, folded_events, searches_topic
from hpo_pilot.web.rendering import fragments
from hpo_pilot.web.search_views import SearchCache
from tests.rest_api import steered


def answer_of(
    desk: LiveUpdates, topic: str, who: str = "alice", *, is_good: Callable[[], bool] = lambda: True
) -> Response:
    """The answer to a browser that asks for the changes of a topic; it has a `body_iterator` where it is a stream."""
    request = Request({"type": "http", "headers": [], "query_string": b"", "method": "GET", "path": "/live"})
    return desk.answer(request, topic, who, is_good)


async def event(stream: AsyncIterator[str]) -> dict[str, Any]:
    """The next message of a stream that has data."""
    async for text in stream:
        for line in text.splitlines():
            if line.startswith("data: "):
                return json.loads(line[6:])
    raise AssertionError("the stream ended")


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 600))


@pytest.fixture
def desk(pages) -> LiveUpdates:
    return LiveUpdates(
        SearchFragments(SearchCache(pages.store), None, WorkDir(pages.workdir)), pages.monitor._parts.job_fragments
    )


def test_changes_arrive_alone(pages, desk):
    name = pages.submit("watched")

    async def watch() -> None:
        stream = answer_of(desk, name).body_iterator
        first = await event(stream)
        assert "submitted" in first["html"]["f-state"]
        assert first["state"] == "submitted"
        pages.results(name)
        second = await event(stream)
        assert "running" in second["html"]["f-state"]
        assert second["state"] == "running failures"  # the page asks for its actions again, with the one to retry
        assert "trial 2" in second["html"]["f-best"]
        assert second["figures"] != first["figures"]
        assert "f-cost" not in second["html"] or second["html"]["f-cost"] != first["html"]["f-cost"]
        desk.close()
        assert [text async for text in stream] == []

    play(watch)


def test_page_and_command_say_why_jobs_wait(pages, desk, monkeypatch):
    name = pages.submit("waits")
    pages.store.bind_server(pages.store.search(name).id, EMBEDDED)
    monkeypatch.setattr(
        "hpo_pilot.steering.status.waiting_job_notes", lambda workdir, _tasks: [f"jobs wait at {workdir.name}"]
    )
    with steered(pages.workdir, EMBEDDED):
        assert "jobs wait at work" in SearchClient.local(pages.workdir, opened=pages.store).status(name)["remarks"]
        trouble = desk.searches.look(name).content.html["f-trouble"]
    assert "jobs wait at work" in trouble
    assert "Nothing" not in trouble


def test_events_of_early_stopping_are_folded(pages):
    now = datetime.now(UTC)
    whats = [
        "running",
        "trial 7 is told to stop: a",
        "trial 6 was told to stop and ended before: its full result counts",
    ]
    whats += ["trial 5 is told to stop: b", "paused", "trial 1 is told to stop: c", "trial 2 failed"]
    groups = folded_events([Event(now, "service", what) for what in whats])
    assert [len(group) for group in groups] == [1, 3, 1, 1, 1]
    html = str(fragments("fragments.j2").events(groups, 4))
    assert html.count("<details>") == 1
    assert "<summary>3 events of early stopping</summary>" in html
    assert "And 4 earlier events." in html


def test_a_page_reads_the_newest_events_and_counts_the_others(pages, desk, monkeypatch):
    name = pages.submit("eventful")
    number, made = pages.store.search(name).id, []
    rows = [{"search_id": number, "time": 2e9, "who": "service", "what": f"event {nr}"} for nr in range(50)]
    with writing(pages.store.engine) as connection:
        connection.execute(insert(tables.events), rows)
    monkeypatch.setattr("hpo_pilot.store.store.Event", lambda *parts: made.append(parts) or Event(*parts))
    monkeypatch.setattr(live_module, "_READ_EVENTS", 20)
    html = desk.searches.look(name).content.html["f-events"]
    assert (html.index("event 49") < html.index("event 38"), "event 37" in html, len(made)) == (True, False, 20)
    assert "And 39 earlier events." in html  # with the one of the submission


def test_a_stream_s_head_ends(pages):
    answer = pages.browser("alice").head("/live")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_the_list_tells_of_the_rows_that_are_shown(pages, desk):
    name, other = pages.submit("row-one"), pages.submit("row-two")
    shown, hidden = (pages.store.search(one).id for one in (name, other))

    async def watch() -> None:
        stream = answer_of(desk, searches_topic(f"{shown},no number")).body_iterator
        first = await event(stream)
        assert f"s{shown}-state" in first["html"]
        assert f"s{hidden}-state" not in first["html"]
        pages.results(name)
        second = await event(stream)
        assert f"s{shown}-best" in second["html"]
        pages.submit("row-three")
        third = await event(stream)
        assert int(third["state"]) == int(second["state"]) + 1
        await stream.aclose()

    play(watch)


def test_connections_are_bounded_and_given_back(pages, desk, monkeypatch):
    name = pages.submit("bounded")
    monkeypatch.setattr(live_module, "_MOST_EACH", 2)

    async def watch() -> None:
        streams = [answer_of(desk, name).body_iterator for _ in range(2)]
        for stream in streams:
            await event(stream)
        assert answer_of(desk, name).status_code == 503
        assert answer_of(desk, name, "bob").status_code == 200
        await streams[0].aclose()
        assert answer_of(desk, name).status_code == 200
        await streams[1].aclose()
        assert not desk._watching

    play(watch)


def test_a_stream_ends_with_its_session(pages, desk):
    name, good = pages.submit("session-ends"), [True]

    async def watch() -> None:
        stream = answer_of(desk, name, is_good=lambda: good[0]).body_iterator
        await event(stream)
        good[0] = False
        pages.results(name)
        assert [text async for text in stream] == ["event: ended\ndata: {}\n\n"]

    play(watch)


def test_a_store_that_is_away_is_said_and_waited_for(monkeypatch):
    monkeypatch.setattr(live_module, "_AWAY", 0.01)
    errors = [TryAgainError("locked")]

    class Away:
        def look(self, topic: str) -> Snapshot:
            if errors:
                raise errors.pop()
            return Snapshot(live_module.FragmentSet({"f-state": topic}, "", "x"), "tag")

    async def watch() -> None:
        stream = answer_of(LiveUpdates(Away(), Away()), "s").body_iterator
        seen = [await anext(stream) for _ in range(3)]
        assert seen[1].startswith("event: away")
        assert json.loads(seen[2].removeprefix("data: "))["html"] == {"f-state": "s"}
        await stream.aclose()

    play(watch)


def test_many_who_watch_cost_one_look():
    looks = []

    def look(topic: str) -> Snapshot[int]:
        looks.append(topic)
        return Snapshot(len(looks), "same")

    async def watch() -> None:
        room = ChangeWatcher(look)
        await asyncio.gather(*(room.next("x", "same", 0.3) for _ in range(50)))
        for _ in range(2):
            await room.next("y", None, 0.3)
        assert not room._looking

    play(watch)
    assert looks.count("x") <= 2
    assert looks.count("y") == 1
