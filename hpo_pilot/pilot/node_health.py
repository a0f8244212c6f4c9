"""Which nodes launchers do not get along with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

_NAMED = 2  # failed launches in a row, with the node's name in the launcher's word
_UNNAMED = 3  # the same without: it may be another of the job's nodes, so launches must work elsewhere meanwhile


class NodeHealth:
    """Counts failed launches by node. Used under its caller's lock."""

    def __init__(self) -> None:
        self._named: Counter[str] = Counter()
        self._unnamed: Counter[str] = Counter()
        self._worked_at: dict[str, int] = {}  # nodes, by the number of their last launch that worked
        self._failed_from: dict[str, int] = {}  # the number of the first launch of those that failed in a row
        self._launches = 0

    def worked(self, nodes: Collection[str]) -> None:
        """A job was started there."""
        self._launches += 1
        for node in nodes:
            self._worked_at[node] = self._launches
            self._failed_from.pop(node, None)
            del self._named[node], self._unnamed[node]

    def failed(self, nodes: Collection[str], named: Collection[str]) -> list[str]:
        """A launch failed.

        Args:
            nodes: of the job.
            named: those that the launcher blames.

        Returns:
            Nodes of no use.
        """
        self._launches += 1
        for node in named or nodes:
            (self._named if named else self._unnamed)[node] += 1
            self._failed_from.setdefault(node, self._launches)
        return [node for node in named or nodes if self._is_bad(node)]

    def _is_bad(self, node: str) -> bool:
        if self._named[node] >= _NAMED:
            return True
        since = self._failed_from[node]
        elsewhere = any(at > since for other, at in self._worked_at.items() if other != node)
        return elsewhere and self._unnamed[node] >= _UNNAMED
