"""Searches of other tools: import."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hpo_pilot.cli.options import JsonOption
from hpo_pilot.cli.show import dump


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("import")(import_file)


def import_file(
    tool: Annotated[str, typer.Argument(metavar="hpogrid|phpo|idds", help="The tool.", show_default=False)],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE | -- phpo …",
            help="Its file: a project, a --loadJson file, a file with a phpo command, a request; or that command.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The search file; default: printed.", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option(help="The search's name.", show_default=False)] = None,
    command: Annotated[
        str | None, typer.Option(help="payload.command, where the file says none or another is wanted.")
    ] = None,
    files: Annotated[
        Path | None, typer.Option(help="payload.files, where the file says none or another is wanted.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a search file of another tool's; what is not carried over is said, with the reason."""
    from hpo_pilot.cli.files import write_text
    from hpo_pilot.config.foreign import ImportOptions, import_search
    from hpo_pilot.errors import InputError

    path, arguments = _source(words or [])
    if output is not None and path is not None and output.resolve() == path.resolve():
        raise InputError(f"-o {output} is the file that is imported: it would be lost")
    folder = Path() if output is None else output.parent
    imported = import_search(tool, path, ImportOptions(folder, name, command, files), arguments)
    if output is not None:
        write_text(output, imported.text)
    if as_json:
        warnings = [asdict(warning) for warning in imported.warnings]
        dump({"search": imported.search.to_dict(), "warnings": warnings, "text": imported.text})
    elif output is None:
        typer.echo(imported.text, nl=False)
    for warning in imported.warnings:
        typer.echo(f"hpo-pilot: not carried over: {warning}", err=True)
    if output is not None and not as_json:
        typer.echo(f"{output}: search {imported.search.name!r}; `hpo-pilot validate {output}` checks its payload too")


def _source(words: list[str]) -> tuple[Path | None, list[str]]:
    """The file among the words, and the words of a command."""
    if words and not words[0].startswith("-") and Path(words[0]).name != "phpo":
        return Path(words[0]), words[1:]
    return None, words
