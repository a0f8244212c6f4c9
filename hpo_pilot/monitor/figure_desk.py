"""Figures of searches as JSON: made one at a time, kept, and made again when there is something new to draw."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from hpo_pilot.errors import InputError
from hpo_pilot.figures.catalogue import Kind, Peer, Subject, build, kinds, same_question
from hpo_pilot.figures.learning_curves import drawn_trials
from hpo_pilot.monitor.library import Library, View
from hpo_pilot.store.overview import values_reported

#: A figure is made again at the earliest after so many seconds, and so many times as long as it took.
_AGE, _REST = 3.0, 8.0

#: Figures kept, and peers drawn beside a search.
_KEPT, _PEERS = 200, 6

#: Those whose picture moves with the clock while jobs run, in steps of so many seconds.
_MOVING, _STEP = frozenset({"slots"}), 10

#: What is drawn of the values that trials reported.
_REPORTED = frozenset({"curves"})

#: Those that take seconds, mostly in code that lets other threads run: no other figure waits for one of them. They show
#: results alone, so that nothing else makes them anew.
_SLOW = frozenset({"importance"})


@dataclass(frozen=True)
class Drawn:
    """A kind of figure of a search, ready to be sent.

    Attributes:
        packed: JSON, gzipped.
        tag: changes with the picture; an ETag.
        since: when it was made, by the monotonic clock.
        seconds: how long that took.
        source: of what it was made.
    """

    packed: bytes
    tag: str
    since: float
    seconds: float
    source: str


class FigureDesk:
    """Makes figures. Safe to use from any thread; one is made at a time, and a slow one beside it, for pages' sake."""

    def __init__(self, library: Library) -> None:
        """Draws what `library` has."""
        self._library = library
        self._making, self._making_slow = threading.Lock(), threading.Lock()
        self._keeping = threading.Lock()
        self._drawn: OrderedDict[tuple[int, str], Drawn] = OrderedDict()

    def drawn(self, view: View, key: str) -> Drawn:
        """The figures of a kind; while much changes they may be some seconds old.

        Raises:
            InputError: there is no such kind for this search.
            TryAgainError: the store is out of reach.
        """
        if key not in {kind.key for kind in self.kinds(view)}:
            raise InputError(f"there is no figure {key!r} of search {view.record.name!r}")
        source = self._source(view, key)
        if (known := self._fresh(view, key, source)) is not None:
            return known
        with self._making_slow if key in _SLOW else self._making:
            # Whoever waited for the lock may find it made.
            return self._fresh(view, key, source) or self._made(view, key, source)

    @staticmethod
    def kinds(view: View) -> tuple[Kind, ...]:
        """The kinds of figures that make sense for a search."""
        return kinds(view.search)

    def _fresh(self, view: View, key: str, source: str) -> Drawn | None:
        with self._keeping:
            known = self._drawn.get((view.record.id, key))
        if known is None:
            return None
        age = time.monotonic() - known.since
        return known if known.source == source or age < max(_AGE, _REST * known.seconds) else None

    def _source(self, view: View, key: str) -> str:
        more = ""
        if key in _SLOW:
            return f"{view.record.uid}.{view.record.version}.{view.pulse.told}"
        if key in _MOVING and not view.record.state.is_over and view.pulse.running:
            more = str(int(time.time()) // _STEP)
        elif key in _REPORTED:
            more = str(values_reported(self._library.store.engine, view.record.id))
        return f"{view.tag}.{more}"

    def _made(self, view: View, key: str, source: str) -> Drawn:
        begun = time.monotonic()
        figures = [asdict(figure) for figure in build(key, self._subject(view, key))]
        content = json.dumps({"figures": figures}, allow_nan=False, separators=(",", ":")).encode()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        now = time.monotonic()
        drawn = Drawn(gzip.compress(content, 5, mtime=0), tag, now, now - begun, source)
        with self._keeping:
            self._drawn[view.record.id, key] = drawn
            self._drawn.move_to_end((view.record.id, key))
            while len(self._drawn) > _KEPT:
                self._drawn.popitem(last=False)
        return drawn

    def _subject(self, view: View, key: str) -> Subject:
        search, store = view.search, self._library.store
        trials = self._library.with_folds(view)
        reports = store.intermediate_values(view.record.id, drawn_trials(search, trials)) if key in _REPORTED else {}
        peers = self._peers(view) if key == "convergence" else []
        return Subject(search, trials, reports, peers, None if view.record.state.is_over else datetime.now(UTC))

    def _peers(self, view: View) -> list[Peer]:
        """The newest other searches that ask the same question."""
        others = [other for other in self._library.views() if other.record.id != view.record.id and other.standings]
        alike = [other for other in others if same_question(view.search, other.search)]
        return [Peer(other.record.name, other.search, other.trials) for other in alike[:_PEERS]]
