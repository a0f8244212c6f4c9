"""Searches of other tools: import, and what `export` writes for them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpo_pilot.cli.options import JsonOption
from hpo_pilot.cli.show import dump

if TYPE_CHECKING:
    from hpo_pilot.client.search_client import SearchClient

#: What `export` writes that is a search of another tool, not its results.
CONFIGURATIONS = ("hpogrid", "phpo", "idds")


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


def export_configuration(client: SearchClient, identity: str, form: str, output: Path | None) -> None:
    """Writes a search, from a search file or the store, as another tool has it."""
    from hpo_pilot.cli.files import write_text
    from hpo_pilot.config import load_search
    from hpo_pilot.config.foreign import ExportOptions, export_search
    from hpo_pilot.search import Search
    from hpo_pilot.search.limits import stored
    from hpo_pilot.service.nickname import nickname

    results: list[tuple[dict[str, object], float | None]] = []
    if Path(identity).is_file() or Path(identity).suffix in (".yaml", ".yml"):
        search = load_search(identity)
    else:
        search = stored(Search, client.status(identity)["definition"])
        trials = client.trials(identity, logs=False)
        values = [(trial["point"], trial["value"]) for trial in trials]
        results = [(point, value) for point, value in values if isinstance(value, int | float)]
    stem = search.name if output is None else output.stem
    exported = export_search(form, search, ExportOptions(stem=stem, owner=nickname(), results=results))
    if output is None:
        typer.echo(exported.text, nl=False)
        for companion in exported.companions:
            exported.warn(companion, "is a file of its own: give -o FILE, and it is written beside that")
    else:
        write_text(output, exported.text)
        for companion, text in exported.companions.items():
            write_text(output.with_name(companion), text)
            typer.echo(str(output.with_name(companion)))
    for warning in exported.warnings:
        typer.echo(f"hpo-pilot: not carried over: {warning}", err=True)
