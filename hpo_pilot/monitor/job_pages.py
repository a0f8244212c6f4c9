"""The pages of jobs, pilots and queues: what the embedded PanDA server tells of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hpo_pilot.errors import TryAgainError
from hpo_pilot.jobs import JobState
from hpo_pilot.monitor.context import page, parts_of
from hpo_pilot.monitor.svg import curves
from hpo_pilot.panda.board import NoJobError, NoServerError

#: Jobs of a page.
_JOBS = 100


def jobs(request: Request) -> Response:
    """Jobs, newest first."""
    parts, asked = parts_of(request), request.query_params
    given = {name: asked.get(name, "")[:100] for name in ("search", "state", "queue")}
    states = [JobState(given["state"])] if given["state"] in list(JobState) else []
    before = asked.get("before", "")
    values: dict[str, Any] = {"away": "", "jobs": (), "counts": (), "older": "", "now": datetime.now(UTC)}
    try:
        found = parts.board.jobs(
            search=given["search"] or None,
            states=states,
            queue=given["queue"] or None,
            limit=_JOBS,
            before=int(before) if before.isascii() and before.isdigit() and len(before) < 19 else None,
        )
    except TryAgainError as error:
        values["away"] = _away(error)
    else:
        said = {name: value for name, value in given.items() if value}
        values |= {
            "jobs": found.jobs,
            "counts": [(state.value, found.counts[state]) for state in JobState if found.counts.get(state)],
            "older": f"/jobs?{urlencode({**said, 'before': found.before})}" if found.before is not None else "",
        }
    names = [view.record.name for view in parts.library.views()][:200]
    values |= {"filter": given, "filtered": any(given.values()) or before, "names": names, "states": list(JobState)}
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
        return page(request, "error.j2", {"title": f"Job {number}", "message": _away(error), "back": ""}, 503)
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
    board = parts_of(request).board
    values: dict[str, Any] = {"away": "", "pilots": (), "queues": (), "server": board.url, "now": datetime.now(UTC)}
    try:
        values |= {"pilots": board.pilots(), "queues": board.queues()}
    except TryAgainError as error:
        values["away"] = _away(error)
    return page(request, "pilots.j2", values)


def _away(error: TryAgainError) -> str:
    """Why nothing is shown, for people who are not to know this machine's paths."""
    if isinstance(error, NoServerError):
        return "No embedded PanDA server runs here at the moment."
    return "The embedded PanDA server does not answer at the moment; the page may be loaded again."
