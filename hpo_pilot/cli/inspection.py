"""Commands that look at searches: list, status, trials, best, report, export."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hpo_pilot.cli.options import IdArgument, JsonOption, StoreOption, WorkDirOption, open_search, open_store

if TYPE_CHECKING:
    from hpo_pilot.search import Trial
    from hpo_pilot.store import SearchRecord, Store


class ExportFormat(StrEnum):
    """What `export` writes."""

    CSV = "csv"  #: one row a trial
    JSON = "json"  #: the search and its trials, folds included


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("list")(list_searches)
    app.command()(status)
    app.command()(trials)
    app.command()(best)
    app.command()(report)
    app.command()(export)


def _console() -> Console:
    return Console(soft_wrap=not sys.stdout.isatty(), highlight=False)


def _dump(document: Any) -> None:
    typer.echo(json.dumps(document, indent=1, ensure_ascii=False))


def list_searches(as_json: JsonOption = False, workdir: WorkDirOption = None, store: StoreOption = None) -> None:
    """List the searches of the store."""
    from hpo_pilot.cli.documents import search_document
    from hpo_pilot.cli.progress import value_text
    from hpo_pilot.report import best_trial

    with open_store(workdir, store) as (opened, _):
        rows = [
            (record, opened.counts(record.id), best_trial(record.search, opened.trials(record.id)))
            for record in opened.searches()
        ]
    if as_json:
        _dump([search_document(*row) for row in rows])
        return
    table = Table("ID", "search", "state", "trials", "best", box=None, pad_edge=False)
    for record, counts, found in rows:
        over = sum(count for state, count in counts.items() if state.is_over)
        value = value_text(found) if found else "-"
        table.add_row(str(record.id), record.name, record.state.value, f"{over}/{record.search.budget.trials}", value)
    _console().print(table)


def status(
    identity: IdArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it until the search is over.")] = False,
    as_json: JsonOption = False,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Show how a search stands."""
    from hpo_pilot.cli.progress import RunProgress

    with open_search(identity, workdir, store) as (opened, _, record):
        if watch and not as_json:
            progress = RunProgress(_console())
            try:
                while not (now := opened.search(record.id)).state.is_over:
                    progress(opened, now)
                    time.sleep(0.5)
                progress(opened, now)
            finally:
                progress.close()
        _show_status(opened, opened.search(record.id), as_json)


def _show_status(opened: Store, record: SearchRecord, as_json: bool) -> None:
    from hpo_pilot.cli.documents import search_document, time_text
    from hpo_pilot.cli.progress import value_text
    from hpo_pilot.report import best_trial

    counts, found = opened.counts(record.id), best_trial(record.search, opened.trials(record.id))
    seconds = opened.job_seconds(record.id)
    if as_json:
        gpu_hours = seconds * record.search.resources.gpus / 3600
        _dump({**search_document(record, counts, found), "job_seconds": seconds, "gpu_hours": gpu_hours})
        return
    over = sum(count for state, count in counts.items() if state.is_over)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("search", f"{record.name} (number {record.id})")
    table.add_row("state", record.state.value + (f": {record.message}" if record.message else ""))
    detail = ", ".join(f"{count} {state.value}" for state, count in sorted(counts.items()))
    table.add_row("trials", f"{over} of {record.search.budget.trials} over ({detail or 'none yet'})")
    if found:
        table.add_row("best", f"trial {found.number}: {record.search.objective.metric} {value_text(found)}")
        table.add_row("point", json.dumps(found.point))
    table.add_row("job time", f"{seconds:.0f} s")
    table.add_row("started", time_text(record.started) or "-")
    table.add_row("ended", time_text(record.ended) or "-")
    _console().print(table)


def trials(
    identity: IdArgument,
    log: Annotated[bool, typer.Option("--log", help="Print the whole log tails of failed folds too.")] = False,
    as_json: JsonOption = False,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """List a search's trials; of failed ones the reason and the end of the log."""
    from hpo_pilot.cli.documents import trial_document

    with open_search(identity, workdir, store) as (opened, _, record):
        found = opened.trials(record.id)
    if as_json:
        _dump([trial_document(trial) for trial in found])
        return
    if not found:
        typer.echo(f"search {record.name!r} has no trials yet")
        return
    _console().print(_trials_table(record, found))
    for trial in found:
        _show_failures(trial, whole=log)


def _trials_table(record: SearchRecord, found: list[Trial]) -> Table:
    from hpo_pilot.cli.progress import value_text

    names = record.search.space.names
    table = Table("trial", "state", record.search.objective.metric, *names, box=None, pad_edge=False)
    for trial in found:
        point = [_cell(trial.point[name]) if name in trial.point else "" for name in names]
        again = f" (= {trial.confirms})" if trial.confirms else ""
        table.add_row(f"{trial.number}{again}", trial.state.value, value_text(trial), *point)
    return table


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else json.dumps(value).strip('"')


def _show_failures(trial: Trial, *, whole: bool) -> None:
    if not trial.error:
        return
    typer.echo(f"\ntrial {trial.number} {trial.state.value}: {_printable(trial.error)}")
    for fold in trial.folds:
        lines = _printable(fold.log_tail or "").strip().splitlines()
        for line in lines if whole else lines[-5:]:
            typer.echo(f"  fold {fold.fold} | {line}")


def _printable(text: str) -> str:
    """`text` without control characters: a payload's log must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def best(
    identity: IdArgument, as_json: JsonOption = False, workdir: WorkDirOption = None, store: StoreOption = None
) -> None:
    """Print the best trial."""
    from hpo_pilot.cli.documents import trial_document
    from hpo_pilot.cli.progress import value_text
    from hpo_pilot.report import best_trial

    with open_search(identity, workdir, store) as (opened, _, record):
        found = best_trial(record.search, opened.trials(record.id))
    if found is None:
        typer.echo(f"search {record.name!r} has no finished trial yet", err=True)
        raise typer.Exit(1)
    if as_json:
        _dump(trial_document(found))
        return
    typer.echo(f"trial {found.number}: {record.search.objective.metric} {value_text(found)}")
    for name, value in found.point.items():
        typer.echo(f"  {name}: {json.dumps(value)}")


def report(
    identity: IdArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The HTML file; default: in the work folder.", show_default=False),
    ] = None,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Write the report: one self-contained HTML file."""
    from hpo_pilot.cli.files import write_text
    from hpo_pilot.service.run import render

    with open_search(identity, workdir, store) as (opened, folder, record):
        path = output or folder.report(record.name)
        write_text(path, render(opened, record, opened.trials(record.id)))
    typer.echo(str(path))


def export(
    identity: IdArgument,
    form: Annotated[ExportFormat, typer.Option("--format", help="What to write.")] = ExportFormat.CSV,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; default: standard output.", show_default=False)
    ] = None,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Export a search's trials."""
    from hpo_pilot.cli.documents import trial_document
    from hpo_pilot.cli.files import write_text

    with open_search(identity, workdir, store) as (opened, _, record):
        found = opened.trials(record.id)
    if form is ExportFormat.CSV:
        text = _as_csv(record, found)
    else:
        document = {"search": record.search.to_dict(), "trials": [trial_document(trial) for trial in found]}
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)


def _as_csv(record: SearchRecord, found: list[Trial]) -> str:
    from hpo_pilot.cli.documents import time_text

    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    names, folds = record.search.space.names, range(record.search.folds.k)
    head = ["number", "generation", "state", "value", "std"]
    writer.writerow([*head, *names, *(f"fold_{fold}" for fold in folds), "error", "submitted", "started", "ended"])
    for trial in found:
        values = {fold.fold: fold.value for fold in trial.folds}
        writer.writerow(
            [
                *(trial.number, trial.generation, trial.state.value, _csv(trial.value), _csv(trial.std)),
                *(_csv(trial.point.get(name)) for name in names),
                *(_csv(values.get(fold)) for fold in folds),
                trial.error or "",
                *(time_text(when) or "" for when in (trial.submitted, trial.started, trial.ended)),
            ]
        )
    return buffer.getvalue()


def _csv(value: Any) -> Any:
    """A value as one cell; a text that a spreadsheet would run as a formula is quoted."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return "'" + value
    return repr(value) if isinstance(value, float) else value
