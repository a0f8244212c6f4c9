"""The queue of the embedded server's local pilot, by itself: commands name it that start neither of them."""

from __future__ import annotations

#: Of tasks that name none.
DEFAULT_QUEUE = "LOCAL"
