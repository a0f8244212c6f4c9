"""Live updates of pages: server-sent events with the parts that changed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Generic, TypeVar
from urllib.parse import parse_qsl, urlencode

from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from hpo_pilot.advice import Place
from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.jobs import JobState
from hpo_pilot.operations.documents import words_of
from hpo_pilot.report.formatting import machine_hours, whole
from hpo_pilot.search.progress import SearchProgress
from hpo_pilot.search.ranking import best_remarks
from hpo_pilot.steering.status import search_notes, steering_commands, why_not
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import Event, SearchState
from hpo_pilot.store.lease import Holder, lease_holder, steerer
from hpo_pilot.store.queries import SearchHead
from hpo_pilot.store.store import is_search_number
from hpo_pilot.web.rendering import fragments, sparkline_svg
from hpo_pilot.web.search_views import Headline, Kept, SearchCache, SearchView
from hpo_pilot.web.server_jobs import NoServerError, ServerJobs

#: Limits of connections in total and per user. A browser opens few to one server, and hidden pages close theirs.
_MOST_CONNECTIONS, _MOST_EACH = 300, 30

#: Seconds without a change after which a keep-alive is sent and the session is checked.
_QUIET = 15.0

#: Seconds between two reads of the store, and of the embedded server, which must serve pilots first.
_LOOK, _SERVER_LOOK = 0.25, 3.0

#: Milliseconds until a browser reconnects, and seconds until an unreachable store is read again.
_AGAIN, _AWAY = 1500, 2.0


class LiveUpdates:
    """Streams the changes of a page to the browsers that show it."""

    def __init__(self, searches: SearchFragments, server_jobs: JobFragments) -> None:
        """Streams the changes of `searches`, and of the jobs and pilots of `server_jobs`."""
        self.searches = searches
        self._search_changes: ChangeWatcher[FragmentSet] = ChangeWatcher(searches.look, _LOOK)
        self._job_changes: ChangeWatcher[FragmentSet] = ChangeWatcher(server_jobs.look, _SERVER_LOOK)
        self._watching: Counter[str] = Counter()

    def close(self) -> None:
        """Ends all connections. Called when the server shuts down."""
        self._search_changes.close()
        self._job_changes.close()

    def answer(self, request: Request, topic: str, who: str, is_good: Callable[[], bool]) -> Response:
        """Returns the event stream of a page's changes.

        Args:
            request: the browser's request.
            topic: a search's name, a topic of `searches_topic`, or one of `JobFragments.look`.
            who: the user, for the limit of connections per user.
            is_good: tells whether the user's session is still valid; called before each update.
        """
        if self._watching.total() >= _MOST_CONNECTIONS or self._watching[who] >= _MOST_EACH:
            return JSONResponse({"error": "too many pages are open: close some of them"}, 503, {"Retry-After": "30"})
        if request.method == "HEAD":  # the event stream would never end
            return Response(media_type="text/event-stream")
        return StreamingResponse(
            self._stream(topic, who, is_good),
            media_type="text/event-stream",
            # X-Accel-Buffering tells proxies not to collect events before they pass them on.
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _stream(self, topic: str, who: str, is_good: Callable[[], bool]) -> AsyncIterator[str]:
        self._watching[who] += 1
        sent: dict[str, str] = {}
        seen: str | None = None
        changes = self._job_changes if topic.startswith((JOBS_TOPIC, PILOTS_TOPIC)) else self._search_changes
        try:
            yield f"retry: {_AGAIN}\n\n"
            while not changes.is_closed:
                try:
                    news = await changes.next(topic, seen, _QUIET)
                except TryAgainError:
                    yield "event: away\ndata: {}\n\n"
                    seen = None
                    await changes.pause(_AWAY)
                    continue
                except HpoPilotError:
                    break  # the search was deleted
                if not is_good():
                    yield "event: ended\ndata: {}\n\n"
                    break
                if news.tag == seen:
                    yield ": nothing new\n\n"
                    continue
                seen = news.tag
                changed = {name: str(html) for name, html in news.content.html.items() if sent.get(name) != html}
                sent |= changed
                data = {"html": changed, "figures": news.content.figures, "state": news.content.state}
                yield f"data: {json.dumps(data)}\n\n"
        finally:
            self._watching[who] -= 1
            self._watching += Counter()


#: Default seconds between two reads of a topic, independent of the number of connections that wait for it.
_LOOK_SECONDS = 0.5

#: Slow reads are made less often: reads of a topic take at most 1/_PARTS of the time.
_PARTS = 3

#: Seconds for which a snapshot is kept without requests for it.
_KEEP = 10.0

_Content = TypeVar("_Content")


@dataclass(frozen=True)
class Snapshot(Generic[_Content]):
    """The content of a topic at one moment.

    Attributes:
        content: the topic's content.
        tag: changes when the content changes.
    """

    content: _Content
    tag: str


class ChangeWatcher(Generic[_Content]):
    """The latest snapshots of the topics that connections wait for."""

    def __init__(self, look: Callable[[str], Snapshot[_Content]], seconds: float = _LOOK_SECONDS) -> None:
        """Reads a topic with `look`, in a thread, at most every `seconds`."""
        self._look = look
        self._seconds = seconds
        self._latest: dict[str, tuple[float, float, Snapshot[_Content]]] = {}
        """By topic: when it was looked at, how long that is good, and what was there."""
        self._looking: dict[str, asyncio.Lock] = {}
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Ends all waits; they return the latest snapshot."""
        self._closed.set()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    async def next(self, topic: str, seen: str | None, seconds: float) -> Snapshot[_Content]:
        """Waits until a topic's tag differs from `seen`, at most `seconds`, and returns the snapshot.

        Raises:
            Whatever the look at the store raises.
        """
        end = time.monotonic() + seconds
        while True:
            news = await self._now(topic)
            left = end - time.monotonic()
            if news.tag != seen or left <= 0 or self._closed.is_set():
                return news
            await self.pause(min(left, self._seconds))

    async def pause(self, seconds: float) -> None:
        """Waits `seconds`, or until `close` is called."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return

    async def _now(self, topic: str) -> Snapshot[_Content]:
        if (fresh := self._fresh(topic)) is not None:
            return fresh
        async with self._looking.setdefault(topic, asyncio.Lock()):
            if (fresh := self._fresh(topic)) is not None:  # another task has looked while this one waited
                return fresh
            begun = time.monotonic()
            try:
                news = await run_in_threadpool(self._look, topic)
            finally:
                # Tasks that wait for the lock keep a reference to it. Unused topics must not stay in memory.
                self._latest.pop(topic, None)
                self._looking.pop(topic, None)
            self._latest = {name: kept for name, kept in self._latest.items() if time.monotonic() - kept[0] < _KEEP}
            now = time.monotonic()
            # A waiter asks again after `seconds`. The snapshot expires slightly earlier, so that it gets a new one.
            self._latest[topic] = (now, max(0.9 * self._seconds, (_PARTS - 1) * (now - begun)), news)
            return news

    def _fresh(self, topic: str) -> Snapshot[_Content] | None:
        known = self._latest.get(topic)
        return known[2] if known is not None and time.monotonic() - known[0] < known[1] else None


#: Prefix of the topics of pages of searches; no search name contains a slash.
_SEARCHES_TOPIC = "/searches?"

#: Most rows of a page of searches.
_MOST_ROWS = 200


def searches_topic(rows: str) -> str:
    """Returns the topic of a page of searches; `rows`: their numbers, separated by commas."""
    numbers = {int(word) for word in rows.split(",")[:_MOST_ROWS] if is_search_number(word)}
    return _SEARCHES_TOPIC + ",".join(map(str, sorted(numbers)))


#: Seconds between updates of the estimates of a running search, which change with the clock.
_STEP = 5

#: Events shown on a search's page, those of early stopping folded into one; events read for that; and searches whose
#: fragments are cached.
MOST_EVENTS, _READ_EVENTS, _KEPT = 12, 1000, 2000


@dataclass(frozen=True)
class FragmentSet:
    """The fragments of a page at one moment.

    Attributes:
        html: HTML by the id of the element that contains it.
        figures: changes when the figures must be drawn again; empty: the page has no figures.
        state: the state of the search, and whether it has failures; the number of searches; or, for jobs and pilots,
            words for the parts to show. When it changes, the browser updates the other parts of the page.
    """

    html: dict[str, Markup]
    figures: str
    state: str

    @property
    def snapshot(self) -> Snapshot[FragmentSet]:
        """The snapshot with these fragments."""
        texts = self.state + "".join(self.html.values())
        return Snapshot(self, hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest())


class SearchFragments:
    """Makes the fragments of the pages of searches. Thread-safe."""

    def __init__(self, library: SearchCache, place: Place | None, workdir: WorkDir) -> None:
        """Makes fragments from the searches of `library`.

        Args:
            library: the searches.
            place: how shown commands address the searches; None: they name no place.
            workdir: the work folder of the store and of the embedded server.
        """
        self._library = library
        self._place = place or Place()
        self._workdir = workdir
        self._rows: Kept[int, tuple[str, dict[str, Markup]]] = Kept(_KEPT)
        self._searches: Kept[int, tuple[str, FragmentSet]] = Kept(_KEPT)

    def look(self, topic: str) -> Snapshot[FragmentSet]:
        """Returns the current fragments of a search's page, or of a page of searches.

        Raises:
            UnknownSearchError: there is no such search.
            TryAgainError: the store cannot be reached.
        """
        if topic.startswith(_SEARCHES_TOPIC):
            rows = topic.removeprefix(_SEARCHES_TOPIC)
            numbers = [int(number) for number in rows.split(",")] if rows else []
            content = self.of_list(self._library.heads(), self._library.views(numbers))
        else:
            content = self.of_search(self._library.view(topic))
        return content.snapshot

    def of_list(self, heads: Sequence[SearchHead], views: Sequence[SearchView]) -> FragmentSet:
        """Returns the fragments of a page of searches: of the rows of `views`, and of the summary of all `heads`."""
        states = Counter(head.state for head in heads)
        counts = [(state.value, states[state]) for state in SearchState if states[state]]
        html: dict[str, Markup] = {"f-summary": fragments("fragments.j2").summary(len(heads), counts)}
        steers = lease_holder(self._library.store.engine)
        for view in views:
            html |= self.of_row(view, steers)
        return FragmentSet(html, "", str(len(heads)))

    def of_row(self, view: SearchView, steers: Holder | None) -> dict[str, Markup]:
        """Returns the fragments of a search's row. `steers` is the holder of the store's lease."""
        unsteered = why_not(view.record, steers)
        return self._cached(self._rows, view, unsteered, lambda: self._row(view, unsteered))

    def _row(self, view: SearchView, unsteered: str) -> dict[str, Markup]:
        number, templates = view.record.id, fragments("fragments.j2")
        seen = Headline(self._library.store, view, datetime.now(UTC), unsteered)
        return {
            f"s{number}-state": templates.state(view.record.state.value, not unsteered),
            f"s{number}-progress": templates.row_progress(view, seen),
            f"s{number}-best": templates.row_best(view),
            f"s{number}-spark": sparkline_svg(_steps(view.progress), f"best so far, {view.best_text}"),
            f"s{number}-end": escape(seen.end),
            f"s{number}-cost": escape(" ".join(machine_hours(view.cost.gpu_hours, view.cost.core_hours))),
        }

    def of_search(self, view: SearchView) -> FragmentSet:
        """Returns the fragments of a search's page."""
        unsteered = why_not(view.record, lease_holder(self._library.store.engine))
        return self._cached(self._searches, view, unsteered, lambda: self._search(view, unsteered))

    def _search(self, view: SearchView, unsteered: str) -> FragmentSet:
        number, store, templates = view.record.id, self._library.store, fragments("fragments.j2")
        if unsteered:
            unsteered = f"{unsteered}: {self._workdir.place().completed(steering_commands(view.record))}"
        seen, best = Headline(store, view, datetime.now(UTC), unsteered), self._library.best(view)
        condition, verdict = seen.verdict
        events, total = store.newest_events(number, _READ_EVENTS)
        groups = folded_events(events)[:MOST_EVENTS]
        notes = search_notes(store, view.record, view.progress, self._workdir.root)
        remarks = [self._place.completed(note) for note in notes]
        words = words_of(store, view.record, view.progress, steered=not unsteered)
        ties = 1 if view.progress.confirmed is not None else view.progress.ties
        html: dict[str, Markup] = {
            "f-state": templates.state(view.record.state.value, not unsteered),
            "f-steerer": templates.steerer(None if view.record.state.is_over else steerer(store.engine, number)),
            "f-trials": escape(whole(view.progress.trials)),
            "f-failed": escape(whole(view.progress.failed) if view.progress.failed else ""),
            "f-verdict": templates.verdict(condition, self._place.completed(verdict)),
            "f-progress": templates.progress(view, seen),
            "f-best": templates.best(view, seen),
            "f-cost": templates.cost(view, seen),
            "f-trouble": templates.trouble(view, seen, remarks),
            "f-optimizer": templates.optimizer(words),
            "f-point": templates.point(
                view, best, best_remarks(view.search, best[0].trial.point, ties) if best else [], self._place.command
            ),
            "f-waiting": templates.waiting(store.requested_points(number)),
            "f-events": templates.events(groups, total - sum(map(len, groups))),
        }
        # With the first failure there is an action to retry.
        state = f"{view.record.state.value}{' failures' * (view.progress.failed > 0)}"
        return FragmentSet(html, view.tag, state)

    def _cached(
        self,
        kept: Kept[int, tuple[str, _Content]],
        view: SearchView,
        unsteered: str,
        make: Callable[[], _Content],
    ) -> _Content:
        """Returns what was made of the present state of a search; calls `make` if `kept` has only older fragments."""
        step = "" if view.record.state.is_over else int(time.time()) // _STEP
        stamp, number = f"{view.tag}.{step}.{unsteered}", view.record.id
        known = kept.get(number)
        if known is None or known[0] != stamp:
            known = kept.put(number, (stamp, make()))
        return known[1]


def _steps(progress: SearchProgress) -> list[tuple[int, float]]:
    """Returns the best value at each improvement, and at the last result."""
    course = list(progress.course)
    return [*course, (progress.told, course[-1][1])] if course and course[-1][0] < progress.told else course


#: Events of early stopping; a search may have thousands.
_STOP_EVENT = re.compile(r"trial \d+ (is|was) told to stop\b")


def folded_events(events: Sequence[Event]) -> list[list[Event]]:
    """Returns the events in groups: consecutive ones of early stopping together, every other one alone."""
    groups: list[list[Event]] = []
    for is_stop, some in groupby(events, key=lambda event: _STOP_EVENT.match(event.what) is not None):
        together = list(some)
        groups += [together] if is_stop else [[event] for event in together]
    return groups


#: Prefixes of the topics of the jobs and pilots pages; no search name contains a slash.
JOBS_TOPIC, PILOTS_TOPIC = "/jobs?", "/pilots?"

#: Jobs on a page, and most characters of a filter's value.
_JOBS, _LONGEST = 100, 100

#: Words of `FragmentSet.state`: whether the embedded server answers. The page hides its other parts if not.
SERVER_AWAY, SERVER_THERE = "away", "there"


@dataclass(frozen=True)
class JobFilter:
    """A filter of the list of jobs.

    Attributes:
        search: only jobs of this search; empty: of all.
        state: only jobs in this state; empty: in any.
        queue: only jobs at this queue; empty: at any.
        before: only jobs older than this one, by number; None: from the newest.
    """

    search: str = ""
    state: str = ""
    queue: str = ""
    before: int | None = None

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> JobFilter:
        """Reads the filter from an address; invalid values are ignored."""
        search, state, queue = (query.get(name, "")[:_LONGEST] for name in ("search", "state", "queue"))
        before = query.get("before", "")
        is_number = before.isascii() and before.isdigit() and len(before) < 19
        return cls(search, state if state in list(JobState) else "", queue, int(before) if is_number else None)

    @property
    def parameters(self) -> dict[str, str]:
        """Parameters of the address, without `before`."""
        given = {"search": self.search, "state": self.state, "queue": self.queue}
        return {name: value for name, value in given.items() if value}

    @property
    def query(self) -> str:
        """Query of the address."""
        return urlencode(self.parameters if self.before is None else {**self.parameters, "before": self.before})


class JobFragments:
    """Makes the fragments of the jobs and pilots pages. Thread-safe."""

    def __init__(self, server_jobs: ServerJobs) -> None:
        """Makes fragments from the jobs, pilots and queues of `server_jobs`."""
        self._server_jobs = server_jobs

    def look(self, topic: str) -> Snapshot[FragmentSet]:
        """Returns the fragments of the jobs page or the pilots page.

        The topic of the jobs page is `JOBS_TOPIC` and the query of a `JobFilter`; that of the pilots page is
        `PILOTS_TOPIC`.
        """
        if topic == PILOTS_TOPIC:
            content = self.pilots()
        else:
            content = self.jobs(JobFilter.of_query(dict(parse_qsl(topic.removeprefix(JOBS_TOPIC)))))
        return content.snapshot

    def jobs(self, wanted: JobFilter) -> FragmentSet:
        """Returns the fragments of the jobs page."""
        templates = fragments("server_fragments.j2")
        try:
            found = self._server_jobs.jobs(
                search=wanted.search or None,
                state=JobState(wanted.state) if wanted.state else None,
                queue=wanted.queue or None,
                limit=_JOBS,
                before=wanted.before,
            )
        except TryAgainError as error:
            return _fragments_without_server(error, ("f-counts", "f-jobs", "f-older"))
        counts = [(state.value, found.counts[state]) for state in JobState if found.counts.get(state)]
        older = JobFilter(wanted.search, wanted.state, wanted.queue, found.before) if found.before is not None else None
        html: dict[str, Markup] = {
            "f-away": Markup(""),
            "f-counts": templates.counts(counts),
            "f-jobs": templates.jobs(found.jobs, datetime.now(UTC)),
            "f-older": templates.older(older),
        }
        ended = "" if found.is_live else " ended"
        return FragmentSet(html, "", f"{SERVER_THERE} {'jobs' if found.jobs else 'no-jobs'}{ended}")

    def pilots(self) -> FragmentSet:
        """Returns the fragments of the page of pilots and queues."""
        templates = fragments("server_fragments.j2")
        try:
            pilots, queues = self._server_jobs.pilots(), self._server_jobs.queues()
        except TryAgainError as error:
            return _fragments_without_server(error, ("f-pilots", "f-queues"))
        html: dict[str, Markup] = {
            "f-away": Markup(""),
            "f-pilots": templates.pilots(pilots, datetime.now(UTC)),
            "f-queues": templates.queues(queues),
        }
        words = f"{'pilots' if pilots else 'no-pilots'} {'queues' if queues else 'no-queues'}"
        return FragmentSet(html, "", f"{SERVER_THERE} {words}")


def _fragments_without_server(error: TryAgainError, others: tuple[str, ...]) -> FragmentSet:
    """Returns the fragments while the server does not answer. `others` become empty: the page shows no old values."""
    empty = dict.fromkeys(others, Markup(""))
    return FragmentSet({"f-away": fragments("server_fragments.j2").away(away_text(error)), **empty}, "", SERVER_AWAY)


def away_text(error: TryAgainError) -> str:
    """Returns the reason why nothing is shown, without paths of this machine, which users must not see."""
    if isinstance(error, NoServerError):
        return "No embedded PanDA server runs here at the moment."
    return "The embedded PanDA server does not answer at the moment."
