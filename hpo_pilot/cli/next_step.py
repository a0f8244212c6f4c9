"""What to do next with a search, in one sentence."""

from __future__ import annotations

from hpo_pilot.cli.show import advised
from hpo_pilot.client.documents import OVER_SEARCHES, SearchDocument, is_unsteered
from hpo_pilot.client.search_client import SearchClient


def next_step(client: SearchClient, search: SearchDocument) -> str:
    """A sentence with a command; empty where there is nothing to do but to wait.

    Args:
        client: where the search is.
        search: as `status` or `list` have it.
    """
    return advised(_next_step(client, search))


def goes_on(client: SearchClient, search: SearchDocument) -> str:
    """What happens by itself now that a search was changed, or what has to be done."""
    name, state = search["name"], search["state"]
    if state == "paused":
        text = f"it is paused: `hpo-pilot resume {name}` lets it go on"
    elif state in OVER_SEARCHES:
        text = f"it is {state}: `hpo-pilot extend {name} --trials +N` lets it go on"
    elif is_unsteered(search):
        text = f"nothing steers it now: {client.how_to_steer(name)}"
    else:
        text = f"`hpo-pilot status {name} --watch` shows how it goes"
    return advised(text)


def _next_step(client: SearchClient, search: SearchDocument) -> str:
    name, state, failed = search["name"], search["state"], search["trials"].get("failed", 0)
    has_result = search["trials"].get("finished", 0) > 0
    if is_unsteered(search):
        first = f"`hpo-pilot resume {name}`, then " if state == "paused" else ""
        return first + client.how_to_steer(name)
    if state == "submitted":
        return f"it begins in a moment; `hpo-pilot status {name} --watch` shows how it goes"
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
