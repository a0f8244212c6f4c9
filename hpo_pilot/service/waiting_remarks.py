"""Why jobs of a search wait: what the embedded server knows of the pilots that could take them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.panda.board_address import read_address

log = logging.getLogger(__name__)

_LATELY = 600.0  # seconds for which a pilot that asked for jobs counts as one that is there
_PATIENCE = 30.0  # seconds that a job may wait before anything is said of it
_TASKS = 200  # in one question
_SECONDS = 3.0  # that the server may take: who asks wants to know of the search

#: What of a job an offer must reach, and how that is said.
_SIZES: Sequence[tuple[str, Callable[[Any], str]]] = (
    ("nodes", lambda value: f"{value} nodes at once"),
    ("gpus", lambda value: f"{value} GPU{'' if value == 1 else 's'} on a node"),
    ("cores", lambda value: f"{value} core{'' if value == 1 else 's'} on a node"),
    ("memory_mb", lambda value: f"{value} MB of memory on a node"),
    ("minutes", lambda value: f"{value:g} minutes for a job"),
)


def waiting_remarks(workdir: Path, task_ids: Sequence[int]) -> list[str]:
    """What to know of a search's jobs that wait.

    Args:
        workdir: the work folder whose embedded server has them.
        task_ids: of its tasks that are not over.

    Returns:
        Nothing where no server runs there, or none of its jobs waits in vain.
    """
    if not task_ids:
        return []
    try:
        said = _asked(workdir, task_ids)
        return [] if said is None else why_they_wait(said)
    except (HpoPilotError, OSError, ValueError, LookupError, TypeError) as error:
        log.debug("it is not known why jobs wait: %s", error)  # the search itself can be shown all the same
        return []


def _asked(workdir: Path, task_ids: Sequence[int]) -> Mapping[str, Any] | None:
    server = read_address(workdir)
    if server is None:
        return None
    with server.session() as session:
        answer = session.get(
            f"{server.url}/api/v1/hpo_pilot/demand",
            params={"task_ids": list(task_ids[:_TASKS])},
            headers=server.headers(),
            timeout=_SECONDS,
            allow_redirects=False,
        )
    answer.raise_for_status()
    data: Mapping[str, Any] = answer.json()["data"]
    return data


def why_they_wait(said: Mapping[str, Any]) -> list[str]:
    """The remarks that follow from an answer of the server's to hpo_pilot/demand."""
    waiting = [shape for shape in said["waiting"] if shape["since"] >= _PATIENCE]
    if not waiting:
        return []
    jobs = sum(shape["jobs"] for shape in waiting)
    known = min(_LATELY, said["known_for"])
    offers = [offer for offer in said["offers"] if offer["is_busy"] or offer["asked"] < _LATELY]
    if not said["going"] and not offers:
        if known < _PATIENCE:
            return []  # the server has just started: pilots may not have found it yet
        return [
            f"{_jobs(jobs)}, and no pilot has asked for jobs for {_time(known)}: `hpo-pilot pilots list` shows "
            "allocations; `hpo-pilot serve --slots N`, `hpo-pilot pilot` or `hpo-pilot pilots submit` starts pilots"
        ]
    if not offers:
        return []  # whoever has jobs now asked before the server started
    return [remark for shape in waiting if (remark := _lacking(shape, offers))]


def _lacking(shape: Mapping[str, Any], offers: Sequence[Mapping[str, Any]]) -> str:
    """What no pilot has of what jobs of a shape need; empty: one has it all."""
    if any(all(_reaches(offer, shape, name) for name, _ in _SIZES) for offer in offers):
        return ""
    lacking = [text(shape[name]) for name, text in _SIZES if not any(_reaches(one, shape, name) for one in offers)]
    if lacking:
        return f"{_jobs(shape['jobs'])}, and no pilot that asked lately has {' or '.join(lacking)}"
    wanted = [text(shape[name]) for name, text in _SIZES if shape[name] > (name == "nodes")]
    return f"{_jobs(shape['jobs'])}, and no pilot that asked lately has all of this: {', '.join(wanted)}"


def _reaches(offer: Mapping[str, Any], shape: Mapping[str, Any], name: str) -> bool:
    """Whether a pilot has enough of one thing; of cores, memory and time it need not have said how much it has."""
    if name in ("nodes", "gpus"):
        return bool(offer[name] >= shape[name])
    return not offer[name] or bool(offer[name] >= shape[name])


def _jobs(count: int) -> str:
    return "1 job waits" if count == 1 else f"{count} jobs wait"


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"
