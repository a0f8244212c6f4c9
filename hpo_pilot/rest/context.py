"""What the handlers of calls work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import Depends, Path, Request

from hpo_pilot.client.local_client import LocalClient
from hpo_pilot.client.ownership import User
from hpo_pilot.monitor.newsroom import Newsroom
from hpo_pilot.rest.uploads import Uploads
from hpo_pilot.server.access.auth import Caller
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import Store


@dataclass(frozen=True)
class Context:
    """The parts of a running API.

    Attributes:
        store: the searches.
        workdir: where sandboxes go.
        uploads: payloads that were sent.
        news: what watchers wait for.
    """

    store: Store
    workdir: WorkDir
    uploads: Uploads
    news: Newsroom[bytes]


def context_of(request: Request) -> Context:
    """The API that answers this call."""
    return cast(Context, request.app.state.context)


def caller_of(request: Request) -> Caller:
    """Who calls; the guard has made sure of it."""
    return cast(Caller, request.state.caller)


def client_of(request: Request) -> LocalClient:
    """The store, for whoever calls."""
    context, caller = context_of(request), caller_of(request)
    user = User.named(caller.name, changes_all=caller.is_operator)
    return LocalClient(context.workdir.root, user=user, opened=context.store)


Client = Annotated[LocalClient, Depends(client_of)]
Parts = Annotated[Context, Depends(context_of)]
Identity = Annotated[str, Path(description="The search's name or number.", max_length=100, examples=["digits-mlp"])]


def answers(example: Any = None, *more: int, media_type: str = "application/json") -> dict[int | str, dict[str, Any]]:
    """A call's answers for its description: an example of the good one, and the errors that it may meet.

    Args:
        example: of the good answer.
        more: statuses of errors beside those that any call may meet.
        media_type: of the good answer.
    """
    reasons = {
        401: "No token, or one that is not valid.",
        403: "A pilot's token, or another's search.",
        404: "There is no such search.",
        409: "It has changed meanwhile: look, then repeat.",
        413: "It is too large.",
        422: "Something about the call is wrong; the message says what.",
        503: "Not now: the same call may succeed later.",
    }
    wrong = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemAnswer"}}}
    found: dict[int | str, dict[str, Any]] = {
        status: {"description": reasons[status], "content": wrong} for status in sorted({401, 403, 422, 503, *more})
    }
    if example is not None:
        found[200] = {"content": {media_type: {"example": example}}}
    return found
