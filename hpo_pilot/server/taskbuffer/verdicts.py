"""What the runner says in a job's metadata of the points that the job ran: PanDA's own states know nothing of that."""

from __future__ import annotations

import json
from typing import Any

#: The runner's status of a point whose payload gave no figure of merit.
_FAILED = 1

#: Characters of a reason.
_MOST = 500


def members_of(metadata: str | None) -> list[dict[str, Any]]:
    """The verdict on each point; none where there is none, as for a payload of somebody else's."""
    if not metadata:
        return []
    try:
        ours = json.loads(metadata)["user_job_metadata"]["hpo_pilot"]
        return [one for one in ours.get("members", [ours]) if isinstance(one, dict)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def failure_of(metadata: str | None) -> str:
    """Why payloads of a job gave no figure of merit, in one line; empty: all did, or nobody says."""
    members = members_of(metadata)
    reasons = [
        (f"trial {one.get('trial')}, fold {one.get('fold')}: " if len(members) > 1 else "")
        + (" ".join(str(one.get("message") or "").split()) or "without a reason")
        for one in members
        if one.get("status") == _FAILED
    ]
    return "; ".join(reasons)[:_MOST]
