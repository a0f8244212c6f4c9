"""The figures of a report as files: what `hpo-pilot report --figures` does."""

from __future__ import annotations

from pathlib import Path

import typer

from hpo_pilot.client.search_client import SearchClient


def write_report_figures(client: SearchClient, identity: str, form: str, folder: Path | None) -> None:
    """Writes each figure of a search into a folder, by default beside its report, and prints their paths.

    Raises:
        InputError: the form, the folder or the search is wrong, or what draws is missing; and what the client raises.
        GiveUpError: the browser does not draw.
    """
    from hpo_pilot.client.subjects import subject_of
    from hpo_pilot.figures.catalogue import build, kinds
    from hpo_pilot.report.figure_files import check_form, write_figures

    check_form(form)
    subject = subject_of(client, identity)
    figures = [figure for kind in kinds(subject.search) for figure in build(kind.key, subject)]
    if not figures:
        typer.echo(f"search {subject.search.name!r} has nothing to draw yet", err=True)
        raise typer.Exit(1)
    report = client.report_path(subject.search.name)
    for path in write_figures(figures, folder or report.with_name(f"{report.stem}-figures"), form):
        typer.echo(str(path))
