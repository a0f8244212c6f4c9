"""One whole number per node, kept so that all nodes are compared or changed at once."""

from __future__ import annotations

from collections.abc import Sequence


class Column:
    """How much of something each node has, bit by bit: set number b holds the nodes whose amount has bit b.

    A question or a change costs a few set operations per bit of the largest amount, for one node as for thousands,
    and however many different amounts there are (bit-sliced index: O'Neil & Quass, SIGMOD 1997).
    """

    def __init__(self, amounts: Sequence[int]) -> None:
        """The amounts, one per node; none may ever grow beyond the largest."""
        self._planes = [
            sum(1 << node for node, amount in enumerate(amounts) if amount >> bit & 1)
            for bit in range(max(amounts, default=0).bit_length())
        ]

    def at_least(self, amount: int, within: int) -> int:
        """Those of a set of nodes that have so much."""
        if amount <= 0:
            return within
        if amount.bit_length() > len(self._planes):
            return 0
        more, equal = 0, within
        for bit in range(len(self._planes) - 1, -1, -1):
            having = equal & self._planes[bit]
            if amount >> bit & 1:
                equal = having
            else:
                more |= having
                equal ^= having
            if not equal:
                break
        return more | equal

    def least(self, within: int) -> tuple[int, int]:
        """The least amount in a set of nodes that is not empty, and those of them that have just that."""
        amount = 0
        for bit in range(len(self._planes) - 1, -1, -1):
            if lacking := within & ~self._planes[bit]:
                within = lacking
            else:
                amount |= 1 << bit
        return amount, within

    def add(self, amount: int, nodes: int) -> None:
        """Gives each of a set of nodes so much more.

        Raises:
            ValueError: that is more than any node ever had.
        """
        planes, carry = list(self._planes), 0
        for bit, plane in enumerate(planes):
            given = nodes if amount >> bit & 1 else 0
            planes[bit] = plane ^ given ^ carry
            carry = plane & given | carry & (plane | given)
        if carry or amount >> len(planes):
            raise ValueError(f"{amount} given back, more than was taken")
        self._planes = planes

    def subtract(self, amount: int, nodes: int) -> None:
        """Takes so much of each of a set of nodes.

        Raises:
            ValueError: one of them has less.
        """
        planes, borrow = list(self._planes), 0
        for bit, plane in enumerate(planes):
            taken = nodes if amount >> bit & 1 else 0
            planes[bit] = plane ^ taken ^ borrow
            borrow = taken & borrow | ~plane & (taken | borrow)
        if borrow or (amount >> len(planes) and nodes):
            raise ValueError(f"{amount} taken, more than a node has")
        self._planes = planes
