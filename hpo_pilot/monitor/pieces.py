"""The pieces of pages that change while one looks: made once for all who look, by the same templates as the pages."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from hpo_pilot.monitor.headline import headline
from hpo_pilot.monitor.library import Library, View
from hpo_pilot.monitor.newsroom import News
from hpo_pilot.monitor.rendering import fragments
from hpo_pilot.monitor.svg import sparkline
from hpo_pilot.service.outlook import optimizer_words
from hpo_pilot.service.remarks import remarks_of
from hpo_pilot.store import SearchState, Store
from hpo_pilot.store.lease import holder

#: The topic of the page of all searches; no search has an empty name.
ALL = ""

#: Estimates move with the clock: they are made anew in steps of so many seconds while a search runs.
_STEP = 5

#: Events shown on a search's page, and searches whose pieces are kept.
EVENTS, _KEPT = 12, 2000


@dataclass(frozen=True)
class Edition:
    """The pieces of a page at one moment.

    Attributes:
        html: by the id of the element that holds it.
        figures: changes when figures have something new to draw; empty: the page has none.
        state: of the search, for what depends on who looks; of all searches how many there are.
    """

    html: dict[str, Markup]
    figures: str
    state: str


class Pieces:
    """Makes the pieces. Safe to use from any thread."""

    def __init__(self, library: Library) -> None:
        """Shows what `library` has."""
        self._library = library
        self._lock = threading.Lock()
        self._rows: OrderedDict[int, tuple[str, dict[str, Markup]]] = OrderedDict()
        self._searches: OrderedDict[int, tuple[str, Edition]] = OrderedDict()

    def look(self, topic: str) -> News[Edition]:
        """The pieces of a search's page, or of the page of `ALL`, as they are now.

        Raises:
            UnknownSearchError: there is no such search.
            TryAgainError: the store is out of reach.
        """
        if topic == ALL:
            views = self._library.views()
            edition = self.of_all(views)
            texts = "".join(self._stamp(view, view.record.state.is_over) for view in views)
        else:
            view = self._library.view(topic)
            edition = self.of_search(view)
            texts = "".join(edition.html.values())
        return News(edition, hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest())

    def of_all(self, views: Sequence[View]) -> Edition:
        """The pieces of the page of all searches."""
        html: dict[str, Markup] = {"f-summary": summary(views)}
        for view in views:
            html |= self.of_row(view)
        return Edition(html, "", str(len(views)))

    def of_row(self, view: View) -> dict[str, Markup]:
        """The pieces of a search's row."""
        number, stamp = view.record.id, self._stamp(view, view.record.state.is_over)
        with self._lock:
            known = self._rows.get(number)
        if known is not None and known[0] == stamp:
            return known[1]
        templates = fragments("pieces.j2")
        seen = headline(view, datetime.now(UTC), steered=True)
        spark = sparkline(view.steps, f"best so far, {seen.best}") if len(view.steps) > 1 else Markup("")
        html = {
            f"s{number}-state": templates.state(view.record.state.value),
            f"s{number}-progress": templates.row_progress(seen, view.counts),
            f"s{number}-best": templates.row_best(view, seen),
            f"s{number}-spark": spark,
            f"s{number}-end": templates.row_end(seen),
            f"s{number}-cost": templates.row_cost(seen),
        }
        _keep(self._rows, self._lock, number, (stamp, html))
        return html

    def of_search(self, view: View) -> Edition:
        """The pieces of a search's page."""
        number, store = view.record.id, self._library.store
        steered = view.record.state.is_over or holder(store.engine) is not None
        stamp = f"{self._stamp(view, view.record.state.is_over)}{steered}{view.took}"
        with self._lock:
            known = self._searches.get(number)
        if known is not None and known[0] == stamp:
            return known[1]
        templates = fragments("pieces.j2")
        seen = headline(view, datetime.now(UTC), steered=steered)
        events = list(reversed(store.events(number)))
        remarks = remarks_of(store, view.record)
        html: dict[str, Markup] = {
            "f-state": templates.state(view.record.state.value),
            "f-trials": Markup("{:,}").format(len(view.trials)),
            "f-failed": Markup("{:,}").format(len(view.failures)) if view.failures else Markup(""),
            "f-verdict": templates.verdict(seen),
            "f-progress": templates.progress(view, seen),
            "f-best": templates.best(view, seen),
            "f-cost": templates.cost(view, seen),
            "f-trouble": templates.trouble(view, seen, remarks),
            "f-optimizer": templates.optimizer(optimizer_words(view.search, view.record.state, view.trials)),
            "f-point": templates.point(view),
            "f-waiting": templates.waiting(_wishes(store, number)),
            "f-events": templates.events(events[:EVENTS], len(events)),
        }
        edition = Edition(html, view.tag, view.record.state.value)
        _keep(self._searches, self._lock, number, (stamp, edition))
        return edition

    @staticmethod
    def _stamp(view: View, is_over: bool) -> str:
        return view.tag if is_over else f"{view.tag}.{int(time.time()) // _STEP}"


def summary(views: Sequence[View]) -> Markup:
    """How many searches are in which state."""
    states = Counter(view.record.state for view in views)
    said: Markup = fragments("pieces.j2").summary(len(views), [(s.value, states[s]) for s in SearchState if states[s]])
    return said


def _wishes(store: Store, number: int) -> Sequence[Any]:
    """The points that users asked for and that are not out yet."""
    return store.wishes(number)


def _keep(kept: OrderedDict[int, Any], lock: threading.Lock, number: int, value: Any) -> None:
    with lock:
        kept[number] = value
        kept.move_to_end(number)
        while len(kept) > _KEPT:
            kept.popitem(last=False)
