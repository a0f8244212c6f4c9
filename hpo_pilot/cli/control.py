"""Commands that change a search: pause, resume, stop, extend, fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpo_pilot.cli.options import IdArgument, StoreOption, WorkDirOption, open_search


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(pause)
    app.command()(resume)
    app.command()(stop)
    app.command(context_settings={"ignore_unknown_options": False})(extend)
    app.command()(fetch)


def pause(identity: IdArgument, workdir: WorkDirOption = None, store: StoreOption = None) -> None:
    """Start no new trials; those that run go on to their end."""
    from hpo_pilot.service import registration

    with open_search(identity, workdir, store) as (opened, _, record):
        registration.pause(opened, record)
    typer.echo(f"search {record.name!r} is paused; `hpo-pilot resume {record.name}` lets it go on")


def resume(
    identity: IdArgument,
    new_payload: Annotated[
        bool, typer.Option("--new-payload", help="Pack the payload's files anew: they were mended.")
    ] = False,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Let a paused, stopped or failed search go on."""
    from hpo_pilot.service import registration

    with open_search(identity, workdir, store) as (opened, folder, record):
        registration.resume(opened, record, folder, new_payload=new_payload)
    typer.echo(f"search {record.name!r} may go on; `hpo-pilot serve` or `hpo-pilot run {record.source}` runs it")


def stop(identity: IdArgument, workdir: WorkDirOption = None, store: StoreOption = None) -> None:
    """End a search: its jobs are killed, its results stay."""
    from hpo_pilot.service import registration

    with open_search(identity, workdir, store) as (opened, _, record):
        registration.stop(opened, record)
    typer.echo(f"search {record.name!r} is stopping")


def extend(
    identity: IdArgument,
    trials: Annotated[int | None, typer.Option(metavar="+N", help="More trials.", show_default=False)] = None,
    hours: Annotated[float | None, typer.Option(metavar="+H", help="More hours.", show_default=False)] = None,
    gpu_hours: Annotated[float | None, typer.Option(metavar="+H", help="More GPU-hours.", show_default=False)] = None,
    failures: Annotated[
        int | None, typer.Option(metavar="+N", help="More failures in a row.", show_default=False)
    ] = None,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Give a search more budget; one that was over goes on."""
    from hpo_pilot.errors import InputError
    from hpo_pilot.service import registration

    given = {"trials": trials, "hours": hours, "gpu_hours": gpu_hours, "failures": failures}
    changes: dict[str, float] = {name: amount for name, amount in given.items() if amount is not None}
    if not changes:
        raise InputError("extend by what? For example: hpo-pilot extend ID --trials +50")
    with open_search(identity, workdir, store) as (opened, _, record):
        search = registration.extend(opened, record, changes)
    typer.echo(f"search {record.name!r} now has a budget of {search.budget.trials} trials; `hpo-pilot serve` runs them")


def fetch(
    which: Annotated[str, typer.Argument(metavar="best|TRIAL", help="The best trial, or a trial's number.")],
    identity: IdArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder for the files.")] = Path(),
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Fetch the files that the payload declared as outputs; kept for the best trials."""
    from hpo_pilot.service.outputs import fetch_outputs

    with open_search(identity, workdir, store) as (opened, folder, record):
        for path in fetch_outputs(opened, folder, record, which, output):
            typer.echo(str(path))
