"""Registering all searches of a file: one, or one of each segment."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from hpo_pilot.errors import InputError
from hpo_pilot.service.nickname import nickname
from hpo_pilot.service.registration import PackedSearch, check_same, pack_searches, register_packed
from hpo_pilot.service.warm_start import earlier_results
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import SearchRecord, Store


def register_all(store: Store, workdir: WorkDir, search_file: Path, *, go_on: bool) -> list[SearchRecord]:
    """Registers the searches of a file, or finds those that the store has: one, or one of each segment, in their order.

    Args:
        store: the store.
        workdir: where the packed payload goes.
        search_file: the search file.
        go_on: whether a search that is there already goes on (`run`) or is an error (`submit`).

    Raises:
        InputError: the file is wrong, or differs from a registered search in more than a larger budget.
    """
    packed = pack_searches(search_file, workdir)
    return register_family(store, packed, go_on=go_on, who=nickname())


def register_family(
    store: Store,
    family: Sequence[PackedSearch],
    *,
    go_on: bool,
    who: str,
    uid: str | None = None,
    check: Callable[[SearchRecord], None] = lambda _found: None,
) -> list[SearchRecord]:
    """Registers the searches of one file; none of them where one cannot be.

    Args:
        store: the store.
        family: the packed searches.
        go_on: as for `register_packed`.
        who: as for `register_packed`.
        uid: as for `register_packed`; those of segments are derived from it.
        check: as for `register_packed`.

    Raises:
        InputError: one of them differs from a registered search, or there is one of that name.
    """
    own = [uid if uid is None or packed.family is None else _uid_of(uid, packed.search.name) for packed in family]
    for packed, identity in zip(family, own, strict=True):
        name = packed.family or packed.search.name
        taken = store.find_search(name) is not None if packed.family else bool(store.family(name))
        if taken:
            raise InputError(f"{packed.file}: {name!r} cannot be a search and a family of segments: rename one of them")
        found = store.find_search(packed.search.name)
        if found is None and len(family) > 1:
            earlier_results(store, packed.search, packed.results)  # raises where there are none
        if found is None or (identity is not None and found.uid == identity):
            continue
        if found.family != packed.family:
            there = f"a segment of {found.family!r}" if found.family else "no segment of any search"
            raise InputError(f"the store already has a search {found.name!r}, which is {there}: rename this one")
        if go_on and len(family) > 1:
            check(found)
            check_same(found, packed.search, packed.sandbox, packed.file)
        elif not go_on:
            register_packed(store, packed, go_on=False, who=who, uid=identity)  # which says that it is there
    return [
        register_packed(store, packed, go_on=go_on, who=who, uid=identity, check=check)
        for packed, identity in zip(family, own, strict=True)
    ]


def _uid_of(uid: str, name: str) -> str:
    return hashlib.sha256(f"{uid}/{name}".encode()).hexdigest()[:8]
