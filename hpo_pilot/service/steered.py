"""Whether anything steers a search, why nothing does, and the commands that would."""

from __future__ import annotations

import os
from pathlib import Path

from hpo_pilot.advice import command
from hpo_pilot.store import EMBEDDED, SearchRecord
from hpo_pilot.store.lease import Holder


def is_steered(record: SearchRecord, holder: Holder | None) -> bool | None:
    """Whether the holder of the store's lease steers a search; None: the search is over, so that nothing has to."""
    if record.state.is_over:
        return None
    return holder is not None and holder.steers(record.id, record.server)


def why_not(record: SearchRecord, holder: Holder | None) -> str:
    """Why nothing steers a search, in a sentence; empty where something does, or it is over."""
    if is_steered(record, holder) is not False:
        return ""
    if holder is None:
        reason = "nothing steers it now"
    elif holder.steers(record.id, None):
        reason = (
            f"nothing steers it now: `hpo-pilot {holder.mode}`, which has this store, takes tasks to "
            f"{called(str(holder.server))}, and its tasks are at {called(str(record.server))}"
        )
    else:
        reason = f"nothing steers it now: `hpo-pilot {holder.mode}`, which has this store, steers other searches only"
    return f"{reason}; no trial starts and no result is collected"


def steering_commands(record: SearchRecord) -> str:
    """The commands that would steer a search, in a sentence."""
    words = ["serve"]
    if record.server not in (None, EMBEDDED) or (record.server == EMBEDDED and os.environ.get("PANDA_URL_SSL")):
        words += ["--server", str(record.server)]
    serve = f"{command(*words)} steers it and every other search of its store"
    if not Path(record.source).is_file():  # it was submitted on another machine, or the file was moved
        return serve
    return f"{command('run', record.source)} goes on with it; {serve}"


def called(server: str) -> str:
    """A PanDA server in a sentence."""
    return "the embedded PanDA server" if server == EMBEDDED else f"the PanDA server {server}"
