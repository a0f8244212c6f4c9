"""What changes on a page reaches those who look at it, at once, and ends in order."""

from __future__ import annotations

import asyncio
import json

from starlette.requests import Request

from hpo_pilot.advice import Place
from hpo_pilot.errors import TryAgainError
from hpo_pilot.web import live as live_module
from hpo_pilot.web.live import ALL_SEARCHES, ChangeWatcher, LiveUpdates, SearchFragments, Snapshot
from hpo_pilot.web.search_views import SearchCache


def request(query: bytes = b"") -> Request:
    return Request({"type": "http", "headers": [], "query_string": query, "method": "GET", "path": "/live"})


async def event(stream) -> dict:
    """The next message of a stream that has data."""
    async for text in stream:
        for line in text.splitlines():
            if line.startswith("data: "):
                return json.loads(line[6:])
    raise AssertionError("the stream ended")


def test_changes_arrive_alone(pages):
    name = pages.submit("watched")

    async def watch() -> None:
        desk = LiveUpdates(SearchFragments(SearchCache(pages.store), None, Place()))
        stream = desk.answer(request(), name, "alice", lambda: True).body_iterator
        first = await event(stream)
        assert "submitted" in first["html"]["f-state"]
        assert first["state"] == "submitted"
        pages.results(name)
        second = await event(stream)
        assert "running" in second["html"]["f-state"]
        assert "trial 2" in second["html"]["f-best"]
        assert second["figures"] != first["figures"]
        assert "f-cost" not in second["html"] or second["html"]["f-cost"] != first["html"]["f-cost"]
        desk.close()
        assert [text async for text in stream] == []

    asyncio.run(asyncio.wait_for(watch(), 20))


def test_a_stream_s_head_ends(pages):
    answer = pages.browser("alice").head("/live")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_the_list_tells_of_the_rows_that_are_shown(pages):
    name, other = pages.submit("row-one"), pages.submit("row-two")
    shown, hidden = (pages.store.search(one).id for one in (name, other))

    async def watch() -> None:
        desk = LiveUpdates(SearchFragments(SearchCache(pages.store), None, Place()))
        stream = desk.answer(request(f"rows={shown}".encode()), ALL_SEARCHES, "alice", lambda: True).body_iterator
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

    asyncio.run(asyncio.wait_for(watch(), 20))


def test_connections_are_bounded_and_given_back(pages, monkeypatch):
    name = pages.submit("bounded")
    monkeypatch.setattr(live_module, "_MOST_EACH", 2)

    async def watch() -> None:
        desk = LiveUpdates(SearchFragments(SearchCache(pages.store), None, Place()))
        streams = [desk.answer(request(), name, "alice", lambda: True).body_iterator for _ in range(2)]
        for stream in streams:
            await event(stream)
        assert desk.answer(request(), name, "alice", lambda: True).status_code == 503
        assert desk.answer(request(), name, "bob", lambda: True).status_code == 200
        await streams[0].aclose()
        assert desk.answer(request(), name, "alice", lambda: True).status_code == 200
        await streams[1].aclose()
        assert not desk._watching

    asyncio.run(asyncio.wait_for(watch(), 20))


def test_a_stream_ends_with_its_session(pages):
    name = pages.submit("session-ends")
    good = [True]

    async def watch() -> None:
        desk = LiveUpdates(SearchFragments(SearchCache(pages.store), None, Place()))
        stream = desk.answer(request(), name, "alice", lambda: good[0]).body_iterator
        await event(stream)
        good[0] = False
        pages.results(name)
        rest = [text async for text in stream]
        assert rest == ["event: ended\ndata: {}\n\n"]

    asyncio.run(asyncio.wait_for(watch(), 20))


def test_a_store_that_is_away_is_said_and_waited_for(monkeypatch):
    monkeypatch.setattr(live_module, "_AWAY", 0.01)
    answers = [TryAgainError("locked"), None]

    class Away:
        def look(self, topic: str) -> Snapshot:
            error = answers.pop(0) if answers else None
            if error is not None:
                raise error
            return Snapshot(live_module.FragmentSet({"f-state": topic}, "", "x"), "tag")

    async def watch() -> None:
        stream = LiveUpdates(Away()).answer(request(), "s", "alice", lambda: True).body_iterator
        seen = [await anext(stream) for _ in range(3)]
        assert seen[1].startswith("event: away")
        assert json.loads(seen[2].removeprefix("data: "))["html"] == {"f-state": "s"}
        await stream.aclose()

    asyncio.run(asyncio.wait_for(watch(), 10))


def test_many_who_watch_cost_one_look():
    looks = []

    def look(topic: str) -> Snapshot[int]:
        looks.append(topic)
        return Snapshot(len(looks), "same")

    async def watch() -> None:
        room = ChangeWatcher(look)
        await asyncio.gather(*(room.next("x", "same", 0.3) for _ in range(50)))

    asyncio.run(watch())
    assert len(looks) <= 2
