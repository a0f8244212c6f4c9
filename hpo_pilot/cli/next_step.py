"""What to do next with a search, in one sentence."""

from __future__ import annotations

from hpo_pilot.client.documents import SearchDocument


def next_step(search: SearchDocument, runner: str) -> str:
    """A sentence with a command; empty where there is nothing to do but to wait.

    Args:
        search: as `status` or `list` have it.
        runner: what runs the searches.
    """
    name, state, failed = search["name"], search["state"], search["trials"].get("failed", 0)
    has_result = search["trials"].get("finished", 0) > 0
    if state == "submitted":
        return f"it waits for {runner} to take it up"
    if state == "paused":
        return f"`hpo-pilot resume {name}` lets it go on"
    if state == "failed":
        return f"`hpo-pilot trials {name}` shows why; mend it, then `hpo-pilot resume {name} --new-payload`"
    if state in ("done", "stopped") and has_result:
        return f"`hpo-pilot best {name}`, `hpo-pilot report {name}`; `hpo-pilot extend {name} --trials +N` goes on"
    if state == "stopped":
        return f"`hpo-pilot resume {name}` lets it go on"
    if failed:
        return f"`hpo-pilot trials {name} --log` says why trials failed; `hpo-pilot retry {name}` tries them again"
    return ""
