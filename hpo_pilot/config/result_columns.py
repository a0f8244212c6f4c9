"""What the columns of a results table are called, where a parameter has the name of another column."""

from __future__ import annotations

from collections.abc import Collection

#: Before the name of a parameter that another column has.
_PREFIX = "point."


def parameter_column(name: str, others: Collection[str]) -> str:
    """The column of a parameter in a table that also has the columns `others`: `value` becomes `point.value`."""
    return _PREFIX + name if name in others or name.startswith(_PREFIX) else name


def column_of(name: str, head: Collection[str], others: Collection[str]) -> str | None:
    """The column that has a parameter's values; None where there is none.

    Args:
        name: the parameter's.
        head: all columns of the table.
        others: those of them that are read as something else.
    """
    if _PREFIX + name in head:
        return _PREFIX + name
    return name if name in head and name not in others else None
