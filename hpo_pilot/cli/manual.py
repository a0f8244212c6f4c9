"""The command that shows the manual: for machines without a browser or a network."""

from __future__ import annotations

from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(manual)


def manual(
    page: Annotated[str | None, typer.Argument(help="Which page; none: lists them.", show_default=False)] = None,
) -> None:
    """Read the manual here: quick start, how-tos, reference. The monitor has it too, at /help."""
    from rich.console import Console
    from rich.markdown import Markdown

    from hpo_pilot.manual import PAGES, page_named

    console = Console()
    if page is None:
        width = max(len(one.name) for one in PAGES)
        for one in PAGES:
            typer.echo(f"{one.name:{width}}  {one.title}")
        typer.echo("Read one: hpo-pilot manual NAME")
        return
    text = page_named(page.removesuffix(".md")).text()
    if not console.is_terminal:
        typer.echo(text, nl=False)
        return
    with console.pager(styles=True):
        console.print(Markdown(text))
