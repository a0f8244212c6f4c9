"""The commands `import` and `steer`."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hpo_pilot.cli.options import MOST_NUMBER, JsonOption, argument, option
from hpo_pilot.cli.output import dump, write_text
from hpo_pilot.cli.searches import point_of
from hpo_pilot.errors import InputError


def import_file(
    tool: Annotated[str, argument(metavar="hpogrid|phpo|idds|wandb|katib", help="The tool.")],
    words: Annotated[
        list[str] | None,
        argument(
            metavar="FILE | -- phpo …",
            help="Its file: a project, a --loadJson file, a file with a phpo command, a request, a sweep, an "
            "experiment; or that command.",
        ),
    ] = None,
    output: Annotated[Path | None, option("--output", "-o", help="The search file; default: printed.")] = None,
    name: Annotated[str | None, option(help="The search's name.")] = None,
    command: Annotated[
        str | None, typer.Option(help="payload.command, if the file has none or you want another.")
    ] = None,
    files: Annotated[Path | None, typer.Option(help="payload.files, if the file has none or you want another.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Convert another tool's configuration to a search file; reports what cannot be converted, and why."""
    from hpo_pilot.migrate.draft import ImportOptions
    from hpo_pilot.migrate.importing import import_search

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
    """Returns the file in `words` (None: no file), and the words of a command."""
    if words and not words[0].startswith("-") and Path(words[0]).name != "phpo":
        return Path(words[0]), words[1:]
    return None, words


class Goal(StrEnum):
    """Which loss is better; `min` and `max` are hpogrid's words for it."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"
    MIN = "min"
    MAX = "max"

    @property
    def sign(self) -> int:
        """The factor that turns a loss into one to minimise."""
        return 1 if self in (Goal.MINIMIZE, Goal.MIN) else -1


def _limit(text: str) -> int | None:
    """Reads the value of %MAX_POINTS: a number, or None if the request has no limit."""
    if text == "None":
        return None
    try:
        limit = int(text)
    except ValueError:
        limit = -1
    if limit < 0:
        raise typer.BadParameter(f"{text!r} is not a number of points")
    return limit


def steer(
    count: Annotated[
        int, option(*("--n", "--n_point", "--num_points"), min=0, max=100_000, help="New points wanted (%NUM_POINTS).")
    ],
    limit: Annotated[
        int | None,
        option(
            *("--max", "--max_point", "--max_points"),
            parser=_limit,
            metavar="INTEGER",
            help="Points in the whole search (%MAX_POINTS), all segments together.",
        ),
    ] = None,
    infile: Annotated[
        Path | None, option("--infile", "--input", "-i", help="Points so far (%IN). Default: none.")
    ] = None,
    outfile: Annotated[
        Path | None, option("--outfile", "--output", "-o", help="New points (%OUT). Default: printed.")
    ] = None,
    optimizer: Annotated[
        str,
        typer.Option(
            "--optimizer", help="auto, bayesian, evolutionary, cma, random, grid, optuna, or that of another package."
        ),
    ] = "bayesian",
    settings: Annotated[
        list[str] | None, option("--set", metavar="NAME=VALUE", help="A setting of the optimizer.")
    ] = None,
    space: Annotated[
        Path | None, option(*("--space", "-s"), help="The search space; default: the opt_space of the points.")
    ] = None,
    goal: Annotated[Goal, typer.Option("--goal", "--mode", help="Which loss is better.")] = Goal.MINIMIZE,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_NUMBER, help="The same seed and points so far give the same new points.")
    ] = 0,
    per_segment: Annotated[
        bool, typer.Option("--per-segment", help="--n counts for each segment, not for all together.")
    ] = False,
) -> None:
    """Propose the next points of a phpo or iDDS task: reads %IN, writes %OUT, keeps no state."""
    from hpo_pilot.migrate.steer import SteeringCall, next_points, read_points

    if outfile is not None:
        if any(given is not None and given.resolve() == outfile.resolve() for given in (infile, space)):
            raise InputError(f"--outfile {outfile} is an input too: it would be lost")
        # If this call fails, nobody must mistake the points of an earlier call for its result.
        outfile.unlink(missing_ok=True)
    call = SteeringCall(count, limit, optimizer, point_of(settings or ()), seed, goal.sign, per_segment)
    file = read_points(infile, space)
    for warning in file.warnings:
        typer.echo(f"hpo-pilot: note: {warning}", err=True)
    text = json.dumps(next_points(call, file)) + "\n"
    if outfile is None:
        typer.echo(text, nl=False)
    else:
        write_text(outfile, text)
