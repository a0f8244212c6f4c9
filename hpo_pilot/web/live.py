"""Live updates: server-sent events with the parts of a page that changed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, urlencode

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from hpo_pilot.advice import Place
from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.jobs import JobState
from hpo_pilot.steering.status import is_steered, optimizer_words, search_notes, steering_commands, why_not
from hpo_pilot.store import SearchState, Store
from hpo_pilot.store.lease import Holder, lease_holder
from hpo_pilot.web.rendering import fragments, sparkline_svg
from hpo_pilot.web.search_views import SearchCache, SearchView, headline
from hpo_pilot.web.server_jobs import NoServerError, ServerJobs

#: Connections in all, and of one user: a browser has few for each server, and pages that nobody looks at close theirs.
_MOST_CONNECTIONS, _MOST_EACH = 300, 30

#: Seconds without news after which a sign of life is sent, and the session is looked at.
_QUIET = 15.0

#: Seconds between two looks at the store, and at the embedded server, whose first business are pilots.
_LOOK, _BOARD_LOOK = 0.25, 3.0

#: Milliseconds after which a browser connects again, and seconds that a store which is away is left alone.
_AGAIN, _AWAY = 1500, 2.0


class LiveUpdates:
    """Tells those who look at a page what changes on it."""

    def __init__(self, pieces: SearchFragments, board: JobFragments | None = None) -> None:
        """Tells of the changes of `pieces`, and of those of `board`."""
        self.pieces = pieces
        self._room: ChangeWatcher[FragmentSet] = ChangeWatcher(pieces.look, _LOOK)
        self._board_room: ChangeWatcher[FragmentSet] = (
            self._room if board is None else ChangeWatcher(board.look, _BOARD_LOOK)
        )
        self._watching: Counter[str] = Counter()

    def close(self) -> None:
        """Ends all connections, for the server ends."""
        self._room.close()
        self._board_room.close()

    def answer(self, request: Request, topic: str, who: str, is_good: Callable[[], bool]) -> Response:
        """The stream of a page's changes.

        Args:
            request: the browser's.
            topic: the search's name, or `pieces.ALL`, or one of `BoardPieces.look`.
            who: looks.
            is_good: whether that user's session still is; asked now and then.
        """
        if self._watching.total() >= _MOST_CONNECTIONS or self._watching[who] >= _MOST_EACH:
            return JSONResponse({"error": "too many pages are open: close some"}, 503, {"Retry-After": "30"})
        if request.method == "HEAD":  # whose answer would never end
            return Response(media_type="text/event-stream")
        # Whoever left out rows has no use for their news.
        only = request.query_params.get("rows")
        rows = None if only is None else {f"s{number}" for number in only.split(",")[:200]}
        return StreamingResponse(
            self._stream(topic, who, is_good, rows),
            media_type="text/event-stream",
            # The last one is for proxies that would keep events until there are many.
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _stream(
        self, topic: str, who: str, is_good: Callable[[], bool], rows: set[str] | None
    ) -> AsyncIterator[str]:
        self._watching[who] += 1
        sent: dict[str, str] = {}
        seen: str | None = None
        room = self._board_room if topic.startswith((JOBS_TOPIC, PILOTS_TOPIC)) else self._room
        try:
            yield f"retry: {_AGAIN}\n\n"
            while not room.is_closed:
                try:
                    news = await room.next(topic, seen, _QUIET)
                except TryAgainError:
                    yield "event: away\ndata: {}\n\n"
                    seen = None
                    await room.pause(_AWAY)
                    continue
                except HpoPilotError:
                    break  # the search is not there any more
                if not is_good():
                    yield "event: ended\ndata: {}\n\n"
                    break
                if news.tag == seen:
                    yield ": nothing new\n\n"
                    continue
                seen = news.tag
                changed = {
                    name: str(html)
                    for name, html in news.content.html.items()
                    if sent.get(name) != html and (rows is None or name.partition("-")[0] in rows | {"f"})
                }
                sent |= changed
                data = {"html": changed, "figures": news.content.figures, "state": news.content.state}
                yield f"data: {json.dumps(data)}\n\n"
        finally:
            self._watching[who] -= 1
            self._watching += Counter()


#: Seconds between two looks at the store for one topic, however many wait for its news, where nothing else is said.
_LOOK_SECONDS = 0.5

#: A look that takes long is made more rarely: it takes at most one part in so many of the time.
_PARTS = 3

#: Seconds for which news are kept that nobody asks for.
_KEEP = 10.0

_Content = TypeVar("_Content")


@dataclass(frozen=True)
class Snapshot(Generic[_Content]):
    """What there is to say of a topic.

    Attributes:
        content: what is said.
        tag: changes when that does.
    """

    content: _Content
    tag: str


class ChangeWatcher(Generic[_Content]):
    """The latest news of the topics that somebody watches."""

    def __init__(self, look: Callable[[str], Snapshot[_Content]], seconds: float = _LOOK_SECONDS) -> None:
        """Looks at a topic with `look`, in a thread, every so many `seconds`."""
        self._look = look
        self._seconds = seconds
        self._latest: dict[str, tuple[float, float, Snapshot[_Content]]] = {}
        """By topic: when it was looked at, how long that is good, and what was there."""
        self._looking: dict[str, asyncio.Lock] = {}
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Answers all who wait with what there is."""
        self._closed.set()

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is waited for."""
        return self._closed.is_set()

    async def next(self, topic: str, seen: str | None, seconds: float) -> Snapshot[_Content]:
        """The news of a topic as soon as they are not `seen`; as they are after `seconds`.

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
        """Waits, unless it closes meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return

    async def _now(self, topic: str) -> Snapshot[_Content]:
        async with self._looking.setdefault(topic, asyncio.Lock()):
            known = self._latest.get(topic)
            if known is not None and time.monotonic() - known[0] < known[1]:
                return known[2]
            begun = time.monotonic()
            try:
                news = await run_in_threadpool(self._look, topic)
            finally:
                # Whoever waits for the lock has it; names that nobody asks for any more are not kept.
                self._latest.pop(topic, None)
                self._looking.pop(topic, None)
            self._latest = {name: kept for name, kept in self._latest.items() if time.monotonic() - kept[0] < _KEEP}
            now = time.monotonic()
            # A waiter comes back after `seconds`, no sooner: a moment less, and it is not sent away for nothing.
            self._latest[topic] = (now, max(0.9 * self._seconds, (_PARTS - 1) * (now - begun)), news)
            return news


#: The topic of the page of all searches; no search has an empty name.
ALL_SEARCHES = ""

#: Estimates move with the clock: they are made anew in steps of so many seconds while a search runs.
_STEP = 5

#: Events shown on a search's page, and searches whose pieces are kept.
MOST_EVENTS, _KEPT = 12, 2000


@dataclass(frozen=True)
class FragmentSet:
    """The pieces of a page at one moment.

    Attributes:
        html: by the id of the element that holds it.
        figures: changes when figures have something new to draw; empty: the page has none.
        state: of the search, for what depends on who looks; of all searches how many there are.
    """

    html: dict[str, Markup]
    figures: str
    state: str


class SearchFragments:
    """Makes the pieces. Safe to use from any thread."""

    def __init__(self, library: SearchCache, place: Place | None, here: Place) -> None:
        """Prepares.

        Args:
            library: what is shown.
            place: where commands find the searches; None: they name no place.
            here: where a command on this machine finds the store.
        """
        self._library = library
        self._place = place or Place()
        self._here = here
        self._lock = threading.Lock()
        self._rows: OrderedDict[int, tuple[str, dict[str, Markup]]] = OrderedDict()
        self._searches: OrderedDict[int, tuple[str, FragmentSet]] = OrderedDict()

    def look(self, topic: str) -> Snapshot[FragmentSet]:
        """The pieces of a search's page, or of the page of `ALL`, as they are now.

        Raises:
            UnknownSearchError: there is no such search.
            TryAgainError: the store is out of reach.
        """
        if topic == ALL_SEARCHES:
            views = self._library.views()
            edition = self.of_all(views)
            steers = lease_holder(self._library.store.engine)
            texts = "".join(f"{self._stamp(view)}{is_steered(view.record, steers)}" for view in views)
        else:
            view = self._library.view(topic)
            edition = self.of_search(view)
            texts = "".join(edition.html.values())
        return Snapshot(edition, hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest())

    def of_all(self, views: Sequence[SearchView]) -> FragmentSet:
        """The pieces of the page of all searches."""
        html: dict[str, Markup] = {"f-summary": state_summary(views)}
        steers = lease_holder(self._library.store.engine)
        for view in views:
            html |= self.of_row(view, steers)
        return FragmentSet(html, "", str(len(views)))

    def of_row(self, view: SearchView, steers: Holder | None) -> dict[str, Markup]:
        """The pieces of a search's row; `steers`: who steers the store."""
        number, unsteered = view.record.id, why_not(view.record, steers)
        stamp = f"{self._stamp(view)}{unsteered}"
        with self._lock:
            known = self._rows.get(number)
        if known is not None and known[0] == stamp:
            return known[1]
        templates = fragments("pieces.j2")
        seen = headline(view, datetime.now(UTC), unsteered)
        spark = sparkline_svg(view.steps, f"best so far, {seen.best}") if len(view.steps) > 1 else Markup("")
        html = {
            f"s{number}-state": templates.state(view.record.state.value, not unsteered),
            f"s{number}-progress": templates.row_progress(seen, view.counts),
            f"s{number}-best": templates.row_best(view, seen),
            f"s{number}-spark": spark,
            f"s{number}-end": templates.row_end(seen),
            f"s{number}-cost": templates.row_cost(seen),
        }
        _remember(self._rows, self._lock, number, (stamp, html))
        return html

    def of_search(self, view: SearchView) -> FragmentSet:
        """The pieces of a search's page."""
        number, store = view.record.id, self._library.store
        unsteered = why_not(view.record, lease_holder(store.engine))
        stamp = f"{self._stamp(view)}{unsteered}{view.took}"
        with self._lock:
            known = self._searches.get(number)
        if known is not None and known[0] == stamp:
            return known[1]
        templates = fragments("pieces.j2")
        if unsteered:
            unsteered = f"{unsteered}: {self._here.completed(steering_commands(view.record))}"
        seen = headline(view, datetime.now(UTC), unsteered)
        events = list(reversed(store.events(number)))
        remarks = [self._place.completed(remark) for remark in search_notes(store, view.record)]
        words = optimizer_words(view.search, view.record.state, view.trials, steered=not unsteered)
        html: dict[str, Markup] = {
            "f-state": templates.state(view.record.state.value, not unsteered),
            "f-trials": Markup("{:,}").format(len(view.trials)),
            "f-failed": Markup("{:,}").format(len(view.failures)) if view.failures else Markup(""),
            "f-verdict": templates.verdict(seen, self._place.completed(seen.verdict)),
            "f-progress": templates.progress(view, seen),
            "f-best": templates.best(view, seen),
            "f-cost": templates.cost(view, seen),
            "f-trouble": templates.trouble(view, seen, remarks),
            "f-optimizer": templates.optimizer(words),
            "f-point": templates.point(view, self._place.command),
            "f-waiting": templates.waiting(_requested_points(store, number)),
            "f-events": templates.events(events[:MOST_EVENTS], len(events)),
        }
        edition = FragmentSet(html, view.tag, view.record.state.value)
        _remember(self._searches, self._lock, number, (stamp, edition))
        return edition

    @staticmethod
    def _stamp(view: SearchView) -> str:
        return view.tag if view.record.state.is_over else f"{view.tag}.{int(time.time()) // _STEP}"


def state_summary(views: Sequence[SearchView]) -> Markup:
    """How many searches are in which state."""
    states = Counter(view.record.state for view in views)
    said: Markup = fragments("pieces.j2").summary(len(views), [(s.value, states[s]) for s in SearchState if states[s]])
    return said


def _requested_points(store: Store, number: int) -> Sequence[Any]:
    """The points that users asked for and that are not out yet."""
    return store.wishes(number)


def _remember(kept: OrderedDict[int, Any], lock: threading.Lock, number: int, value: Any) -> None:
    with lock:
        kept[number] = value
        kept.move_to_end(number)
        while len(kept) > _KEPT:
            kept.popitem(last=False)


#: How the topics of these pages begin; no search has a name with a slash.
JOBS_TOPIC, PILOTS_TOPIC = "/jobs?", "/pilots?"

#: Jobs of a page, and characters of a filter.
_JOBS, _LONGEST = 100, 100

#: What a page holds: parts of it are shown while the server is there, and while there is something for them.
SERVER_AWAY, SERVER_THERE = "away", "there"


@dataclass(frozen=True)
class JobFilter:
    """Which jobs are wanted.

    Attributes:
        search: of that search alone; empty: of all.
        state: in that state alone; empty: in any.
        queue: at that queue alone; empty: at any.
        before: older ones than that job; None: the newest.
    """

    search: str = ""
    state: str = ""
    queue: str = ""
    before: int | None = None

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> JobFilter:
        """The filter that an address names; what makes no sense in it is left out."""
        search, state, queue = (query.get(name, "")[:_LONGEST] for name in ("search", "state", "queue"))
        before = query.get("before", "")
        is_number = before.isascii() and before.isdigit() and len(before) < 19
        return cls(search, state if state in list(JobState) else "", queue, int(before) if is_number else None)

    @property
    def said(self) -> dict[str, str]:
        """As an address has it, but for where it begins."""
        given = {"search": self.search, "state": self.state, "queue": self.queue}
        return {name: value for name, value in given.items() if value}

    @property
    def query(self) -> str:
        """As an address has it."""
        return urlencode(self.said if self.before is None else {**self.said, "before": self.before})


class JobFragments:
    """Makes the pieces. Safe to use from any thread."""

    def __init__(self, board: ServerJobs) -> None:
        """Shows what `board` tells."""
        self._board = board

    def look(self, topic: str) -> Snapshot[FragmentSet]:
        """The pieces of the page of jobs with a filter, `JOBS` and the filter's query, or of that of `PILOTS`."""
        if topic == PILOTS_TOPIC:
            edition = self.pilots()
        else:
            edition = self.jobs(JobFilter.of_query(dict(parse_qsl(topic.removeprefix(JOBS_TOPIC)))))
        texts = edition.state + "".join(edition.html.values())
        return Snapshot(edition, hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest())

    def jobs(self, wanted: JobFilter) -> FragmentSet:
        """The page of jobs."""
        templates = fragments("board.j2")
        try:
            found = self._board.jobs(
                search=wanted.search or None,
                states=[JobState(wanted.state)] if wanted.state else [],
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
        return FragmentSet(html, "", f"{SERVER_THERE} {'jobs' if found.jobs else 'no-jobs'}")

    def pilots(self) -> FragmentSet:
        """The page of pilots and queues."""
        templates = fragments("board.j2")
        try:
            pilots, queues = self._board.pilots(), self._board.queues()
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
    """What is shown while the server does not tell: nothing of it is left on the page as if it were so now."""
    empty = dict.fromkeys(others, Markup(""))
    return FragmentSet({"f-away": fragments("board.j2").away(away_text(error)), **empty}, "", SERVER_AWAY)


def away_text(error: TryAgainError) -> str:
    """Why nothing is shown, for people who are not to know this machine's paths."""
    if isinstance(error, NoServerError):
        return "No embedded PanDA server runs here at the moment."
    return "The embedded PanDA server does not answer at the moment."
