"""What the shell offers on the tab key: names of searches, trials, parameters, forms and sites.

A shell waits for this at every press, so nothing heavy is imported: a store on this disk is read with the standard
library's SQLite, and only what a completion needs. Where there is nothing to be read nothing is offered; a service is
not asked, for it may be far away. `hpo-pilot --install-completion` sets it up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Context

if TYPE_CHECKING:
    import sqlite3

#: A word, and what is said of it.
Offer = tuple[str, str]

#: So many are offered at most, the newest.
_MOST = 200

#: A store that is being written to is not waited for longer, in seconds.
_PATIENCE = 0.1


def complete_search(ctx: Context, incomplete: str) -> list[Offer]:
    """Names of searches, with their states."""
    query = "SELECT name, state FROM searches WHERE name LIKE ? ESCAPE '!' ORDER BY id DESC LIMIT ?"
    return _asked(ctx, lambda store: store.execute(query, (_beginning(incomplete), _MOST)).fetchall())


def complete_trial(ctx: Context, incomplete: str) -> list[Offer]:
    """Numbers of a search's trials; for `retry` those that failed."""
    query = (
        "SELECT CAST(number AS TEXT), state FROM trials WHERE search_id = ? AND CAST(number AS TEXT) LIKE ? ESCAPE '!' "
        "AND (state = 'failed' OR NOT ?) ORDER BY number DESC LIMIT ?"
    )
    failed = ctx.info_name == "retry"

    def trials(store: sqlite3.Connection) -> list[Offer]:
        return store.execute(query, (_search(store, ctx), _beginning(incomplete), failed, _MOST)).fetchall()

    return _asked(ctx, trials)


def complete_parameter(ctx: Context, incomplete: str) -> list[Offer]:
    """``name=`` of a search's parameters, and ``name=value`` of those with choices."""

    def parameters(store: sqlite3.Connection) -> list[Offer]:
        found = store.execute("SELECT definition FROM searches WHERE id = ?", (_search(store, ctx),)).fetchone()
        space: dict[str, Any] = json.loads(found[0])["space"] if found else {}
        offered: list[Offer] = []
        for name, dimension in space.items():
            for choice in dimension.get("choices", ()):
                offered.append((f"{name}={choice if isinstance(choice, str) else json.dumps(choice)}", ""))
            if "choices" not in dimension:
                offered.append((f"{name}=", f"{dimension['low']} to {dimension['high']}"))
        return [offer for offer in offered if offer[0].startswith(incomplete)]

    return _asked(ctx, parameters)


def complete_best(incomplete: str) -> list[Offer]:
    """`best`, where a trial's number could stand too; the search comes after it."""
    return [("best", "the best trial")] if "best".startswith(incomplete) else []


def complete_form(incomplete: str) -> list[str]:
    """Forms of `export`."""
    from hpo_pilot.cli.inspection import EXPORTS

    return [form for form in EXPORTS if form.startswith(incomplete)]


def complete_site(ctx: Context, incomplete: str) -> list[str]:
    """Names of site profiles."""
    from hpo_pilot.config.site_folders import site_folders

    given = ctx.find_root().params.get("site_folder")
    folders = [*([Path(given)] if given else []), *site_folders()]
    names = {path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.yaml")}
    return sorted(name for name in names if name.startswith(incomplete))


def _beginning(text: str) -> str:
    """A pattern of SQL's LIKE, with the escape character !, for what begins with `text`."""
    for special in "!%_":
        text = text.replace(special, "!" + special)
    return text + "%"


def _asked(ctx: Context, ask: Callable[[sqlite3.Connection], list[Offer]]) -> list[Offer]:
    """What a store on this disk says; nothing where there is none, or it is locked, or of another version."""
    import sqlite3

    path = _store_path(ctx)
    if path is None or not path.is_file():
        return []
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_PATIENCE)) as store:
            return ask(store)
    except sqlite3.Error:
        return []


def _store_path(ctx: Context) -> Path | None:
    """The file of the store that the command line means; None where it means a service, or another database."""
    from hpo_pilot.cli.options import service_of

    given = ctx.params
    if service_of(given.get("workdir"), given.get("store"), given.get("service")) is not None:
        return None
    url = given.get("store") or os.environ.get("HPO_PILOT_STORE")
    if url:
        return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None
    return Path(given.get("workdir") or "hpo-pilot") / "hpo-pilot.db"


def _search(store: sqlite3.Connection, ctx: Context) -> int | None:
    """The number of the search that the command line names."""
    # Where the word to complete is an option's value, the words before it are not sorted into parameters yet.
    identity = ctx.params.get("identity") or next(iter(ctx.args), None)
    query = "SELECT id FROM searches WHERE name = ? OR CAST(id AS TEXT) = ?"
    found = store.execute(query, (identity, identity)).fetchone()
    return None if found is None else int(found[0])
