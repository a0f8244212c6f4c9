"""The command of a steering container: `hpo-pilot steer`, as phpo's `--steeringExec` has it."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hpo_pilot.cli.options import MOST_NUMBER


class Goal(StrEnum):
    """Which loss is better; `min` and `max` are hpogrid's words for it."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"
    MIN = "min"
    MAX = "max"

    @property
    def sign(self) -> int:
        """What a loss is multiplied by to be minimised."""
        return 1 if self in (Goal.MINIMIZE, Goal.MIN) else -1


def _limit(text: str) -> int | None:
    """What stands for %MAX_POINTS: a number, or None where the request has no limit."""
    if text == "None":
        return None
    try:
        limit = int(text)
    except ValueError:
        limit = -1
    if limit < 0:
        raise typer.BadParameter(f"{text!r} is not a number of points")
    return limit


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(steer)


def steer(
    count: Annotated[
        int,
        typer.Option(
            *("--n", "--n_point", "--num_points"),
            min=0,
            max=100_000,
            help="New points wanted (%NUM_POINTS).",
            show_default=False,
        ),
    ],
    limit: Annotated[
        int | None,
        typer.Option(
            *("--max", "--max_point", "--max_points"),
            parser=_limit,
            metavar="INTEGER",
            help="Points in the whole search (%MAX_POINTS), all segments together.",
            show_default=False,
        ),
    ] = None,
    infile: Annotated[
        Path | None,
        typer.Option("--infile", "--input", "-i", help="Points so far (%IN). Default: none.", show_default=False),
    ] = None,
    outfile: Annotated[
        Path | None,
        typer.Option("--outfile", "--output", "-o", help="New points (%OUT). Default: printed.", show_default=False),
    ] = None,
    optimizer: Annotated[
        str, typer.Option("--optimizer", help="auto, bayesian, evolutionary, cma, random, grid or optuna.")
    ] = "bayesian",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the optimizer.", show_default=False),
    ] = None,
    space: Annotated[
        Path | None,
        typer.Option(
            *("--space", "-s"), help="The search space; default: the opt_space of the points.", show_default=False
        ),
    ] = None,
    goal: Annotated[Goal, typer.Option("--goal", "--mode", help="Which loss is better.")] = Goal.MINIMIZE,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_NUMBER, help="Same seed and same points so far, same new points.")
    ] = 0,
    per_segment: Annotated[
        bool, typer.Option("--per-segment", help="--n is meant for each segment, not for all together.")
    ] = False,
) -> None:
    """Propose the next points of a phpo or iDDS task: reads %IN, writes %OUT, keeps nothing in between."""
    from hpo_pilot.cli.files import write_text
    from hpo_pilot.config.foreign.points_file import read_points
    from hpo_pilot.config.foreign.steering_call import SteeringCall, next_points
    from hpo_pilot.errors import InputError

    if outfile is not None:
        if any(given is not None and given.resolve() == outfile.resolve() for given in (infile, space)):
            raise InputError(f"--outfile {outfile} is an input too: it would be lost")
        # Points of an earlier call must not be taken for those of one that failed.
        outfile.unlink(missing_ok=True)
    call = SteeringCall(count, limit, optimizer, _settings(settings or []), seed, goal.sign, per_segment)
    file = read_points(infile, space)
    for warning in file.warnings:
        typer.echo(f"hpo-pilot: note: {warning}", err=True)
    text = json.dumps(next_points(call, file)) + "\n"
    if outfile is None:
        typer.echo(text, nl=False)
    else:
        write_text(outfile, text)


def _settings(given: list[str]) -> dict[str, Any]:
    """The optimizer's settings; values are as a search file has them."""
    from hpo_pilot.config.yaml_scalar import plain_tag, scalar_value
    from hpo_pilot.errors import InputError

    settings: dict[str, Any] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not (name and equals):
            raise InputError(f"--set {item}: must be NAME=VALUE")
        try:
            settings[name] = scalar_value(plain_tag(value), value)
        except ValueError as error:
            raise InputError(f"--set {item}: {error}") from error
    return settings
