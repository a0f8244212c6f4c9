"""Commands that start and change searches: validate, run, submit, pause, resume, extend, retry, note and others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from hpo_pilot.advice import printable
from hpo_pilot.cli.options import (
    EMBEDDED_SERVER,
    MOST_NUMBER,
    FileArgument,
    IdArgument,
    JsonOption,
    ServerOption,
    SlotsOption,
    argument,
    on_client,
    option,
)
from hpo_pilot.cli.output import DIGITS, advised, dump, dump_plain, goes_on, metrics_of
from hpo_pilot.errors import EndedError, InputError, Problem, SearchFileError, TryAgainError
from hpo_pilot.operations.asking import LEASE
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.operations.families import segments_of
from hpo_pilot.report.documents import RunDocument, SearchDocument, is_unsteered
from hpo_pilot.report.formatting import UNITS, best_text, count, front_text, number, whole


@on_client
def validate(client: SearchClient, file: FileArgument, as_json: JsonOption = False) -> None:
    """Check a search file, and report every mistake with its place."""
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
    times = f"{count(len(segments), 'segment')} x " if segments else ""
    jobs = trials * folds * len(segments or (None,))
    size = f"{times}{count(trials, 'trial')} x {count(folds, 'fold')} = {count(jobs, 'job')}"
    for name, levels in search.get("fidelity", {}).items():
        size = f"{times}{count(trials, 'point')} x {count(folds, 'fold')} at {name} {levels['low']:g}, "
        size += f"the best go on to {levels['high']:g}"
    typer.echo(
        f"{file}: search {search['search']!r} is valid: {count(len(search['space']), 'parameter')}, "
        f"{search['optimizer']['name']}, {size}"
    )
    if found["python"] is not None:
        whose = "by payload.python" if search["payload"]["python"] else f"of {client.at.environment}"
        typer.echo(f"python is {printable(found['python'])}, {whose}")


@on_client
def run(
    client: SearchClient,
    file: FileArgument,
    slots: SlotsOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a whole search and write its report; continues a search that was interrupted.

    Runs here, or on a service with --service; Ctrl-C then stops only the display.
    """
    from hpo_pilot.cli.progress import RunProgress

    _say_notes(client, file)
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
    failed = "".join(f", {whole(counts[state])} {state}" for state in ("infeasible", "failed") if counts.get(state))
    typer.echo(f"search {search['name']!r} is {search['state']}: {count(search['over'], 'trial')}{failed}")
    if search["message"]:
        typer.echo(f"  {printable(advised(search['message']))}")
    if found is not None:
        typer.echo(f"  best: trial {found['number']}, {metrics_of(search)[0]} {best_text(found, DIGITS)}")
        for name, value in found["point"].items():
            typer.echo(f"    {printable(name)}: {json.dumps(value)}")
    if front := search.get("front"):
        text = front_text(len(front["trials"]), front["hypervolume"])
        typer.echo(advised(f"  {text}: `hpo-pilot best {search['name']}` shows them"))
    for remark in cast(RunDocument, search).get("remarks", ()):
        typer.echo(f"  {printable(advised(remark))}")
    typer.echo(f"  report: {_shortest(Path(cast(RunDocument, search)['report']))}")


def _shortest(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _say_notes(client: SearchClient, file: Path) -> None:
    found = client.validate(file)
    for note in found["notes"]:
        typer.echo(f"note: {Problem(**note)}", err=True)
    if found["search"] is not None and found["search"]["payload"]["command"] == "none":
        name = found["search"]["search"]
        typer.echo(advised(f"no job runs; clients get the trials by `hpo-pilot ask {name}`"), err=True)


def _say_server(server: str) -> None:
    if server != EMBEDDED_SERVER:
        typer.echo(f"PanDA server: {server}", err=True)


@on_client
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
    _say_notes(client, file)
    if as_json:
        short = {"id": search["id"], "name": search["name"], "state": search["state"]}
        dump({**short, "segments": search["segments"]} if "segments" in search else short)
        return
    for one in segments_of(search):
        said = f"search {one['name']!r} is registered as number {one['id']}"
        typer.echo(advised(f"{said}; {goes_on(client, one)}"))


@on_client
def pause(client: SearchClient, identity: IdArgument, as_json: JsonOption = False) -> None:
    """Start no new trials; running trials continue to their end."""
    search = client.pause(identity)
    said = f"search {search['name']!r} is paused; `hpo-pilot resume {search['name']}` continues it"
    if is_unsteered(search) and (out := sum(search["trials"].get(state, 0) for state in ("running", "pending"))):
        said += f"; nothing steers it now, so that {count(out, 'trial')} cannot end: "
        said += client.how_to_steer(search["name"])
    _print_state(search, said, as_json)


@on_client
def resume(
    client: SearchClient,
    identity: IdArgument,
    new_payload: Annotated[
        bool,
        typer.Option(
            "--new-payload", help="Send the corrected files of the payload; the search file counts as it was submitted."
        ),
    ] = False,
    file: Annotated[
        Path | None,
        option(
            "--file", metavar="FILE", help="With --new-payload: the search file. Default: where it was submitted from."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a paused, stopped or failed search."""
    if file is not None and not new_payload:
        raise InputError(
            "--file only names the search file with the payload for --new-payload; the definition of a search does "
            "not change"
        )
    search = client.resume(identity, new_payload=new_payload, file=file)
    files = " with the payload's present files (of the search file only the budget may change)" if new_payload else ""
    _print_state(search, f"search {search['name']!r} may go on{files}; {goes_on(client, search)}", as_json)


@on_client
def stop(client: SearchClient, identity: IdArgument, as_json: JsonOption = False) -> None:
    """Stop a search: its jobs are killed, its results stay."""
    search = client.stop(identity)
    name = search["name"]
    said = f"search {name!r} is {search['state']}; its results stay"
    if search["trials"].get("finished"):
        said += f": `hpo-pilot best {name}` has the best"
    if is_unsteered(search):
        said += f"; nothing steers it now, and its jobs are ended when something does: {client.how_to_steer(name)}"
    _print_state(search, said, as_json)


@on_client
def extend(
    client: SearchClient,
    identity: IdArgument,
    trials: Annotated[int | None, option(metavar="+N", help="More trials.")] = None,
    hours: Annotated[float | None, option(metavar="+H", help="More hours.")] = None,
    gpu_hours: Annotated[float | None, option(metavar="+H", help="More GPU-hours.")] = None,
    core_hours: Annotated[float | None, option(metavar="+H", help="More core-hours.")] = None,
    fidelity: Annotated[float | None, option(metavar="+N", help="More of the sum of levels, as epochs.")] = None,
    high: Annotated[float | None, option(metavar="N", help="New highest level of a search with levels.")] = None,
    failures: Annotated[int | None, option(metavar="+N", help="More failures in a row.")] = None,
    parallel: Annotated[int | None, option(metavar="N", min=1, help="Number of trials at once from now on.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Add to the budget of a search, or change its number of trials at once; a search that was over continues."""
    given = {"trials": trials, "hours": hours, "gpu_hours": gpu_hours, "core_hours": core_hours, "failures": failures}
    given |= {"fidelity": fidelity, "high": high}
    changes: dict[str, float] = {name: amount for name, amount in given.items() if amount is not None}
    if not changes and parallel is None:
        raise InputError("no amount is given: for example, hpo-pilot extend ID --trials +50, or --parallel 16")
    # `parallel` first: if it is refused, nothing was added, and the same command can be corrected and repeated.
    search = client.set_parallel(identity, parallel) if parallel is not None else None
    search = client.extend(identity, changes) if changes else search
    assert search is not None
    said = []
    if changes:
        # `trials` always: the others limit them.
        added = [name for name in changes if name not in ("trials", "high")]
        units = {**UNITS, "fidelity": "in the sum of levels"}
        limits = [f"{number(search['budget'][name])} {units.get(name, name)}" for name in added]
        limits += [] if high is None else [f"levels up to {number(high)}"]
        said.append(f"now has a budget of {', '.join([count(search['budget']['trials'], 'trial'), *limits])}")
    if parallel is not None:
        said.append(f"now has {count(parallel, 'trial')} at once")
    _print_state(search, f"search {search['name']!r} {' and '.join(said)}; {goes_on(client, search)}", as_json)


@on_client
def note(
    client: SearchClient,
    identity: IdArgument,
    text: Annotated[str | None, argument(metavar="TEXT", help="The note; empty: none.")] = None,
    trial: Annotated[int, option(metavar="N", min=0, max=MOST_NUMBER, help="A trial. Default: the search.")] = 0,
    tags: Annotated[str | None, option(metavar="A,B", help="All tags, separated by commas; empty: none.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a note or tags on a search or a trial, or show them; `list --text` and `list --tag` find them."""
    if text is not None or tags is not None:
        client.annotate(identity, text, None if tags is None else tags.split(","), trial)
    found: Any = client.trial(identity, trial, logs=False) if trial else client.status(identity)
    said = {"note": found.get("note", ""), "tags": found.get("tags", [])}
    if as_json:
        dump(said)
    else:
        typer.echo(f"tags: {printable(', '.join(said['tags'])) or 'none'}\nnote: {printable(said['note']) or 'none'}")


@on_client
def retry(
    client: SearchClient,
    identity: IdArgument,
    trials: Annotated[
        list[int] | None,
        option(
            "--trial",
            metavar="N",
            help="A failed trial; may be repeated. Default: all failed trials that have not been retried.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Try the points of failed trials again, before other points and on top of the budget."""
    search = client.retry(identity, trials or None)
    added = search.get("added", 0)
    total = count(search["budget"]["trials"], "trial")
    said = f"search {search['name']!r} tries {count(added, 'failed trial')} again, ahead of others: its budget grew to"
    _print_state(search, f"{said} {total}; {goes_on(client, search)}", as_json)


@on_client
def try_point(
    client: SearchClient,
    identity: IdArgument,
    values: Annotated[
        list[str],
        argument(
            metavar="NAME=VALUE …", help="All parameters that are active at the point, with values as in a search file."
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Try a point, before other points and on top of the budget."""
    search = client.add_point(identity, point_of(values))
    said = f"search {search['name']!r} tries the point next: its budget grew to"
    total = count(search["budget"]["trials"], "trial")
    _print_state(search, f"{said} {total}; {goes_on(client, search)}", as_json)


def _print_state(search: SearchDocument, text: str, as_json: bool) -> None:
    """Prints the change, or with --json the changed search."""
    if as_json:
        dump(search)
    else:
        typer.echo(advised(text))


@on_client
def ask(
    client: SearchClient,
    identity: IdArgument,
    wait: Annotated[float, option(metavar="SECONDS", min=0, help="Wait for a trial. Default: 0.")] = 0.0,
    lease: Annotated[
        float,
        option(
            metavar="SECONDS",
            min=1,
            help="Without `tell` for this long, another client gets the trial. Default: an hour.",
        ),
    ] = LEASE,
    as_json: JsonOption = False,
) -> None:
    """Ask for a trial of a search with `payload: none`: its number, and its point as NAME=VALUE words for a shell.

    Exit code 3: no trial is free now. Exit code 4: the search has ended.
    """
    found = client.search(identity).asked(wait, lease)
    if as_json:
        dump(found)
    elif found["trial"] is not None:
        values = {
            name: one if isinstance(one, str) else json.dumps(one) for name, one in (found["point"] or {}).items()
        }
        typer.echo(shlex.join([str(found["trial"]), *(f"{name}={value}" for name, value in values.items())]))
    if found["over"]:
        raise EndedError(f"search {identity!r} is {found['state']}: there are no more trials")
    if found["trial"] is None:
        raise TryAgainError(f"no trial of search {identity!r} is free now: {found['message']}")


@on_client
def tell(
    client: SearchClient,
    identity: IdArgument,
    trial: Annotated[int, argument(metavar="TRIAL", min=1, help="The trial's number.")],
    values: Annotated[
        list[float] | None,
        option("--value", metavar="V", help="Its value; once for each objective, in their order. nan: it failed."),
    ] = None,
    failed: Annotated[str, option(metavar="REASON", help="Why it has none.")] = "",
    step: Annotated[int | None, option(metavar="N", min=0, help="An intermediate value of this step.")] = None,
    metrics: Annotated[
        list[str] | None, option("--metric", metavar="NAME=NUMBER", help="A further figure; may be repeated.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell the result of a trial that was asked for, or with --step an intermediate value, which renews its lease.

    Exit code 4, with --step: end the trial, and ask for another.
    """
    search = client.search(identity)
    if step is not None:
        if failed or metrics or not values or len(values) != 1:
            raise InputError("--step goes with one --value alone: an intermediate value")
        told = search.told(trial, [values[0]], step=step)
    else:
        figures = point_of(metrics or ())
        if wrong := [name for name, figure in figures.items() if type(figure) not in (int, float)]:
            raise InputError(f"--metric {wrong[0]}: a number is expected")
        told = search.tell(trial, values, failed=failed, metrics=figures)
    if as_json:
        dump(told)
    elif told["message"]:
        typer.echo(f"trial {trial}: {printable(told['message'])}")
    if told["stop"]:
        raise EndedError(f"trial {trial} is to end: ask for another")


@on_client
def fetch(
    client: SearchClient,
    which: Annotated[str, typer.Argument(metavar="best|TRIAL", help="The best trial, or the number of a trial.")],
    identity: IdArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder for the files.")] = Path(),
    as_json: JsonOption = False,
) -> None:
    """Fetch the output files that the payload declares; the service keeps them for the best trials."""
    files = [str(path) for path in client.fetch(identity, which, output)]
    if as_json:
        dump({"files": files})
        return
    for file in files:
        typer.echo(file)


def point_of(words: Iterable[str]) -> dict[str, Any]:
    """Returns the point of `words`. Values are read as in a search file: `1e-3` is a number, `true` a boolean.

    The search checks later whether the point is in its space.

    Raises:
        InputError: a word is not name=value, a name is given twice, or a value is a list or a map.
    """
    from hpo_pilot.search.values import show
    from hpo_pilot.search.yaml_document import parse_document

    point: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip()
        if not (name and equals and text.strip()):
            raise InputError(f"{word!r}: expected name=value, as in learning_rate=1e-3")
        if name in point:
            raise InputError(f"{name} is given twice")
        document = parse_document(text, word)
        if document.problems:
            raise InputError(f"{word!r}: {document.problems[0].message}")
        if isinstance(document.value, dict | list):
            raise InputError(f"{word!r}: a parameter has one value, not {show(document.value)}")
        point[name] = document.value
    return point
