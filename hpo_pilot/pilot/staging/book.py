"""Which node has which copy."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

#: A node and the key of a source.
Pair = tuple[str, str]

_TRIES = 2  # after so many failures the shared original is used for good
_LOOK = 0.5  # seconds between looks at whether who waits is still wanted


class Book:
    """Copies that are there, and those on their way, each in the hands of one job. Any thread may ask."""

    def __init__(self) -> None:
        self._paths: dict[Pair, str] = {}
        self._on_their_way: set[Pair] = set()
        self._failures: Counter[Pair] = Counter()
        self._changed = threading.Condition()

    def take(self, pairs: Iterable[Pair]) -> set[Pair]:
        """Those of the pairs that the caller is to copy now, and to `settle`; others are there, come, or never will.

        Who takes some holds none yet, and copies its own before it waits for others: so nobody waits in a circle.
        """
        with self._changed:
            mine = {
                pair
                for pair in pairs
                if pair not in self._paths and pair not in self._on_their_way and self._failures[pair] < _TRIES
            }
            self._on_their_way |= mine
            return mine

    def settle(self, pairs: Collection[Pair], paths: Mapping[Pair, str], hopeless: Collection[Pair] = ()) -> None:
        """What became of pairs that were taken.

        Args:
            pairs: those that were taken.
            paths: of the copies that are there.
            hopeless: that shall not be tried again.
        """
        with self._changed:
            self._on_their_way -= set(pairs)
            for pair in pairs:
                if pair in paths:
                    self._paths[pair] = paths[pair]
                else:
                    self._failures[pair] += _TRIES if pair in hopeless else 1
            self._changed.notify_all()

    def wait(self, pairs: Collection[Pair], is_over: Callable[[], bool]) -> None:
        """Waits until none of the pairs is on its way, or nobody wants them any more."""
        with self._changed:
            while not self._on_their_way.isdisjoint(pairs) and not is_over():
                self._changed.wait(_LOOK)

    def paths(self, nodes: Collection[str], key: str) -> set[str]:
        """Where these nodes have their copies; nothing, if one has none."""
        with self._changed:
            found = [self._paths.get((node, key), "") for node in nodes]
        return set(found) if all(found) else set()

    def nodes(self) -> set[str]:
        """Those that have a copy, or may have begun one."""
        with self._changed:
            return {node for node, _ in [*self._paths, *self._failures, *self._on_their_way]}
