"""Registering all searches of a file: one, or one of each segment."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from hpo_pilot.errors import InputError
from hpo_pilot.service.registration import PackedSearch, check_registered, register_packed
from hpo_pilot.service.warm_start import earlier_results
from hpo_pilot.store import SearchRecord, Store


def check_family(
    store: Store,
    family: Sequence[PackedSearch],
    *,
    go_on: bool,
    uid: str | None = None,
    check: Callable[[SearchRecord], None] = lambda _found: None,
) -> list[SearchRecord | None]:
    """Makes sure that the searches of one file can be registered, and changes nothing.

    Args:
        store: the store.
        family: the packed searches.
        go_on: whether a search that is there already goes on (`run`) or is an error (`submit`).
        uid: as for `register_packed`; those of segments are derived from it.
        check: as for `register_packed`.

    Returns:
        Each as the store has it already; None: it is new.

    Raises:
        InputError: one of them differs from a registered search, or there is one of that name.
    """
    known: list[SearchRecord | None] = []
    for packed, identity in zip(family, _uids(family, uid), strict=True):
        name = packed.family or packed.search.name
        taken = store.find_search(name) is not None if packed.family else bool(store.family(name))
        if taken:
            raise InputError(f"{packed.file}: {name!r} cannot be a search and a family of segments: rename one of them")
        found = store.find_search(packed.search.name)
        known.append(found)
        if found is None:
            earlier_results(store, packed.search, packed.results)  # raises where there are none
            continue
        if identity is not None and found.uid == identity:
            continue
        if found.family != packed.family:
            there = f"a segment of {found.family!r}" if found.family else "no segment of any search"
            raise InputError(f"the store already has a search {found.name!r}, which is {there}: rename this one")
        check_registered(found, packed, go_on=go_on, check=check)
    return known


def register_family(
    store: Store,
    family: Sequence[PackedSearch],
    *,
    go_on: bool,
    who: str,
    uid: str | None = None,
    check: Callable[[SearchRecord], None] = lambda _found: None,
) -> list[SearchRecord]:
    """Registers the searches of one file, or finds those that the store has; none of them where one cannot be.

    Args:
        store: the store.
        family: as for `check_family`.
        go_on: as for `check_family`.
        who: as for `register_packed`.
        uid: as for `check_family`.
        check: as for `register_packed`.

    Raises:
        InputError: one of them differs from a registered search, or there is one of that name.
    """
    check_family(store, family, go_on=go_on, uid=uid, check=check)
    return [
        register_packed(store, packed, go_on=go_on, who=who, uid=identity, check=check)
        for packed, identity in zip(family, _uids(family, uid), strict=True)
    ]


def _uids(family: Sequence[PackedSearch], uid: str | None) -> list[str | None]:
    return [uid if uid is None or packed.family is None else _uid_of(uid, packed.search.name) for packed in family]


def _uid_of(uid: str, name: str) -> str:
    return hashlib.sha256(f"{uid}/{name}".encode()).hexdigest()[:8]
