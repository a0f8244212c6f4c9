"""Commands that change a search, or fetch its files: pause, resume, stop, extend, fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpo_pilot.cli.options import IdArgument, on_client
from hpo_pilot.cli.show import counted
from hpo_pilot.client.search_client import SearchClient


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(on_client(pause))
    app.command()(on_client(resume))
    app.command()(on_client(stop))
    app.command(context_settings={"ignore_unknown_options": False})(on_client(extend))
    app.command()(on_client(fetch))


def pause(client: SearchClient, identity: IdArgument) -> None:
    """Start no new trials; those that run go on to their end."""
    name = client.pause(identity)["name"]
    typer.echo(f"search {name!r} is paused; `hpo-pilot resume {name}` lets it go on")


def resume(
    client: SearchClient,
    identity: IdArgument,
    new_payload: Annotated[
        bool, typer.Option("--new-payload", help="Pack the payload's files anew: they were mended.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="With --new-payload: the search file. Default: where it was submitted from.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Let a paused, stopped or failed search go on."""
    from hpo_pilot.errors import InputError

    if file is not None and not new_payload:
        raise InputError("--file only says where the payload of --new-payload is; a search's definition stays as it is")
    name = client.resume(identity, new_payload=new_payload, file=file)["name"]
    typer.echo(f"search {name!r} may go on; {client.runner} runs it")


def stop(client: SearchClient, identity: IdArgument) -> None:
    """End a search: its jobs are killed, its results stay."""
    typer.echo(f"search {client.stop(identity)['name']!r} is stopping")


def extend(
    client: SearchClient,
    identity: IdArgument,
    trials: Annotated[int | None, typer.Option(metavar="+N", help="More trials.", show_default=False)] = None,
    hours: Annotated[float | None, typer.Option(metavar="+H", help="More hours.", show_default=False)] = None,
    gpu_hours: Annotated[float | None, typer.Option(metavar="+H", help="More GPU-hours.", show_default=False)] = None,
    core_hours: Annotated[float | None, typer.Option(metavar="+H", help="More core-hours.", show_default=False)] = None,
    failures: Annotated[
        int | None, typer.Option(metavar="+N", help="More failures in a row.", show_default=False)
    ] = None,
) -> None:
    """Give a search more budget; one that was over goes on."""
    from hpo_pilot.errors import InputError

    given = {"trials": trials, "hours": hours, "gpu_hours": gpu_hours, "core_hours": core_hours, "failures": failures}
    changes: dict[str, float] = {name: amount for name, amount in given.items() if amount is not None}
    if not changes:
        raise InputError("extend by what? For example: hpo-pilot extend ID --trials +50")
    search = client.extend(identity, changes)
    total = search["budget"]["trials"]
    typer.echo(f"search {search['name']!r} now has a budget of {counted(total, 'trial')}; {client.runner} runs them")


def fetch(
    client: SearchClient,
    which: Annotated[str, typer.Argument(metavar="best|TRIAL", help="The best trial, or a trial's number.")],
    identity: IdArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder for the files.")] = Path(),
) -> None:
    """Fetch the files that the payload declared as outputs; kept for the best trials."""
    for path in client.fetch(identity, which, output):
        typer.echo(str(path))
