"""Options that many commands share, and how they are turned into a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hpo_pilot.service.workdir import WorkDir
    from hpo_pilot.store import SearchRecord, Store

WorkDirOption = Annotated[
    Path | None,
    typer.Option(
        "--workdir", metavar="W", help="Work folder: store, logs, reports. Default: ./hpo-pilot", show_default=False
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="Another store, as a SQLAlchemy URL (or HPO_PILOT_STORE).", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The search's name or number.")]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The search file (YAML).", show_default=False)]
SlotsOption = Annotated[
    int | None,
    typer.Option("--slots", min=0, help="Jobs side by side. Default: as many as the cores hold.", show_default=False),
]


@contextmanager
def open_store(workdir: Path | None, store: str | None) -> Iterator[tuple[Store, WorkDir]]:
    """The store and the work folder that the options name.

    Raises:
        InputError: there is no store yet, or it cannot be opened.
    """
    from hpo_pilot.errors import InputError
    from hpo_pilot.service.workdir import WorkDir
    from hpo_pilot.store import Store

    folder = WorkDir.at(workdir)
    url = folder.store_url(store)
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not path.exists():
        raise InputError(
            f"there is no store at {path}: run or submit a search first, or name another --workdir or --store"
        )
    opened = Store.open(url)
    try:
        yield opened, folder
    finally:
        opened.close()


@contextmanager
def open_search(
    identity: str, workdir: Path | None, store: str | None
) -> Iterator[tuple[Store, WorkDir, SearchRecord]]:
    """The same, with the search of that name or number."""
    with open_store(workdir, store) as (opened, folder):
        yield opened, folder, opened.search(identity)
