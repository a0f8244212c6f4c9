"""Watching a search on a terminal until it is over."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.live import Live

from hpo_pilot.cli.dashboard import dashboard
from hpo_pilot.cli.next_step import next_step
from hpo_pilot.client.documents import OVER_SEARCHES

if TYPE_CHECKING:
    from rich.console import Console

    from hpo_pilot.client.documents import StatusDocument
    from hpo_pilot.client.search_client import SearchClient

#: How often it is looked at, and how long a store or service that is away is waited for, in seconds.
_LOOK = 1.0
_PATIENCE = 120.0

#: Between two looks the screen follows its size.
_REDRAW = 0.25


def can_watch(console: Console) -> bool:
    """Whether a screen can be drawn over and over: on a terminal that knows how, not in a pipe."""
    return console.is_terminal and not console.is_dumb_terminal


def watch_search(client: SearchClient, identity: str, console: Console) -> None:
    """Shows a search on a screen of its own, which is taken away at the end.

    Raises:
        InputError: there is no such search.
        TryAgainError: Ctrl-C was pressed, or the search cannot be looked at for two minutes.
    """
    from hpo_pilot.errors import TryAgainError

    search = client.status(identity)
    try:
        with _interrupts(), Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False) as live:
            _show(client, search, live)
    except KeyboardInterrupt:
        raise TryAgainError(f"no longer watching search {search['name']!r}; it goes on") from None


def _show(client: SearchClient, search: StatusDocument, live: Live) -> None:
    from hpo_pilot.errors import TryAgainError

    identity, seen, trouble = search["name"], time.monotonic(), ""
    step = next_step(client, search)
    while search["state"] not in OVER_SEARCHES:
        until = time.monotonic() + _LOOK
        while (left := until - time.monotonic()) > 0:
            width = live.console.width
            screen = dashboard(search, step, width, now=datetime.now().astimezone(), trouble=trouble)
            live.update(screen, refresh=True)
            time.sleep(min(_REDRAW, left))
        try:
            search, trouble, seen = client.status(identity), "", time.monotonic()
            step = next_step(client, search)
        except TryAgainError as error:
            trouble = str(error)
            if time.monotonic() - seen > _PATIENCE:
                raise


@contextmanager
def _interrupts() -> Iterator[None]:
    """Signals that end the process end the block first, so that the terminal is left in order."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    old: dict[int, Any] = {signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler)}
    for ending in (signal.SIGTERM, signal.SIGHUP):
        old[ending] = signal.signal(ending, end)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
