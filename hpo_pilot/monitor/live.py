"""Server-sent events: what changes on a page, as soon as it does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.monitor.board_pieces import JOBS, PILOTS, BoardPieces
from hpo_pilot.monitor.newsroom import Newsroom
from hpo_pilot.monitor.pieces import Edition, Pieces

#: Connections in all, and of one user: a browser has few for each server, and pages that nobody looks at close theirs.
_MOST, _MOST_EACH = 300, 30

#: Seconds without news after which a sign of life is sent, and the session is looked at.
_QUIET = 15.0

#: Seconds between two looks at the store, and at the embedded server, whose first business are pilots.
_LOOK, _BOARD_LOOK = 0.25, 3.0

#: Milliseconds after which a browser connects again, and seconds that a store which is away is left alone.
_AGAIN, _AWAY = 1500, 2.0


class LiveDesk:
    """Tells those who look at a page what changes on it."""

    def __init__(self, pieces: Pieces, board: BoardPieces | None = None) -> None:
        """Tells of the changes of `pieces`, and of those of `board`."""
        self.pieces = pieces
        self._room: Newsroom[Edition] = Newsroom(pieces.look, _LOOK)
        self._board_room: Newsroom[Edition] = self._room if board is None else Newsroom(board.look, _BOARD_LOOK)
        self._watching: Counter[str] = Counter()

    def close(self) -> None:
        """Ends all connections, for the server ends."""
        self._room.close()
        self._board_room.close()

    def answer(self, request: Request, topic: str, who: str, is_good: Callable[[], bool]) -> Response:
        """The stream of a page's changes.

        Args:
            request: the browser's.
            topic: the search's name, or `pieces.ALL`, or one of `BoardPieces.look`.
            who: looks.
            is_good: whether that user's session still is; asked now and then.
        """
        if self._watching.total() >= _MOST or self._watching[who] >= _MOST_EACH:
            return JSONResponse({"error": "too many pages are open: close some"}, 503, {"Retry-After": "30"})
        if request.method == "HEAD":  # whose answer would never end
            return Response(media_type="text/event-stream")
        # Whoever left out rows has no use for their news.
        only = request.query_params.get("rows")
        rows = None if only is None else {f"s{number}" for number in only.split(",")[:200]}
        return StreamingResponse(
            self._stream(topic, who, is_good, rows),
            media_type="text/event-stream",
            # The last one is for proxies that would keep events until there are many.
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _stream(
        self, topic: str, who: str, is_good: Callable[[], bool], rows: set[str] | None
    ) -> AsyncIterator[str]:
        self._watching[who] += 1
        sent: dict[str, str] = {}
        seen: str | None = None
        room = self._board_room if topic.startswith((JOBS, PILOTS)) else self._room
        try:
            yield f"retry: {_AGAIN}\n\n"
            while not room.is_closed:
                try:
                    news = await room.next(topic, seen, _QUIET)
                except TryAgainError:
                    yield "event: away\ndata: {}\n\n"
                    seen = None
                    await room.pause(_AWAY)
                    continue
                except HpoPilotError:
                    break  # the search is not there any more
                if not is_good():
                    yield "event: ended\ndata: {}\n\n"
                    break
                if news.tag == seen:
                    yield ": nothing new\n\n"
                    continue
                seen = news.tag
                changed = {
                    name: str(html)
                    for name, html in news.content.html.items()
                    if sent.get(name) != html and (rows is None or name.partition("-")[0] in rows | {"f"})
                }
                sent |= changed
                data = {"html": changed, "figures": news.content.figures, "state": news.content.state}
                yield f"data: {json.dumps(data)}\n\n"
        finally:
            self._watching[who] -= 1
            self._watching += Counter()
