"""The pieces of the pages of jobs and pilots that change while one looks: one look at the server for all who look."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlencode

from markupsafe import Markup

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobState
from hpo_pilot.monitor.newsroom import News
from hpo_pilot.monitor.pieces import Edition
from hpo_pilot.monitor.rendering import fragments
from hpo_pilot.panda.board import JobBoard, NoServerError

#: How the topics of these pages begin; no search has a name with a slash.
JOBS, PILOTS = "/jobs?", "/pilots?"

#: Jobs of a page, and characters of a filter.
_JOBS, _LONGEST = 100, 100

#: What a page holds: parts of it are shown while the server is there, and while there is something for them.
AWAY, THERE = "away", "there"


@dataclass(frozen=True)
class JobFilter:
    """Which jobs are wanted.

    Attributes:
        search: of that search alone; empty: of all.
        state: in that state alone; empty: in any.
        queue: at that queue alone; empty: at any.
        before: older ones than that job; None: the newest.
    """

    search: str = ""
    state: str = ""
    queue: str = ""
    before: int | None = None

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> JobFilter:
        """The filter that an address names; what makes no sense in it is left out."""
        search, state, queue = (query.get(name, "")[:_LONGEST] for name in ("search", "state", "queue"))
        before = query.get("before", "")
        is_number = before.isascii() and before.isdigit() and len(before) < 19
        return cls(search, state if state in list(JobState) else "", queue, int(before) if is_number else None)

    @property
    def said(self) -> dict[str, str]:
        """As an address has it, but for where it begins."""
        given = {"search": self.search, "state": self.state, "queue": self.queue}
        return {name: value for name, value in given.items() if value}

    @property
    def query(self) -> str:
        """As an address has it."""
        return urlencode(self.said if self.before is None else {**self.said, "before": self.before})


class BoardPieces:
    """Makes the pieces. Safe to use from any thread."""

    def __init__(self, board: JobBoard) -> None:
        """Shows what `board` tells."""
        self._board = board

    def look(self, topic: str) -> News[Edition]:
        """The pieces of the page of jobs with a filter, `JOBS` and the filter's query, or of that of `PILOTS`."""
        if topic == PILOTS:
            edition = self.pilots()
        else:
            edition = self.jobs(JobFilter.of_query(dict(parse_qsl(topic.removeprefix(JOBS)))))
        texts = edition.state + "".join(edition.html.values())
        return News(edition, hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest())

    def jobs(self, wanted: JobFilter) -> Edition:
        """The page of jobs."""
        templates = fragments("board.j2")
        try:
            found = self._board.jobs(
                search=wanted.search or None,
                states=[JobState(wanted.state)] if wanted.state else [],
                queue=wanted.queue or None,
                limit=_JOBS,
                before=wanted.before,
            )
        except TryAgainError as error:
            return _away(error, ("f-counts", "f-jobs", "f-older"))
        counts = [(state.value, found.counts[state]) for state in JobState if found.counts.get(state)]
        older = JobFilter(wanted.search, wanted.state, wanted.queue, found.before) if found.before is not None else None
        html: dict[str, Markup] = {
            "f-away": Markup(""),
            "f-counts": templates.counts(counts),
            "f-jobs": templates.jobs(found.jobs, datetime.now(UTC)),
            "f-older": templates.older(older),
        }
        return Edition(html, "", f"{THERE} {'jobs' if found.jobs else 'no-jobs'}")

    def pilots(self) -> Edition:
        """The page of pilots and queues."""
        templates = fragments("board.j2")
        try:
            pilots, queues = self._board.pilots(), self._board.queues()
        except TryAgainError as error:
            return _away(error, ("f-pilots", "f-queues"))
        html: dict[str, Markup] = {
            "f-away": Markup(""),
            "f-pilots": templates.pilots(pilots, datetime.now(UTC)),
            "f-queues": templates.queues(queues),
        }
        words = f"{'pilots' if pilots else 'no-pilots'} {'queues' if queues else 'no-queues'}"
        return Edition(html, "", f"{THERE} {words}")


def _away(error: TryAgainError, others: tuple[str, ...]) -> Edition:
    """What is shown while the server does not tell: nothing of it is left on the page as if it were so now."""
    empty = dict.fromkeys(others, Markup(""))
    return Edition({"f-away": fragments("board.j2").away(away_text(error)), **empty}, "", AWAY)


def away_text(error: TryAgainError) -> str:
    """Why nothing is shown, for people who are not to know this machine's paths."""
    if isinstance(error, NoServerError):
        return "No embedded PanDA server runs here at the moment."
    return "The embedded PanDA server does not answer at the moment."
