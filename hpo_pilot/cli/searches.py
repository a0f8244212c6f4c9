"""Commands that take a search file: validate, run, submit."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hpo_pilot.cli.options import FileArgument, JsonOption, SlotsOption, StoreOption, WorkDirOption

if TYPE_CHECKING:
    from hpo_pilot.service.run import RunResult


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(validate)
    app.command()(run)
    app.command()(submit)


def validate(file: FileArgument, as_json: JsonOption = False) -> None:
    """Check a search file; every mistake is reported with its place."""
    from hpo_pilot.config import SearchFileError, examine

    found = examine(file)
    search = found.search
    if as_json:
        document = {
            "valid": search is not None,
            "problems": [asdict(problem) for problem in found.problems],
            "notes": [asdict(note) for note in found.notes],
            "search": None if search is None else search.to_dict(),
        }
        typer.echo(json.dumps(document, indent=1))
    if search is None:
        if as_json:
            raise typer.Exit(SearchFileError.exit_code)
        raise SearchFileError(found.problems)
    if not as_json:
        for note in found.notes:
            typer.echo(f"note: {note}")
        jobs = search.budget.trials * search.folds.k
        typer.echo(
            f"{file}: search {search.name!r} is valid: {len(search.space.names)} parameters, {search.optimizer.name}, "
            f"{search.budget.trials} trials x {search.folds.k} folds = {jobs} jobs"
        )


def run(
    file: FileArgument,
    slots: SlotsOption = None,
    as_json: JsonOption = False,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Run a whole search on this machine, with a report at the end; goes on where it was interrupted."""
    from hpo_pilot.cli.progress import RunProgress
    from hpo_pilot.service.run import run as run_search

    progress = RunProgress(Console(stderr=True) if as_json else Console())
    try:
        result = run_search(file, workdir, store=store, slots=slots, on_progress=progress)
    finally:
        progress.close()
    _show(result, as_json)
    if result.best is None:
        raise typer.Exit(1)


def _show(result: RunResult, as_json: bool) -> None:
    from hpo_pilot.cli.documents import search_document
    from hpo_pilot.cli.progress import value_text
    from hpo_pilot.search import TrialState

    record, best = result.record, result.best
    counts = {state: sum(1 for t in result.trials if t.state is state) for state in TrialState}
    if as_json:
        document = search_document(record, {state: n for state, n in counts.items() if n}, best)
        typer.echo(json.dumps({**document, "report": str(result.report)}, indent=1))
        return
    failed = f", {counts[TrialState.FAILED]} failed" if counts[TrialState.FAILED] else ""
    typer.echo(f"search {record.name!r} is {record.state.value}: {len(result.trials)} trials{failed}")
    if record.message:
        typer.echo(f"  {record.message}")
    if best is not None:
        typer.echo(f"  best: trial {best.number}, {record.search.objective.metric} {value_text(best)}")
        for name, value in best.point.items():
            typer.echo(f"    {name}: {json.dumps(value)}")
    typer.echo(f"  report: {_shortest(result.report)}")


def _shortest(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def submit(
    file: FileArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the task parameters of the first generation; register nothing.")
    ] = False,
    as_json: JsonOption = False,
    workdir: WorkDirOption = None,
    store: StoreOption = None,
) -> None:
    """Register a search for the service (`hpo-pilot serve`) to run."""
    from hpo_pilot.service.registration import register
    from hpo_pilot.service.rehearsal import first_task
    from hpo_pilot.service.workdir import WorkDir
    from hpo_pilot.store import Store

    if dry_run:
        typer.echo(json.dumps(first_task(file), indent=1))
        return
    folder = WorkDir.make(workdir)
    opened = Store.open(folder.store_url(store))
    try:
        record = register(opened, folder, file, go_on=False)
    finally:
        opened.close()
    if as_json:
        typer.echo(json.dumps({"id": record.id, "name": record.name, "state": record.state.value}, indent=1))
    else:
        typer.echo(f"search {record.name!r} is registered as number {record.id}; `hpo-pilot serve` runs it")
