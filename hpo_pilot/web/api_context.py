"""Shared by the handlers of the REST API: the context of a call, progress and examples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import Depends, Path, Request

from hpo_pilot.report.documents import ProgressDocument
from hpo_pilot.server.tokens import Caller
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import Store
from hpo_pilot.web.live import ChangeWatcher, Snapshot
from hpo_pilot.web.local_client import LocalClient
from hpo_pilot.web.operations import User
from hpo_pilot.web.uploads import Uploads


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
    news: ChangeWatcher[bytes]


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


def progress_watcher(look: Callable[[str], ProgressDocument]) -> ChangeWatcher[bytes]:
    """Tells how far searches are, as a `ProgressDocument` in JSON with its ETag; `look` asks the store."""

    def now(identity: str) -> Snapshot[bytes]:
        content = json.dumps(look(identity), allow_nan=False).encode()
        return Snapshot(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"')

    return ChangeWatcher(now)


TRIAL_EXAMPLE: dict[str, Any] = {
    "number": 26,
    "generation": 5,
    "state": "finished",
    "point": {"learning_rate": 0.0045, "layers": 2, "solver": "adam"},
    "value": 0.0707,
    "std": 0.013,
    "folds": [
        {
            "fold": 0,
            "value": 0.0707,
            "error": None,
            "log_tail": None,
            "attempt": 1,
            "seconds": 2.1,
            "metrics": {"accuracy": 0.98},
            "panda_id": 77,
            "node": "wn17",
            "started": "2026-01-05T09:30:01.250+00:00",
            "ended": "2026-01-05T09:30:03.350+00:00",
        }
    ],
    "error": None,
    "stopped": None,
    "seed": 1234567,
    "confirms": None,
    "retries": None,
    "told": 24,
    "submitted": "2026-01-05T09:30:00.000+00:00",
    "started": "2026-01-05T09:30:01.250+00:00",
    "ended": "2026-01-05T09:30:03.350+00:00",
    "cost": {
        "job_seconds": 6.1,
        "gpu_hours": 0.0,
        "core_hours": 0.0016944,
        "energy_kwh": None,
        "energy_source": None,
    },
}

INTERMEDIATE: dict[str, Any] = {"number": 26, "folds": [{"fold": 0, "values": [[1, 0.31], [2, 0.12]]}]}

SEARCH: dict[str, Any] = {
    "id": 1,
    "name": "digits-mlp",
    "state": "running",
    "message": "",
    "owner": "alice",
    "server": None,
    "family": None,
    "objective": {"metric": "loss", "goal": "minimize"},
    "trials": {"finished": 40, "running": 4},
    "budget": {"trials": 48, "parallel": 4, "queued": "auto", "hours": None, "gpu_hours": None, "failures": 10},
    "best": TRIAL_EXAMPLE,
    "created": "2026-01-05T09:29:58.000+00:00",
    "started": "2026-01-05T09:29:59.000+00:00",
    "ended": None,
}

ADDED: dict[str, Any] = {**SEARCH, "budget": {**SEARCH["budget"], "trials": 49}, "added": 1}

STATUS: dict[str, Any] = {
    **SEARCH,
    "job_seconds": 301.5,
    "gpu_hours": 0.0,
    "cost": {
        "job_seconds": 301.5,
        "gpu_hours": 0.0,
        "core_hours": 0.08375,
        "energy_kwh": None,
        "energy_source": None,
    },
    "gain": {"first": 0.41, "best": 0.0707, "gain": 0.3393, "per_gpu_hour": None, "per_core_hour": 4.0513},
    "wishes": [
        {
            "point": {"learning_rate": 0.01, "layers": 1, "solver": "sgd"},
            "retries": None,
            "who": "alice",
            "created": "2026-01-05T09:41:00.000+00:00",
        }
    ],
    "source": "/home/alice/scan/search.yaml",
    "definition": {"search": "digits-mlp", "space": {"learning_rate": {"type": "real", "low": 1e-4, "high": 0.1}}},
}

PROGRESS: dict[str, Any] = {
    "id": 1,
    "name": "digits-mlp",
    "state": "running",
    "message": "",
    "metric": "loss",
    "trials": {"finished": 40, "running": 4},
    "over": 12,
    "total": 48,
    "best": {"number": 26, "value": 0.0707, "std": 0.013},
}

EVENT: dict[str, Any] = {"time": "2026-01-05T09:29:58.000+00:00", "who": "alice", "what": "submitted"}

PROBLEM: dict[str, Any] = {
    "file": "search.yaml",
    "line": 3,
    "column": 33,
    "path": "space.learning_rate.low",
    "message": "must be a number, not 'x'",
    "suggestion": "",
}

EXAMINATION: dict[str, Any] = {
    "valid": False,
    "problems": [PROBLEM],
    "notes": [],
    "search": None,
    "python": None,
    "named_files": {
        "files": "my_training",
        "command": "python train.py",
        "files_place": {**PROBLEM, "path": "payload.files", "message": ""},
        "command_place": {**PROBLEM, "path": "payload.command", "message": ""},
        "results": [{"source": "before.json", "place": {**PROBLEM, "path": "warm_start[0]", "message": ""}}],
    },
}

SERVICE: dict[str, Any] = {
    "version": "0.1.0",
    "user": {"name": "alice", "role": "user"},
    "steering": True,
    "searches": 3,
    "upload_limit": 805306368,
}

SEARCH_FILE = """search: my-search
space:
  learning_rate: {type: real, low: 1e-4, high: 1e-1, scale: log}
payload: {files: my_training, command: python train.py}
"""
