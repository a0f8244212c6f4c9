"""Trials of searches without payload, for clients: at the embedded server of the work folder, where they are jobs.

`hpo_pilot.server.asking` has the server's side, `hpo_pilot.operations.asking` the client's.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import requests
from requests.adapters import HTTPAdapter

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.jobs import MOST_LEASE
from hpo_pilot.operations.here import Here
from hpo_pilot.panda.server import PandaServer, read_address
from hpo_pilot.report.documents import AskedDocument, ToldDocument
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.search.payload import NO_COMMAND
from hpo_pilot.steering.submissions import trial_seed
from hpo_pilot.store import EMBEDDED, SearchRecord, SearchState
from hpo_pilot.store.queries import open_job

#: Seconds to connect to the embedded server, for its answer beside the wait, and between looks at a paused search.
_CONNECT, _ANSWER, _PAUSE = 5.0, 30.0, 1.0

_MOST_NUMBER, _MOST_STEP = 2**31 - 1, 2**53


def asked_search(here: Here, identity: str) -> SearchRecord:
    """Returns a search without payload whose trials the user may change.

    Raises:
        InputError: the search has a payload, or its tasks are at another server.
    """
    record = here.search(identity)
    here.user.check(record.name, record.owner)
    if record.definition["payload"]["command"] != NO_COMMAND:
        raise InputError(
            f"search {record.name!r} has a payload, so pilots run its trials: `payload: none` is for clients"
        )
    if record.server not in (None, EMBEDDED):
        raise InputError(f"search {record.name!r} is at {record.server}: only the embedded server serves clients")
    return record


def checked_ask(lease: float, node: str, key: str) -> dict[str, Any]:
    """Returns a client's part of `ask_trials`.

    Raises:
        InputError: the lease is too short or too long.
    """
    if not 1 <= lease <= MOST_LEASE:
        raise InputError(f"the lease must be from 1 to {MOST_LEASE:.0f} seconds, not {lease:g}")
    return {"key": key, "lease": lease, "node": node[:128]}


def ask_trials(here: Here, identity: str, asks: Sequence[Mapping[str, Any]], wait: float) -> list[AskedDocument]:
    """Asks for a trial for each of several clients at once.

    Args:
        here: the place, with the user.
        identity: the search.
        asks: `checked_ask` of each client; the same key gets the same trial.
        wait: seconds to wait until there is one for one of them.

    Returns:
        A document for each client, which may have no trial.
    """
    record = asked_search(here, identity)
    over = record.state.is_over or record.state is SearchState.STOPPING
    message, given = record.message or f"the search is {record.state.value}", {}
    if record.state is SearchState.PAUSED:
        time.sleep(min(wait, _PAUSE))
    elif not over:
        most = int(record.budget["parallel"])
        body = {"search": record.name, "uid": record.uid, "most": most, "asks": list(asks)}
        given = {one.pop("key"): one for one in _call(here, "ask", body, wait)}
        message = f"at most {most} are out at once (budget.parallel), or the next point is being computed"

    def document(ask: Mapping[str, Any]) -> AskedDocument:
        none = dict.fromkeys(("trial", "point", "seed", "attempt", "lease"))
        found = {"search": record.name, "state": record.state.value, "over": over, "message": message, **none}
        if (got := given.get(ask["key"])) is not None:
            seed = trial_seed(record.definition["seed"], got["trial"])
            found |= {**got, "message": "", "seed": seed, "lease": ask["lease"]}
        return cast(AskedDocument, found)

    return [document(ask) for ask in asks]


def tell_result(
    here: Here, identity: str, number: int, values: Sequence[float | None], step: int | None, **more: Any
) -> ToldDocument:
    """Tells the result of a trial, or with `step` an intermediate value; see `SearchClient.tell`."""
    record = asked_search(here, identity)
    trial = here.store.trial(record.id, number) if 0 < number <= _MOST_NUMBER else None
    if trial is None:
        raise InputError(f"search {record.name!r} has no trial {number}: `hpo-pilot ask {record.name}` gives numbers")
    finite = [value if value is not None and math.isfinite(value) else None for value in values]
    if step is None:
        said = _result(here, record, trial, finite, **more)
    else:
        said = _intermediate(here, record, trial, finite, step, more["attempt"])
    return cast(ToldDocument, {"search": record.name, "trial": number, "counts": True, "stop": False, **said})


def _result(
    here: Here,
    record: SearchRecord,
    trial: Trial,
    values: list[float | None],
    *,
    failed: str,
    metrics: Mapping[str, float],
    node: str,
    attempt: int | None,
) -> dict[str, Any]:
    del attempt  # whichever client tells it
    names = [objective["metric"] for objective in record.objectives]
    if len(values) != (0 if failed else len(names)):
        told = f"{len(values)} values" + " and the reason of a failure" * bool(failed)
        raise InputError(f"trial {trial.number}: {told}: give a value for each of {', '.join(names)}, or why it failed")
    if None in values:
        values, failed = [], f"{names[values.index(None)]!r} is no finite number"
    if trial.state is TrialState.STOPPED:
        return {"counts": False, "message": "the trial was stopped; its result does not count"}
    if trial.state.is_over:
        counted: Mapping[str, Any] = {"values": list(trial.values), "message": trial.error or ""}
    else:
        task, job = open_job(here.store.engine, record.id, trial)
        metrics = {name[:100]: value for name, value in metrics.items() if math.isfinite(value)}
        body = {"values": values, "message": failed[:2000], "metrics": metrics, "node": node[:128]}
        counted = _call(here, "tell", {"task": task, "number": job, **body})
    if not counted:
        raise TryAgainError(f"trial {trial.number} is being stopped, or was lost and is submitted again: tell it again")
    if counted["values"] != values:
        known = ", ".join(map(str, counted["values"])) or f"failed, {counted['message']}"
        raise InputError(f"trial {trial.number} has a result already, which counts: {known}")
    return {"message": counted["message"]}


def _intermediate(
    here: Here, record: SearchRecord, trial: Trial, values: list[float | None], step: int, attempt: int | None
) -> dict[str, Any]:
    if len(values) != 1 or not 0 <= step <= _MOST_STEP:
        raise InputError(f"trial {trial.number}: a step, from 0, has one value")
    why = f"the trial is {trial.state.value}"
    if not trial.state.is_over:
        task, job = open_job(here.store.engine, record.id, trial)
        body = {"task": task, "number": job, "step": step, "value": values[0], "attempt": attempt}
        why = _call(here, "report", body)
    return {"stop": bool(why), "counts": not why, "message": why}


def _call(here: Here, call: str, body: Mapping[str, Any], wait: float = 0.0) -> Any:
    """Calls the embedded server of the work folder; returns the data of its answer.

    Raises:
        TryAgainError: no server runs, or it does not answer.
    """
    if (server := read_address(here.folder.root)) is None:  # clients of a service get this text: it names no path
        raise TryAgainError("no embedded PanDA server runs on this work folder: `hpo-pilot serve` or `run` starts it")
    try:
        answer = session_at(server).post(
            f"{server.url}/api/v1/hpo_pilot/{call}",
            json=body,
            headers={**server.headers(), "X-HPO-Pilot-Wait": f"{wait:g}"},
            timeout=(_CONNECT, _ANSWER + wait),
            allow_redirects=False,
        )
        envelope = answer.json()
    except (requests.RequestException, ValueError) as error:
        raise TryAgainError(f"the embedded PanDA server at {server.url} does not answer: {error}") from error
    if not (answer.ok and envelope["success"]):
        raise TryAgainError(f"the embedded PanDA server refused {call}: {answer.status_code} {answer.text[:300]}")
    return envelope["data"]


@functools.lru_cache(maxsize=4)
def session_at(server: PandaServer) -> requests.Session:
    """Returns the session for calls to a server; it may be used from any thread."""
    session = server.session()
    session.mount(server.url, HTTPAdapter(pool_maxsize=64))  # above the threads of an API
    return session
