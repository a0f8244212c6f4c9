"""What users are told of an error that should not have been."""

from __future__ import annotations

#: Longer texts of errors are cut: messages are shown in tables.
_LONGEST = 400


def internal_error(error: Exception) -> str:
    """An error that is none of ours in one line; its traceback is for the log."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return f"internal error: {text.rstrip(': ')}: this is a bug of hpo-pilot: please report it with the service's log"
