"""Errors as the API answers them: RFC 9457 documents, with our own code and every mistake of a search file."""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from hpo_pilot.errors import HpoPilotError, InputError, SearchFileError, TryAgainError
from hpo_pilot.report.documents import ProblemDocument
from hpo_pilot.steering.operations import ChangedMeanwhileError
from hpo_pilot.store import StoreAwayError, UnknownSearchError
from hpo_pilot.web.operations import NotYoursError

MEDIA_TYPE = "application/problem+json"

#: Seconds after which a call that met trouble may come again.
_RETRY_AFTER = "2"

log = logging.getLogger(__name__)


class ProblemAnswer(BaseModel):
    """What every error is answered with."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:hpo-pilot:problem:not_found",
                    "title": "Not Found",
                    "status": 404,
                    "code": "not_found",
                    "message": "no search 'digit': there are digits-mlp",
                    "problems": [],
                }
            ]
        }
    )

    type: str = Field(description="A name of the kind of error.")
    title: str = Field(description="The same in a few words.")
    status: int = Field(description="The HTTP status.")
    code: str = Field(
        description="input, unauthorized, forbidden, not_found, conflict, too_large, try_again (the same call may "
        "succeed later) or give_up."
    )
    message: str = Field(description="What is wrong, and what to do.")
    problems: list[ProblemDocument] = Field(description="The mistakes of a search file, each with its place.")


class ApiError(Exception):
    """An error of the API itself."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


_TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    422: "Unprocessable Content",
    500: "Internal Server Error",
    503: "Service Unavailable",
    507: "Insufficient Storage",
}


def problem_response(status: int, code: str, message: str, problems: list[dict[str, Any]] | None = None) -> Response:
    """An error's answer."""
    document = {
        "type": f"urn:hpo-pilot:problem:{code}",
        "title": _TITLES.get(status, "Error"),
        "status": status,
        "code": code,
        "message": message,
        "problems": problems or [],
    }
    headers = {}
    if code == "try_again":
        headers["Retry-After"] = _RETRY_AFTER
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="hpo-pilot"'
    return Response(json.dumps(document, ensure_ascii=True), status, headers, MEDIA_TYPE)


def add_handlers(app: FastAPI) -> None:
    """Makes `app` answer every error so."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HpoPilotError, _known_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _disconnected)
    app.add_exception_handler(Exception, _internal_error)


def _api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return problem_response(error.status, error.code, str(error))


def _known_error(_request: Request, error: Exception) -> Response:
    if isinstance(error, SearchFileError):
        return problem_response(422, "input", str(error), [vars(problem) for problem in error.problems])
    if isinstance(error, UnknownSearchError):
        return problem_response(404, "not_found", f"no search {error.identity!r}: {error.there}")
    if isinstance(error, NotYoursError):
        return problem_response(403, "forbidden", str(error))
    if isinstance(error, InputError):
        return problem_response(422, "input", str(error))
    if isinstance(error, StoreAwayError):
        log.warning("%s", error)  # it says where the store is, which is no user's business
        return problem_response(503, "try_again", "the service's store is out of reach; nothing is lost: try again")
    if isinstance(error, ChangedMeanwhileError):
        return problem_response(409, "conflict", str(error))
    if isinstance(error, TryAgainError):
        log.warning("%s", error)
        return problem_response(503, "try_again", str(error))
    log.error("%s", error)
    return problem_response(500, "give_up", str(error))


def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
    return problem_response(422, "input", wrong)


def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {401: "unauthorized", 403: "forbidden", 404: "not_found", 413: "too_large"}
    answer = problem_response(error.status_code, codes.get(error.status_code, "input"), str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


def _disconnected(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody sees it


def _internal_error(request: Request, error: Exception) -> Response:
    log.exception("%s %r", request.method, request.scope["path"], exc_info=error)
    return problem_response(500, "give_up", "internal error; please report it with the service's log")
