"""Commands that change a search, or fetch its files: pause, resume, stop, extend, retry, try, fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpo_pilot.cli.completion import complete_best, complete_parameter, complete_trial
from hpo_pilot.cli.next_step import goes_on
from hpo_pilot.cli.options import IdArgument, JsonOption, on_client
from hpo_pilot.cli.show import advised, counted, dump
from hpo_pilot.client.documents import SearchDocument, is_unsteered
from hpo_pilot.client.search_client import SearchClient


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(on_client(pause))
    app.command()(on_client(resume))
    app.command()(on_client(stop))
    app.command(context_settings={"ignore_unknown_options": False})(on_client(extend))
    app.command()(on_client(retry))
    app.command("try")(on_client(try_point))
    app.command()(on_client(fetch))


def pause(client: SearchClient, identity: IdArgument, as_json: JsonOption = False) -> None:
    """Start no new trials; those that run go on to their end."""
    search = client.pause(identity)
    said = f"search {search['name']!r} is paused; `hpo-pilot resume {search['name']}` lets it go on"
    if is_unsteered(search) and (out := sum(search["trials"].get(state, 0) for state in ("running", "pending"))):
        said += f"; nothing steers it now, so that {counted(out, 'trial')} cannot end: "
        said += client.how_to_steer(search["name"])
    _say(search, said, as_json)


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
    as_json: JsonOption = False,
) -> None:
    """Let a paused, stopped or failed search go on."""
    from hpo_pilot.errors import InputError

    if file is not None and not new_payload:
        raise InputError("--file only says where the payload of --new-payload is; a search's definition stays as it is")
    search = client.resume(identity, new_payload=new_payload, file=file)
    _say(search, f"search {search['name']!r} may go on; {goes_on(client, search)}", as_json)


def stop(client: SearchClient, identity: IdArgument, as_json: JsonOption = False) -> None:
    """End a search: its jobs are killed, its results stay."""
    search = client.stop(identity)
    name = search["name"]
    said = f"search {name!r} is {search['state']}; its results stay"
    if search["trials"].get("finished"):
        said += f": `hpo-pilot best {name}` has the best"
    if is_unsteered(search):
        said += f"; nothing steers it now, and its jobs are ended when something does: {client.how_to_steer(name)}"
    _say(search, said, as_json)


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
    parallel: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="So many trials at once from now on, in all.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Give a search more budget, and one that was over goes on; or have more of its trials out at once."""
    from hpo_pilot.errors import InputError

    given = {"trials": trials, "hours": hours, "gpu_hours": gpu_hours, "core_hours": core_hours, "failures": failures}
    changes: dict[str, float] = {name: amount for name, amount in given.items() if amount is not None}
    if not changes and parallel is None:
        raise InputError("extend by what? For example: hpo-pilot extend ID --trials +50, or --parallel 16")
    search = client.extend(identity, changes) if changes else None
    if parallel is not None:
        search = client.set_parallel(identity, parallel)
    assert search is not None
    said = []
    if changes:
        said.append(f"now has a budget of {counted(search['budget']['trials'], 'trial')}")
    if parallel is not None:
        said.append(f"now has {counted(parallel, 'trial')} out at once")
    _say(search, f"search {search['name']!r} {' and '.join(said)}; {goes_on(client, search)}", as_json)


def retry(
    client: SearchClient,
    identity: IdArgument,
    trials: Annotated[
        list[int] | None,
        typer.Option(
            "--trial",
            metavar="N",
            help="A failed trial; may be repeated. Default: all that failed and were not tried again.",
            show_default=False,
            autocompletion=complete_trial,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Try the points of failed trials again, ahead of others and on top of the budget."""
    search = client.retry(identity, trials or None)
    added = search.get("added", 0)
    total = counted(search["budget"]["trials"], "trial")
    said = (
        f"search {search['name']!r} tries {counted(added, 'failed trial')} again, ahead of others: its budget grew to"
    )
    _say(search, f"{said} {total}; {goes_on(client, search)}", as_json)


def try_point(
    client: SearchClient,
    identity: IdArgument,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE …",
            help="Every parameter that is active at the point, with its value as a search file has it.",
            show_default=False,
            autocompletion=complete_parameter,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Try a point, ahead of others and on top of the budget."""
    from hpo_pilot.cli.point_words import point_of

    search = client.add_point(identity, point_of(values))
    said = f"search {search['name']!r} tries the point next: its budget grew to"
    total = counted(search["budget"]["trials"], "trial")
    _say(search, f"{said} {total}; {goes_on(client, search)}", as_json)


def _say(search: SearchDocument, text: str, as_json: bool) -> None:
    """Says what was done, or prints the search as it is by that."""
    if as_json:
        dump(search)
    else:
        typer.echo(advised(text))


def fetch(
    client: SearchClient,
    which: Annotated[
        str,
        typer.Argument(metavar="best|TRIAL", help="The best trial, or a trial's number.", autocompletion=complete_best),
    ],
    identity: IdArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder for the files.")] = Path(),
    as_json: JsonOption = False,
) -> None:
    """Fetch the files that the payload declared as outputs; kept for the best trials."""
    files = [str(path) for path in client.fetch(identity, which, output)]
    if as_json:
        dump({"files": files})
        return
    for file in files:
        typer.echo(file)
