"""Calls about the service itself."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from hpo_pilot import __version__
from hpo_pilot.rest import examples
from hpo_pilot.rest.answer import json_answer
from hpo_pilot.rest.context import Parts, answers, caller_of
from hpo_pilot.store.lease import holder

router = APIRouter(tags=["service"])


class HealthDocument(TypedDict):
    """That the API answers."""

    status: str


class UserDocument(TypedDict):
    """Whose the token is, and what it may do: `user` or `operator`."""

    name: str
    role: str


class ServiceDocument(TypedDict):
    """The service; `steering` says whether anything runs its searches, `upload_limit` is in bytes."""

    version: str
    user: UserDocument
    steering: bool
    searches: int
    upload_limit: int


@router.get(
    "/health",
    response_model=HealthDocument,
    responses={200: {"content": {"application/json": {"example": {"status": "ok"}}}}},
    openapi_extra={"security": []},
)
async def health(request: Request) -> Response:
    """Whether the API answers; needs no token and says nothing else."""
    return json_answer(request, {"status": "ok"})


@router.get("/service", response_model=ServiceDocument, responses=answers(examples.SERVICE))
def service(request: Request, parts: Parts) -> Response:
    """What serves here, and who you are to it."""
    caller = caller_of(request)
    return json_answer(
        request,
        {
            "version": __version__,
            "user": {"name": caller.name, "role": caller.role.value},
            "steering": holder(parts.store.engine) is not None,
            "searches": len(parts.store.searches()),
            "upload_limit": parts.uploads.limit,
        },
    )
