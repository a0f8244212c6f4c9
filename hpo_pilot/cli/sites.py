"""Site profiles: listed, shown, checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpo_pilot.cli.columns import Column, print_columns
from hpo_pilot.cli.completion import complete_site
from hpo_pilot.cli.options import JsonOption
from hpo_pilot.cli.show import console, dump, printable

if TYPE_CHECKING:
    from hpo_pilot.jobs.site_profile import SiteProfile


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(name="sites", help="Site profiles: what machines offer.", invoke_without_command=True)
    group.callback()(list_sites)
    group.command("show")(show)
    group.command("check")(check)
    app.add_typer(group)


def look_first_in(folder: Path) -> None:
    """Has this process, and what it starts, look for profiles in a folder before all others.

    Raises:
        InputError: there is no such folder.
    """
    from hpo_pilot.config.site_folders import SITES_VARIABLE
    from hpo_pilot.errors import InputError

    if not folder.is_dir():
        raise InputError(f"--sites {folder}: there is no such folder")
    named = [str(folder.resolve()), os.environ.get(SITES_VARIABLE, "")]
    os.environ[SITES_VARIABLE] = os.pathsep.join(name for name in named if name)


def list_sites(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the site profiles that are known here."""
    from hpo_pilot.config.site_file import SiteFileError, load_site, site_files

    if context.invoked_subcommand is not None:
        return
    files = site_files()
    profiles: dict[str, SiteProfile | None] = {}
    for name, path in files.items():
        try:
            profiles[name] = load_site(path)
        except SiteFileError as error:
            profiles[name] = None
            typer.echo(f"hpo-pilot: {error}", err=True)
    if as_json:
        sound = {name: profile for name, profile in profiles.items() if profile is not None}
        dump([{**profile.model_dump(mode="json"), "file": str(files[name])} for name, profile in sound.items()])
        return
    table = [
        Column("site"),
        Column("node", least=16),
        Column("batch", rank=1),
        Column("launcher", rank=2),
        Column("file", rank=3, least=12, tail=True),
    ]
    for name, profile in profiles.items():
        cells = [name, "its file is wrong", "", "", str(files[name])]
        if profile is not None:
            cells[1:4] = _node(profile), profile.batch.system, profile.launcher.name
        for column, cell in zip(table, cells, strict=True):
            column.cells.append(printable(cell))
    print_columns(console(), table)


def _node(profile: SiteProfile) -> str:
    node = profile.node
    gpus = f"{node.gpus.count} x {node.gpus.model or node.gpus.kind}" if node.gpus is not None else None
    parts = [
        f"{node.cores} cores" if node.cores else None,
        f"{node.memory_mb / 1000:g} GB" if node.memory_mb else None,
        gpus,
        node.architecture,
    ]
    shape = ", ".join(part for part in parts if part) or "not said"
    return f"{node.count} nodes: {shape}" if node.count else shape


def show(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The profile's name.", show_default=False, autocompletion=complete_site),
    ],
    as_json: JsonOption = False,
) -> None:
    """Print a profile: its file as it stands, or as JSON with all defaults."""
    from hpo_pilot.config.site_file import find_site, site_files

    profile = find_site(name)
    path = site_files()[name]
    if as_json:
        dump({**profile.model_dump(mode="json"), "file": str(path)})
        return
    typer.echo(f"# {path}")
    typer.echo(path.read_text(encoding="utf-8-sig"), nl=False)


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A site file (YAML).", show_default=False)],
) -> None:
    """Check a site file; every mistake is reported with its place."""
    from hpo_pilot.config.site_file import load_site

    profile = load_site(file)
    typer.echo(f"{file}: site {profile.name!r} is valid: {_node(profile)}; {profile.batch.system}")
