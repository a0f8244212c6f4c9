"""Commands of the databases: db check."""

from __future__ import annotations

from typing import Annotated

import typer

from hpo_pilot.cli.options import JsonOption, StoreOption, WorkDirOption
from hpo_pilot.cli.output import advised, dump
from hpo_pilot.errors import InputError


def add_db_commands(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(name="db", help="Check the databases.", no_args_is_help=True)
    group.command("check")(check)
    app.add_typer(group)


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
    from hpo_pilot.steering.workdir import WorkDir
    from hpo_pilot.store import Store
    from hpo_pilot.store.invariants import repair as make_repairs

    folder = WorkDir.at(workdir)
    url = folder.store_url(store)
    if url == f"sqlite:///{folder.store_file}" and not folder.store_file.exists():
        raise InputError(f"there is no store in {folder.root}: name another --workdir, or its URL with --store")
    opened = Store.open(url)
    try:
        found = check_all(opened, folder.panda_database)
        if repair and any(breach.repair is not None for breach in found):
            make_repairs(opened, found)
            repaired = [breach for breach in found if breach.repair is not None]
            for breach in () if as_json else repaired:
                typer.echo(f"repaired: {breach}")
            waits = [breach for breach in repaired if breach.invariant == "limbo"]  # until a service loads the search
            found = [breach for breach in check_all(opened, folder.panda_database) if breach not in waits]
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
