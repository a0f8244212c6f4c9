"""Commands that take a search file: validate, run, submit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console

from hpo_pilot.cli.next_step import goes_on
from hpo_pilot.cli.options import EMBEDDED_SERVER, FileArgument, JsonOption, ServerOption, SlotsOption, on_client
from hpo_pilot.cli.show import advised, counted, dump, dump_plain, front_text, metrics_of, printable, value_text
from hpo_pilot.client.documents import RunDocument, SearchDocument, over_count
from hpo_pilot.client.families import segments_of
from hpo_pilot.client.search_client import SearchClient


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(on_client(validate))
    app.command()(on_client(run))
    app.command()(on_client(submit))


def validate(client: SearchClient, file: FileArgument, as_json: JsonOption = False) -> None:
    """Check a search file; every mistake is reported with its place."""
    from hpo_pilot.config.problem import Problem, SearchFileError

    found = client.validate(file)
    search = found["search"]
    if as_json:
        dump(found)
        if search is None:
            raise typer.Exit(SearchFileError.exit_code)
        return
    if search is None:
        raise SearchFileError([Problem(**problem) for problem in found["problems"]])
    for note in found["notes"]:
        typer.echo(f"note: {Problem(**note)}")
    trials, folds, segments = search["budget"]["trials"], search["folds"]["k"], search["segments"]
    times = f"{counted(len(segments), 'segment')} x " if segments else ""
    jobs = trials * folds * len(segments or (None,))
    typer.echo(
        f"{file}: search {search['search']!r} is valid: {counted(len(search['space']), 'parameter')}, "
        f"{search['optimizer']['name']}, {times}{counted(trials, 'trial')} x {counted(folds, 'fold')} = "
        f"{counted(jobs, 'job')}"
    )
    if found["python"] is not None:
        whose = "by payload.python" if search["payload"]["python"] else f"of {client.environment}"
        typer.echo(f"python is {printable(found['python'])}, {whose}")


def run(
    client: SearchClient,
    file: FileArgument,
    slots: SlotsOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a whole search, with a report at the end; goes on where it was interrupted.

    On this machine, or, with --service, there: then Ctrl-C only ends the watching.
    """
    from hpo_pilot.cli.progress import RunProgress

    progress = RunProgress(Console(stderr=True) if as_json else Console(), client)
    try:
        result = client.run(file, progress, slots=slots, server=server, on_server=_say_server)
    finally:
        progress.close()
    searches = segments_of(result)
    if as_json:
        dump(result)
    else:
        for search in searches:
            _show(search)
    if any(search["best"] is None and not search.get("front") for search in searches):
        raise typer.Exit(1)


def _show(search: SearchDocument) -> None:
    counts, found = search["trials"], search["best"]
    failed = f", {counts['failed']} failed" if counts.get("failed") else ""
    typer.echo(f"search {search['name']!r} is {search['state']}: {counted(over_count(search), 'trial')}{failed}")
    if search["message"]:
        typer.echo(f"  {printable(advised(search['message']))}")
    if found is not None:
        typer.echo(f"  best: trial {found['number']}, {metrics_of(search)[0]} {value_text(found)}")
        for name, value in found["point"].items():
            typer.echo(f"    {printable(name)}: {json.dumps(value)}")
    if front := search.get("front"):
        typer.echo(advised(f"  {front_text(front)}: `hpo-pilot best {search['name']}` shows them"))
    for remark in cast(RunDocument, search).get("remarks", ()):
        typer.echo(f"  {printable(advised(remark))}")
    typer.echo(f"  report: {_shortest(Path(cast(RunDocument, search)['report']))}")


def _shortest(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _say_server(server: str) -> None:
    if server != EMBEDDED_SERVER:
        typer.echo(f"PanDA server: {server}", err=True)


def submit(
    client: SearchClient,
    file: FileArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the task parameters of the first generation; register nothing.")
    ] = False,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register a search for the service (`hpo-pilot serve`) to run."""
    if dry_run:
        dump_plain(client.rehearse(file, server=server))
        return
    search = client.submit(file, server=server)
    if as_json:
        short = {"id": search["id"], "name": search["name"], "state": search["state"]}
        dump({**short, "segments": search["segments"]} if "segments" in search else short)
        return
    for one in segments_of(search):
        said = f"search {one['name']!r} is registered as number {one['id']}"
        typer.echo(f"{said}; {goes_on(client, one)}")
