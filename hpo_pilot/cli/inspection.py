"""Commands that show searches: list, status, trials, best, log, logs, report, export."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from hpo_pilot.advice import printable
from hpo_pilot.cli.options import MOST_NUMBER, IdArgument, JsonOption, argument, on_client, option
from hpo_pilot.cli.output import (
    DIGITS,
    Column,
    add_row,
    advised,
    console,
    dump,
    dump_each,
    metrics_of,
    next_step,
    outlook_rows,
    print_columns,
    print_fitting,
    print_rows,
    write_text,
)
from hpo_pilot.errors import InputError
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.operations.families import family_document
from hpo_pilot.report.documents import SearchDocument, StatusDocument, is_unsteered
from hpo_pilot.report.exports import TEXT_FORMS, export_mlflow
from hpo_pilot.report.formatting import (
    NOTHING,
    NOTHING_BEYOND,
    best_text,
    count,
    duration,
    figures,
    front_text,
    gain_text,
    number,
    ranked_text,
    scalar,
    stop_text,
    when,
    whole,
)
from hpo_pilot.report.summary import kind_of
from hpo_pilot.report.trial_documents import TrialDocument, time_of

#: Mark of searches in `list` that are not over and that no process steers.
_UNSTEERED = "not steered"

_NOTHING_BEYOND = f"{NOTHING_BEYOND}: the hypervolume is 0"

#: The formats of `export`.
EXPORTS = (*TEXT_FORMS, "mlflow")


#: Searches on a page of `list`.
_PAGE = 50


@on_client
def list_searches(
    client: SearchClient,
    text: Annotated[str, typer.Option(metavar="TEXT", help="Only with TEXT in the name, note or a tag.")] = "",
    owner: Annotated[str, typer.Option(metavar="NAME", help="Only searches of this owner.")] = "",
    tag: Annotated[str, typer.Option(metavar="TAG", help="Only with this tag.")] = "",
    state: Annotated[str, typer.Option(metavar="STATE", help="Only in this state; or active, or over.")] = "",
    page: Annotated[
        int | None,
        option(
            metavar="N",
            min=1,
            max=MOST_NUMBER,
            help=f"The page, of {_PAGE} searches; 1 has the newest. Default: 1; with --json: all of them.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the searches of the store."""
    number = page or 1
    if as_json:
        dump(client.searches(text, owner, tag, state, _PAGE if page else 0, number))
        return
    found = client.searches(text, owner, tag, state, _PAGE, number, costs=False)
    if not found and (number > 1 or text or owner or tag or state):
        typer.echo("no search matches" if number == 1 else f"there is no page {number}")
        return
    if not found:
        text = "there is no search yet: `hpo-pilot submit FILE` registers one, `hpo-pilot run FILE` runs it here"
        typer.echo(advised(text))
        return
    table = _searches_table()
    shown: set[str] = set()
    for search in found:
        if (family := search["family"]) is not None:
            if family in shown:
                continue
            shown.add(family)
            members = [other for other in found if other["family"] == family]
            _add_search(table, family_document(family, members))
            for member in members:
                _add_search(table, member, indent="  ")
        else:
            _add_search(table, search)
    _print_searches(table)
    if len(found) == _PAGE:
        typer.echo(f"older searches, if there are any: --page {number + 1}")
    _say_unsteered(client, found)


def _say_unsteered(client: SearchClient, found: Sequence[SearchDocument]) -> None:
    """Prints how to steer the searches that no process steers."""
    unsteered = [search for search in found if is_unsteered(search)]
    if unsteered:
        which, newest = count(len(unsteered), "search", "searches"), unsteered[-1]["name"]
        said = f"nothing steers {which} now ({_UNSTEERED}). Of {newest!r}: {client.how_to_steer(newest)}"
        typer.echo(advised(said))


def _print_searches(table: Sequence[Column]) -> None:
    """Prints a table of searches; without tags it has no column for them."""
    print_columns(console(), [column for column in table if column.head != "tags" or any(column.cells)])


def _searches_table() -> list[Column]:
    return [
        Column("ID"),
        Column("search", least=12),
        Column("owner", rank=2, least=6),
        Column("state"),
        Column("trials", rank=1),
        Column("best", rank=1),
        Column("tags", rank=2),
    ]


def _add_search(table: list[Column], search: SearchDocument, indent: str = "") -> None:
    value = ranked_text(search["best"], DIGITS) if search["best"] else NOTHING
    if front := search.get("front"):
        value = front_text(len(front["trials"]), front["hypervolume"])
    progress = f"{whole(search['over'])}/{whole(search['planned'])}"
    identity = "" if "segments" in search else str(search["id"])
    state = f"{search['state']} ({_UNSTEERED})" if is_unsteered(search) else search["state"]
    tags = ", ".join(search.get("tags", ()))
    add_row(table, (identity, indent + search["name"], search["owner"], state, progress, value, tags))


@on_client
def status(
    client: SearchClient,
    identity: IdArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Show it until the search is over.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a search."""
    from hpo_pilot.cli.progress import RunProgress, can_watch, watch_search

    if watch and not as_json and can_watch(console()):
        watch_search(client, identity, console())
    elif watch and not as_json:
        progress = RunProgress(console(), client)
        try:
            for now in client.watch(identity):
                progress(now)
        finally:
            progress.close()
    found = client.status(identity)
    if as_json:
        dump(found)
    elif "segments" in found:
        table = _searches_table()
        for search in (found, *found["segments"]):
            _add_search(table, search)
        _print_searches(table)
        _say_unsteered(client, found["segments"])
    else:
        print_rows(_status_rows(client, found))


def _status_rows(client: SearchClient, search: StatusDocument) -> Iterator[tuple[str, str]]:
    yield "search", f"{search['name']} (number {search['id']})"
    yield "owner", search["owner"]
    if search.get("tags"):
        yield "tags", ", ".join(search["tags"])
    if search.get("note"):
        yield "note", search["note"]
    message = f": {advised(search['message'])}" if search["message"] else ""
    yield "state", search["state"] + message
    counts, levels = dict(search["trials"]), search.get("levels") or []
    if paused := sum(level["paused"] for level in levels):
        counts |= {"finished": counts["finished"] - paused, "paused": paused}
    detail = ", ".join(f"{whole(n)} {state}" for state, n in counts.items() if n)
    if again := search.get("confirmations"):
        detail += f"; {whole(again)} of them {'confirms' if again == 1 else 'confirm'} others"
    yield "trials", f"{whole(search['over'])} of {whole(search['planned'])} over ({detail or 'none yet'})"
    if levels:
        name, limit = _level_name(search), search["budget"].get("fidelity")
        for level in levels:
            said = f"{count(level['trials'], 'trial')}, {whole(level['finished'])} finished"
            said += f", {whole(level['paused'])} of them paused" if level["paused"] else ""
            yield f"{name} {level['level']:g}", f"{said}; {duration(level['job_seconds'])} of jobs"
        said = f"{sum(level['trained'] for level in levels):g}" + (f" of {limit:g}" if limit is not None else "")
        yield f"sum of {name}", said
    if found := search["best"]:
        yield "best", _best_line(search, found)
        yield "point", json.dumps(found["point"])
    if front := search.get("front"):
        text = front_text(len(front["trials"]), front["hypervolume"])
        yield "front", f"{text}: {', '.join(map(str, front['trials']))}"
        names = zip(metrics_of(search), front["reference"], strict=True)
        yield "reference", ", ".join(f"{name} {number(value, DIGITS)}" for name, value in names)
        if not front["hypervolume"]:
            yield "", _NOTHING_BEYOND
    yield "job time", duration(search["job_seconds"])
    if gain := search.get("gain"):
        yield "gain", gain_text(gain, metrics_of(search)[0])
    yield "started", when(time_of(search["started"]))
    yield "ended", when(time_of(search["ended"]))
    yield from outlook_rows(search)
    if step := next_step(client, search):
        yield "next", advised(step)


@on_client
def trials(
    client: SearchClient,
    identity: IdArgument,
    where: Annotated[
        str, typer.Option("--where", metavar="EXPR", help="Only these trials: 'loss < 0.1 and layers == 2'.")
    ] = "",
    log: Annotated[bool, typer.Option("--log", help="Also print the whole log tails of failed folds.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the trials of a search, with reason and log tail of each failed one."""
    if as_json:
        dump_each(client.trials(identity, where=where))
        return
    found = []
    for trial in client.trials(identity, where=where):
        if not trial["error"]:
            trial["folds"] = []  # only failed trials show their folds
        found.append(trial)
    search = client.status(identity)
    if not found:
        typer.echo(f"search {search['name']!r} has no {'such trials' if where else 'trials yet'}")
        return
    _print_trials(search, found)
    for alike in _by_reason(found, whole=log):
        _show_failures(alike, whole=log)


def _level_name(search: StatusDocument) -> str:
    """Returns the name of the levels of the training, as epochs; empty: there are none."""
    return next(iter(search["definition"].get("fidelity", ())), "")


def _best_line(search: StatusDocument, best: TrialDocument) -> str:
    at = f", {_level_name(search)} {best['level']:g}" if "level" in best else ""
    return f"trial {best['number']}{at}: {metrics_of(search)[0]} {best_text(best, DIGITS)}"


def _print_trials(search: StatusDocument, found: Sequence[TrialDocument]) -> None:
    left_out = print_fitting(console(), lambda digits: _trials_table(search, found, digits))
    if left_out:
        typer.echo(f"not shown: {', '.join(left_out)}; a wider terminal, a pipe or --json has all")


def _trials_table(search: StatusDocument, found: Sequence[TrialDocument], digits: int) -> list[Column]:
    names, metrics = list(search["definition"]["space"]), metrics_of(search)
    level = [name] if (name := _level_name(search)) else []
    # Parameters are left out where there is no room.
    table = [Column(head) for head in ("trial", "state", *level, *metrics)] + [Column(name, rank=1) for name in names]
    for trial in found:
        point = [scalar(trial["point"][name], min(digits, 5)) if name in trial["point"] else "" for name in names]
        repeats = trial["confirms"] or trial.get("retries")
        again = f" (= {repeats})" if repeats else f" (after {before})" if (before := trial.get("continues")) else ""
        reached = [number(trial["level"], digits)] if level and "level" in trial else []
        values = figures(trial["value"], trial["std"], len(metrics), digits)
        add_row(table, (f"{trial['number']}{again}", _state(trial, digits), *reached, *values, *point))
    return table


def _state(trial: TrialDocument, digits: int) -> str:
    if (stop := trial["stopped"]) is None:
        return trial["state"]
    return stop_text(stop["step"], stop["value"], min(digits, 5))


def _by_reason(found: Iterable[TrialDocument], *, whole: bool) -> list[list[TrialDocument]]:
    """Returns the trials that failed or were stopped, in lists of one kind each; `whole`: in lists of one trial."""
    reasons: dict[tuple[str, str, int], list[TrialDocument]] = {}
    for trial in found:
        if trial["error"] and not trial["stopped"]:
            reasons.setdefault((trial["state"], kind_of(trial["error"]), trial["number"] * whole), []).append(trial)
    return list(reasons.values())


def _ranges(numbers: Iterable[int]) -> str:
    """Returns rising numbers in words: 1-3, 5."""
    runs: list[list[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1][1:] = [each]
        else:
            runs.append([each])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _show_failures(alike: Sequence[TrialDocument], *, whole: bool) -> None:
    """Prints the reason of trials, and the end of the first one's logs."""
    trial, *others = alike
    heading = f"trials {_ranges(each['number'] for each in alike)}" if others else f"trial {trial['number']}"
    typer.echo(f"\n{heading} {trial['state']}: {printable(trial['error'] or '')}")
    for fold in trial["folds"]:
        lines = printable((fold["error"] and fold.get("log_tail")) or "").strip().splitlines()
        for line in lines if whole else lines[-5:]:
            typer.echo(f"  fold {fold['fold']} | {line}")


@on_client
def best(client: SearchClient, identity: IdArgument, as_json: JsonOption = False) -> None:
    """Print the best trial, and the one that a model of all results recommends; of several objectives the front."""
    found = client.best(identity)
    recommended = None
    if found is not None and not isinstance(found, list):
        recommended = found["recommended"] = client.recommend(identity)
    if found is not None and as_json:
        dump(found)
        return
    search = client.status(identity)
    if found is None:
        typer.echo(f"search {search['name']!r} has no finished trial", err=True)
        raise typer.Exit(1)
    if isinstance(found, list):
        _print_trials(search, found)
        for trial in found:
            if "confirmed" in trial:
                typer.echo(f"trial {trial['number']}: {best_text(trial, DIGITS)}")
        if (front := search.get("front")) and not front["hypervolume"]:
            typer.echo(_NOTHING_BEYOND)
        return
    typer.echo(_best_line(search, found))
    for name, value in found["point"].items():
        typer.echo(f"  {name}: {json.dumps(value)}")
    for remark in found.get("remarks", ()):
        typer.echo(printable(remark))
    if recommended is None:
        return
    if recommended["error"] is None:
        typer.echo(f"no model recommends another: {recommended['reason']}")
        return
    figures = f"{number(recommended['value'], 4)} ± {number(recommended['error'], 2)}"
    typer.echo(f"recommended: trial {recommended['number']}, by a model of all results: {figures} without noise")
    for name, value in recommended["point"].items() if recommended["number"] != found["number"] else ():
        typer.echo(f"  {name}: {json.dumps(value)}")


@on_client
def log(client: SearchClient, identity: IdArgument, as_json: JsonOption = False) -> None:
    """Show the events of a search: time, user and action."""
    events = client.events(identity)
    if as_json:
        dump(events)
        return
    print_rows((event["time"] or "", event["who"], event["what"]) for event in events)


@on_client
def logs(
    client: SearchClient,
    identity: IdArgument,
    number: Annotated[int, argument(metavar="TRIAL", min=1, max=MOST_NUMBER, help="The number of the trial.")],
    fold: Annotated[int | None, option(min=0, max=MOST_NUMBER, help="Only this fold.")] = None,
) -> None:
    """Print the end of the log of a trial's payload: 64 KB of a failed fold, 2000 characters of a finished one."""
    trial = client.trial(identity, number)
    kept = {each["fold"]: each.get("log_tail") for each in trial["folds"] if fold in (None, each["fold"])}
    found = {number: text for number, text in kept.items() if text}
    if not found:
        which = f"trial {number}" if fold is None else f"fold {fold} of trial {number}"
        raise InputError(
            f"there is no log of {which} ({trial['state']}): its payload printed nothing, or its job was killed; the "
            "pages of `hpo-pilot monitor` have the logs of killed jobs"
        )
    for place, text in found.items():
        if len(trial["folds"]) > 1:
            typer.echo(f"--- fold {place} ---")
        typer.echo(printable(text).rstrip("\n"))


@on_client
def report(
    client: SearchClient,
    identity: IdArgument,
    output: Annotated[
        Path | None,
        option("--output", "-o", help="The HTML file, or the folder for figures; default: in the work folder."),
    ] = None,
    figures: Annotated[
        str | None,
        option("--figures", metavar="pdf|png", help="Write each figure as a file instead; needs a Chrome or Chromium."),
    ] = None,
) -> None:
    """Write the report: one self-contained HTML file."""
    if figures is not None:
        write_report_figures(client, identity, figures, output)
        return
    text = client.report(identity)
    path = output or client.report_path(client.status(identity)["name"])
    write_text(path, text)
    typer.echo(str(path))


@on_client
def export(
    client: SearchClient,
    identity: IdArgument,
    form: Annotated[str, typer.Option("--format", help=f"One of {', '.join(EXPORTS)}.")] = "csv",
    output: Annotated[
        Path | None,
        option("--output", "-o", help="A file; default: standard output. mlflow: a database, such as runs.db."),
    ] = None,
) -> None:
    """Export a search and its trials to another format."""
    if form == "mlflow":
        typer.echo(export_mlflow(client, identity, output))
        return
    if form not in TEXT_FORMS:
        raise InputError(f"there is no export to {form!r}; there is {', '.join(EXPORTS)}")
    parts = client.export(identity, form)
    if output is not None:
        write_text(output, parts)
        return
    for part in parts:
        typer.echo(part, nl=False)


def write_report_figures(client: SearchClient, identity: str, form: str, folder: Path | None) -> None:
    """Writes each figure of a search into a folder, by default beside its report, and prints their paths.

    Raises:
        InputError: the form, the folder or the search is wrong, or what draws is missing; and what the client raises.
        GiveUpError: the browser does not draw.
    """
    from hpo_pilot.operations.notebook import figure_data_of
    from hpo_pilot.report.catalogue import build, kinds
    from hpo_pilot.report.figure_files import check_figure_format, write_figures

    check_figure_format(form)
    subject = figure_data_of(client, identity)
    figures = [figure for kind in kinds(subject.search) for figure in build(kind.key, subject)]
    if not figures:
        typer.echo(f"search {subject.search.name!r} has nothing to draw yet", err=True)
        raise typer.Exit(1)
    report = client.report_path(subject.search.name)
    for path in write_figures(figures, folder or report.with_name(f"{report.stem}-figures"), form):
        typer.echo(str(path))
