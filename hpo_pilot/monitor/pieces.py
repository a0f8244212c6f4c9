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

from hpo_pilot.advice import Place
from hpo_pilot.monitor.headline import headline
from hpo_pilot.monitor.library import Library, View
from hpo_pilot.monitor.newsroom import News
from hpo_pilot.monitor.rendering import fragments
from hpo_pilot.monitor.svg import sparkline
from hpo_pilot.service.outlook import optimizer_words
from hpo_pilot.service.remarks import remarks_of
from hpo_pilot.service.steered import is_steered, steering_commands, why_not
from hpo_pilot.store import SearchState, Store
from hpo_pilot.store.lease import Holder, holder

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

    def __init__(self, library: Library, place: Place | None, here: Place) -> None:
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
            steers = holder(self._library.store.engine)
            texts = "".join(f"{self._stamp(view)}{is_steered(view.record, steers)}" for view in views)
        else:
            view = self._library.view(topic)
            edition = self.of_search(view)
            texts = "".join(edition.html.values())
        return News(edition, hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest())

    def of_all(self, views: Sequence[View]) -> Edition:
        """The pieces of the page of all searches."""
        html: dict[str, Markup] = {"f-summary": summary(views)}
        steers = holder(self._library.store.engine)
        for view in views:
            html |= self.of_row(view, steers)
        return Edition(html, "", str(len(views)))

    def of_row(self, view: View, steers: Holder | None) -> dict[str, Markup]:
        """The pieces of a search's row; `steers`: who steers the store."""
        number, unsteered = view.record.id, why_not(view.record, steers)
        stamp = f"{self._stamp(view)}{unsteered}"
        with self._lock:
            known = self._rows.get(number)
        if known is not None and known[0] == stamp:
            return known[1]
        templates = fragments("pieces.j2")
        seen = headline(view, datetime.now(UTC), unsteered)
        spark = sparkline(view.steps, f"best so far, {seen.best}") if len(view.steps) > 1 else Markup("")
        html = {
            f"s{number}-state": templates.state(view.record.state.value, not unsteered),
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
        unsteered = why_not(view.record, holder(store.engine))
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
        remarks = [self._place.completed(remark) for remark in remarks_of(store, view.record)]
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
            "f-waiting": templates.waiting(_wishes(store, number)),
            "f-events": templates.events(events[:EVENTS], len(events)),
        }
        edition = Edition(html, view.tag, view.record.state.value)
        _keep(self._searches, self._lock, number, (stamp, edition))
        return edition

    @staticmethod
    def _stamp(view: View) -> str:
        return view.tag if view.record.state.is_over else f"{view.tag}.{int(time.time()) // _STEP}"


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
