"""The number by which programs of two versions know whether they understand each other.

Pilots and users' commands send it with each call. The server or service refuses callers whose number differs by more
than one: each side knows the calls of its own version and of the version before. Other programs
(Pilot 3, panda-client, scripts) send none and are not refused.
"""

from __future__ import annotations

#: Raised in a release whose calls or answers the release before does not understand; see CONTRIBUTING.md.
PROTOCOL = 1

#: The header that has it.
PROTOCOL_HEADER = "X-HPO-Pilot-Protocol"


def disagreement(stated: str, caller: str, server: str) -> str:
    """Returns why a caller is refused, and which side to upgrade; empty: they understand each other.

    Args:
        stated: the caller's header; empty: it has none.
        caller: the caller in the message.
        server: this program in the message.
    """
    if not stated:
        return ""
    number = int(stated) if stated.isdecimal() and len(stated) < 10 else -1
    if abs(number - PROTOCOL) <= 1:
        return ""
    older = caller if number < PROTOCOL else server
    return (
        f"{caller} has protocol {stated[:10]!r} and {server} has {PROTOCOL}; they may be at most one apart: upgrade "
        f"hpo-pilot of {older}"
    )
