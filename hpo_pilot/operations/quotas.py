"""Quotas of the users of a service: open searches, stored files, uploads.

The operator writes `quotas.json` in the work folder; it is read at each call. Operators have no quotas::

    {"searches": 20, "stored_mb": 50000, "uploads_mb": 2000, "users": {"ada": {"stored_mb": 200000}}}
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from hpo_pilot.errors import InputError
from hpo_pilot.server.chains import files_of
from hpo_pilot.steering.workdir import WorkDir, nickname
from hpo_pilot.store import ENDED_SEARCHES, Store
from hpo_pilot.store import tables as t
from hpo_pilot.store.database import read_values

log = logging.getLogger(__name__)

_NAMES = ("searches", "stored_mb", "uploads_mb")
_MB = 1e6


def quotas_of(workdir: WorkDir, user: str) -> dict[str, float]:
    """Returns the quotas of a user by their names in the file; one that is missing is not limited.

    Raises:
        InputError: the file is not valid.
    """
    path = workdir.root / "quotas.json"
    try:
        content = json.loads(path.read_text())
        own = content.pop("users", {})
        for each in (content, *own.values()):
            if unknown := each.keys() - set(_NAMES):
                raise ValueError(f"{min(unknown)!r} is none of {', '.join(_NAMES)}, users")
            if not all(type(value) in (int, float) and value >= 0 for value in each.values()):
                raise ValueError("quotas are numbers from 0")
        return {**content, **own.get(user, {})}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.error("the quotas %s cannot be used: %s", path, error)
        raise InputError("the service's quotas.json cannot be used: tell its operator, whose log says why") from error


def usage(store: Store, workdir: WorkDir, user: str, uploaded: float = 0.0) -> dict[str, dict[str, float]]:
    """Returns `most` and `used` of each quota of a user; `uploaded`: bytes of the user's uploads."""
    searches = t.searches.c.owner == user
    found: dict[str, dict[str, float]] = {}
    for name, most in quotas_of(workdir, user).items():
        if name == "searches":
            query: Any = select(func.count()).where(searches, t.searches.c.state.not_in(ENDED_SEARCHES))
            used = float(read_values(store.engine, query)[0])
        else:
            used = (_stored(store, workdir, searches) if name == "stored_mb" else uploaded) / _MB
        found[name] = {"used": used, "most": most}
    return found


def check_quotas(store: Store, workdir: WorkDir, user: str, more: int) -> None:
    """Checks that a user may have more open searches.

    Args:
        store: the store.
        workdir: the service's work folder.
        user: the user.
        more: number of searches.

    Raises:
        InputError: the user may not; the message says what is used and what to do.
    """
    found = usage(store, workdir, user)
    quota = found.get("searches")
    if quota is not None and quota["used"] + more > quota["most"]:
        raise InputError(
            f"{user} has {quota['used']:.0f} open searches, and this service allows {quota['most']:.0f}: stop one "
            "(`hpo-pilot stop ID`), or wait until one is done"
        )
    quota = found.get("stored_mb")
    if quota is not None and quota["used"] >= quota["most"]:
        raise InputError(
            f"outputs and checkpoints of {user}'s searches take {quota['used']:.0f} MB, and this service allows "
            f"{quota['most']:.0f} MB: fetch what you need (`hpo-pilot fetch ID`), and ask its operator to remove more"
        )


def _stored(store: Store, workdir: WorkDir, searches: Any) -> float:
    """Returns the bytes of kept outputs and checkpoints of searches at the embedded server."""
    jobs = select(t.jobs.c.output).join(t.searches, t.searches.c.id == t.jobs.c.search_id)
    outputs = read_values(store.engine, jobs.where(searches, t.jobs.c.output.is_not(None)).distinct())
    starts = {files_of(nickname(), uid) for uid in read_values(store.engine, select(t.searches.c.uid).where(searches))}
    length, cache = len(files_of("", "")), workdir.panda_files / "cache"
    kept = [path for path in cache.iterdir() if path.name[:length] in starts] if cache.is_dir() else []
    return sum(_size(path) for path in [*kept, *(workdir.panda_files / "storage" / name for name in outputs)])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # in another place, or just removed
        return 0
