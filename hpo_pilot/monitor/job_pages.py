"""The pages of jobs, pilots and queues: what the embedded PanDA server tells of them."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobState
from hpo_pilot.monitor.board_pieces import JobFilter, away_text
from hpo_pilot.monitor.context import page, parts_of
from hpo_pilot.monitor.svg import curves
from hpo_pilot.panda.board import NoJobError

#: Names of searches offered where one may be typed.
_NAMES = 200


def jobs(request: Request) -> Response:
    """Jobs, newest first."""
    parts, wanted = parts_of(request), JobFilter.of_query(request.query_params)
    edition = parts.board_pieces.jobs(wanted)
    values = {
        "html": edition.html,
        "state": edition.state,
        "filter": wanted,
        "names": [view.record.name for view in parts.library.views()][:_NAMES],
        "states": list(JobState),
    }
    return page(request, "jobs.j2", values)


def job(request: Request) -> Response:
    """One job."""
    parts, number = parts_of(request), request.path_params["number"]
    try:
        found = parts.board.job(number)
        log = parts.board.log(number) if found.job.has_log else None
    except NoJobError:
        raise HTTPException(404, f"the embedded PanDA server has no job {number}: it has forgotten it") from None
    except TryAgainError as error:
        return page(request, "error.j2", {"title": f"Job {number}", "message": away_text(error), "back": ""}, 503)
    values = {
        "found": found,
        "log": log.text if log else "",
        "whole": log is None or log.is_whole,
        "curve": curves({0: found.progress}, "the reported value"),
        "now": datetime.now(UTC),
    }
    return page(request, "job.j2", values)


def job_log(request: Request) -> Response:
    """The whole log of a job, as a file."""
    number = request.path_params["number"]
    try:
        blocks = parts_of(request).board.log_stream(number)
    except NoJobError:
        raise HTTPException(404, f"the embedded PanDA server has no job {number}: it has forgotten it") from None
    headers = {"Content-Disposition": f'attachment; filename="job{number}.log"'}
    return StreamingResponse(blocks, 200, headers, "text/plain; charset=utf-8")


def pilots(request: Request) -> Response:
    """Pilots and queues."""
    parts = parts_of(request)
    edition = parts.board_pieces.pilots()
    return page(request, "pilots.j2", {"html": edition.html, "state": edition.state, "server": parts.board.url})
