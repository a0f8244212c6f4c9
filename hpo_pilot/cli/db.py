"""Commands of the databases: db check, backup, restore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpo_pilot.cli.options import JsonOption, StoreOption, WorkDirOption, argument
from hpo_pilot.cli.output import advised, dump
from hpo_pilot.errors import InputError
from hpo_pilot.steering.workdir import WorkDir


def add_db_commands(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(name="db", help="Check, back up and restore the databases.", no_args_is_help=True)
    for command in (check, backup, restore):
        group.command()(command)
    app.add_typer(group)


def _place(workdir: Path | None, store: str | None) -> tuple[WorkDir, str]:
    folder = WorkDir.at(workdir)
    url = folder.store_url(store)
    if url == f"sqlite:///{folder.store_file}" and not folder.store_file.exists():
        raise InputError(f"there is no store in {folder.root}: name another --workdir, or its URL with --store")
    return folder, url


def check(
    repair: Annotated[bool, typer.Option("--repair", help="Repair what is safe to repair.")] = False,
    as_json: JsonOption = False,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Check every invariant of the store and of the embedded server's database; a service may run meanwhile.

    Ends with status 1 if an invariant does not hold; with --repair, if one still does not hold after the repairs.
    """
    from hpo_pilot.steering.invariants import check_all
    from hpo_pilot.store import Store
    from hpo_pilot.store.invariants import repair as make_repairs

    folder, url = _place(workdir, store)
    opened = Store.open(url)
    try:
        found = check_all(opened, folder.server_database)
        if repair and any(breach.repair is not None for breach in found):
            make_repairs(opened, found)
            repaired = [breach for breach in found if breach.repair is not None]
            for breach in () if as_json else repaired:
                typer.echo(f"repaired: {breach}")
            waits = [breach for breach in repaired if breach.invariant == "limbo"]  # until a service loads the search
            found = [breach for breach in check_all(opened, folder.server_database) if breach not in waits]
    finally:
        opened.close()
    if as_json:
        dump([breach.to_dict() for breach in found])
    else:
        for breach in found:
            typer.echo(advised(f"{breach}; {breach.remedy}"))
        typer.echo("every invariant holds" if not found else f"{len(found)} breaches")
    if found:
        raise typer.Exit(1)


def backup(
    file: Annotated[Path, argument(metavar="FILE", help="The backup to write. It is as secret as the work folder.")],
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Write store, server's database and the files that a restored service needs into one file; a service may run."""
    from hpo_pilot.steering import backup as backups

    folder, url = _place(workdir, store)
    typer.echo(f"{file} has {backups.backup(folder, url, file)} files; `hpo-pilot db restore {file}` restores them")


def restore(
    file: Annotated[Path, argument(metavar="FILE", help="The backup.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Move the work folder's contents aside; replace tables in PostgreSQL.")
    ] = False,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Make a work folder of a backup. The next `serve` or `run` continues its searches."""
    from hpo_pilot.steering import backup as backups

    folder = WorkDir.at(workdir)
    former = backups.restore(folder, folder.store_url(store), file, replace=replace)
    typer.echo(f"{folder.root} is restored" + (f"; its former contents are in {former}" if former else ""))
    typer.echo(
        "Before pilots with a --checkpoints folder of their own take jobs of restored searches, empty it: trials after "
        "the backup have left checkpoints there, and their numbers are given again."
    )
