"""Checkpoints from which later trials of the same point go on; together these trials are a chain.

Pilots name such a checkpoint by a job that they have, ``<task>_<job's number>.t<trial>f<fold>``. It is stored by owner,
search, chain, fold and trial, which the task's parameters tell. So only jobs of the same search of the same user find
it, and no late job of a lower level replaces that of a higher one.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Collection, Mapping
from typing import NamedTuple

from sqlalchemy import ColumnElement, case, func, or_, select, update
from sqlalchemy.exc import NoResultFound

from hpo_pilot.errors import InputError
from hpo_pilot.server.database import Transaction, cache_files, remove_cached
from hpo_pilot.server.file_store import CHAIN_START, Folder
from hpo_pilot.server.points import assignment_of
from hpo_pilot.server.task_parameters import known_task

log = logging.getLogger(__name__)

KEPT_SECONDS = 30 * 86_400.0  # after the last checkpoint of the search was written or read; pilots have the same limit
_TOUCHED = 86_400.0  # the time of that is noted so exactly
_DONE = 0.0  # as `created`, of a checkpoint that its search has left at its end: the first to go when space is needed
_SUB_ID = re.compile(r"(\d{1,9})\.t(\d{1,9})f(\d{1,9})", re.ASCII)


class Place(NamedTuple):
    """The place of a trial's checkpoint.

    Attributes:
        search: beginning of the names of all files of its search.
        chain: beginning of the names of the files of its chain and fold; the trial's number follows.
        trial: number of the trial.
    """

    search: str
    chain: str
    trial: int

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"{self.chain}{self.trial}"


def place_of(tx: Transaction, task_id: int, sub_id: str) -> Place | None:
    """Returns the place of a checkpoint; None: `sub_id` is not that of a trial which a job of the task runs."""
    match = _SUB_ID.fullmatch(sub_id)
    if match is None:
        return None
    number, trial, fold = map(int, match.groups())
    try:
        owner, assignment = known_task(tx, task_id).user_name, assignment_of(tx, task_id)
    except (NoResultFound, InputError):
        return None
    if assignment is None or (trial, fold) not in assignment.members.get(number, ()):
        return None
    search = files_of(owner, assignment.uid)
    return Place(search, f"{search}t{assignment.chains.get(trial, trial)}f{fold}.", trial)


def files_of(owner: str, uid: str) -> str:
    """Returns the beginning of the names of all files of a search."""
    digest = hashlib.sha256(f"{owner}\0{uid}".encode()).hexdigest()
    return f"{CHAIN_START}{digest[:32]}_"


def forget(tx: Transaction, cache: Folder, owner: str, uid: str, keep: Collection[int]) -> None:
    """Removes all of a search that is over, except the chains with these first trials."""
    search, kept = files_of(owner, uid), {f"t{chain}" for chain in keep}
    names = tx.connection.scalars(select(cache_files.c.name).where(_begins(tx, search))).all()
    remove_cached(tx, cache, [name for name in names if name.removeprefix(search).partition("f")[0] not in kept])
    tx.connection.execute(update(cache_files).where(_begins(tx, search)).values(created=_DONE))


def forget_later(tx: Transaction, cache: Folder, newest: Mapping[str, int]) -> None:
    """Removes the checkpoints of trials after the newest one, by the beginnings of their searches' files."""
    found = [(name, name.rpartition("t")[0]) for name in (path.name for path in cache)]
    remove_cached(tx, cache, [name for name, search in found if search in newest and _trial(name) > newest[search]])


def _begins(tx: Transaction, start: str) -> ColumnElement[bool]:
    name = cache_files.c.name
    if tx.connection.dialect.name != "sqlite":
        return name.startswith(start, autoescape=True)
    return (name >= start) & (name < f"{start[:-1]}{chr(ord(start[-1]) + 1)}")  # SQLite uses no index for LIKE


def _trial(name: str) -> int:
    return int(name.rpartition(".")[2])


def stored(tx: Transaction, place: Place, *, touch: bool = False) -> list[str]:
    """Returns the stored files of a chain up to this trial, the newest first; `touch`: one is about to be read."""
    if touch:
        _touch(tx, place)
    names = tx.connection.scalars(select(cache_files.c.name).where(_begins(tx, place.chain)))
    return sorted((name for name in names if _trial(name) <= place.trial), key=_trial, reverse=True)


def _touch(tx: Transaction, place: Place) -> None:
    """Notes that a search is in use, once a day: it may have thousands of files."""
    is_done = cache_files.c.created == _DONE  # the search was extended
    values = {"touched": tx.now, "created": case((is_done, tx.now), else_=cache_files.c.created)}
    old = or_(cache_files.c.touched < tx.now - _TOUCHED, is_done)
    tx.connection.execute(update(cache_files).where(_begins(tx, place.search), old).values(values))


def refusal(tx: Transaction, place: Place) -> str:
    """Returns why a checkpoint is not stored; empty: it is."""
    names = tx.connection.scalars(select(cache_files.c.name).where(_begins(tx, place.chain)))
    if any(_trial(name) > place.trial for name in names):
        return f"a later trial than {place.trial} has stored a checkpoint"
    return ""


def make_room(tx: Transaction, cache: Folder, place: Place) -> bool:
    """Removes the checkpoints that a new one makes needless, and others of its user if all take too much space.

    First go those of searches that are over, of all users, then the longest stored. Those of good trials are replaced
    soon, when these trials go on. So the longest stored are of the worst.

    Returns:
        False: other users' checkpoints take the space, and the new one alone was removed.
    """
    _touch(tx, place)
    needless = stored(tx, place)[1:]
    total = tx.connection.scalar(select(func.sum(cache_files.c.size)).where(_begins(tx, CHAIN_START))) or 0
    excess = total - shutil.disk_usage(cache.path).free
    if excess <= 0:
        remove_cached(tx, cache, needless)
        return True
    owner = select(cache_files.c.user_name).where(cache_files.c.name == place.name).scalar_subquery()
    may_go = or_(cache_files.c.user_name == owner, cache_files.c.created == _DONE)
    removable = _begins(tx, CHAIN_START), may_go, cache_files.c.name != place.name
    columns = select(cache_files.c.name, cache_files.c.size)
    others = tx.connection.execute(columns.where(*removable).order_by(cache_files.c.created)).all()
    if excess > sum(2 * file.size for file in others):  # for each removed one less is used, and more is free
        remove_cached(tx, cache, [place.name])
        return False
    remove_cached(tx, cache, needless)
    for file in sorted(others, key=lambda file: file.name not in needless):
        if excess <= 0:
            break
        excess -= 2 * file.size
        if file.name not in needless:
            remove_cached(tx, cache, [file.name])
            log.warning("the checkpoint %s is removed: checkpoints may use half of the free disk space", file.name)
    return True
